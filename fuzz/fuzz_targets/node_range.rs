//! The node's `Range` field, for contents of every size.

#![no_main]

use larder_node::fuzzing::fuzz_range;
use libfuzzer_sys::fuzz_target;

// The size, then the field.
fuzz_target!(|bytes: &[u8]| {
    if let Some((size, value)) = bytes.split_first_chunk() {
        fuzz_range(value, u64::from_le_bytes(*size));
    }
});
