//! Pages of load counters: node_exporter's and a larder node's, and what two of them say.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| larder_switch::fuzzing::fuzz_pages(bytes));
