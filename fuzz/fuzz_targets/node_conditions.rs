//! The node's conditional requests: entity tags and dates from the fields of a request.

#![no_main]

use larder_node::fuzzing::fuzz_conditions;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| fuzz_conditions(value));
