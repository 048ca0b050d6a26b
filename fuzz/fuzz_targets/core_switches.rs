//! Messages between peer switches.

#![no_main]

use larder_core::switches::fuzzing::fuzz_message;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_message(bytes));
