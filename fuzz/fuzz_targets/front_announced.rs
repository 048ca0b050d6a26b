//! The PROXY protocol's announcement at the head of a connection.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| larder_switch::fuzzing::fuzz_announcement(bytes));
