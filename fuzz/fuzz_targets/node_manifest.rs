//! The node's list of contents for the modelled store.

#![no_main]

use larder_node::fuzzing::fuzz_manifest;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz_manifest(bytes));
