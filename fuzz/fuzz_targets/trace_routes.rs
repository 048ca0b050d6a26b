//! The routing table that nodes load.

#![no_main]

use std::path::Path;

use larder_core::TargetId;
use larder_trace::Limits;
use larder_trace::ward::read_routes_from;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    // Small limits, so that fuzzing reaches them.
    let limits = Limits { line_bytes_max: 128, targets_max: 16, ..Limits::default() };
    let read = read_routes_from(bytes, Path::new("fuzzed"), &limits, |name| TargetId::of(name.as_bytes()));
    match read {
        Ok((header, table)) => {
            assert!(header.check().is_ok());
            assert_eq!(table.nodes(), header.nodes);
            assert!(table.len() + table.repeated() <= limits.targets_max);
            assert_eq!(
                (table.len() + table.repeated()) as u64,
                header.core_targets + header.partition_targets
            );
        }
        Err(error) => assert!(error.to_string().starts_with("fuzzed:")),
    }
});
