//! The node's way from a request's path to a content's name.

#![no_main]

use larder_node::fuzzing::fuzz_resolve;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(path) = std::str::from_utf8(bytes) {
        fuzz_resolve(path);
    }
});
