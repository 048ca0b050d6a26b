//! Pages of load counters of node_exporter and of larder nodes, and the report from two pages.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| larder_switch::fuzzing::fuzz_pages(bytes));
