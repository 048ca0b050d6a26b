//! The event stream of a node's cache, whole and in pieces.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| larder_switch::fuzzing::fuzz_stream(bytes));
