//! A record of a switch: the bytes follow magic and version, so that the header is reached at once.

#![no_main]

use larder_core::record::{MAGIC, VERSION};
use larder_sim::replay::Replay;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let record = [&MAGIC[..], &[VERSION], bytes].concat();
    if let Ok(mut replay) = Replay::open(&record[..]) {
        // It ends by itself: after an error there is nothing more.
        let rows = replay.by_ref().filter(Result::is_ok).count() as u64;
        let summary = replay.summary();
        assert!(rows <= summary.decisions + summary.changes);
    }
});
