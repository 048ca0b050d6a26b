//! Packets of a client that wait for their decision: Ethernet frames, put together to what the client has sent.

#![no_main]

use larder_switch::fuzzing::fuzz_held;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_held(bytes));
