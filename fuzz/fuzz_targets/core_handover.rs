//! What the process before has learned: the bytes follow magic and version, so that the nodes are reached at once.

#![no_main]

use larder_core::handover::fuzzing::fuzz_handover;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_handover(&[&b"LRDH\x01"[..], bytes].concat()));
