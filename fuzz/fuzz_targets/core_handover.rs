//! The snapshot of learned state. The bytes follow magic and version, so that the fuzzer reaches the nodes at once.

#![no_main]

use larder_core::snapshot::fuzzing::fuzz_snapshot;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_snapshot(&[&b"LRDH\x01"[..], bytes].concat()));
