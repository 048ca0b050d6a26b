//! ORCA load reports in reply headers: text, JSON and protobuf.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| larder_switch::fuzzing::fuzz_orca(bytes));
