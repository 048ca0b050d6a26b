//! `Accept-Encoding` and cookies of clients.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| larder_switch::fuzzing::fuzz_asked(bytes));
