//! The first bytes of a connection that may be handed off: HTTP/1, HTTP/2, or a ClientHello.

#![no_main]

use larder_switch::fuzzing::fuzz_first;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_first(bytes));
