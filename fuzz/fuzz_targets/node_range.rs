//! The node's `Range` field, for contents of every size.

#![no_main]

use larder_node::fuzzing::fuzz_range;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u64, &[u8])| {
    let (size, value) = input;
    fuzz_range(value, size);
});
