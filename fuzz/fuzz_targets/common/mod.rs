//! Properties that must hold for all bytes.

use std::ops::ControlFlow;

use larder_trace::{Format, Limits, ReadOptions, ReadReport, Stats, TraceError, read_from};

/// Small limits, so that fuzzing reaches them.
fn options(format: Option<Format>) -> ReadOptions {
    let limits = Limits {
        line_bytes_max: 512,
        targets_max: 16,
        target_name_bytes_max: 1_024,
        clients_max: 16,
        requests_max: 1_000,
    };
    ReadOptions { format, limits, ..ReadOptions::default() }
}

/// Reads the bytes and checks that every line and request is accounted for, in the report and in the statistics.
pub fn check(bytes: &[u8], format: Option<Format>) {
    let options = options(format);
    let mut given = 0;
    let read = read_from(
        bytes,
        &options,
        |record| {
            given += 1;
            if let larder_trace::Key::Name(name) = record.target {
                assert!(name.len() <= options.limits.line_bytes_max);
            }
            ControlFlow::Continue(())
        },
        &mut |_| (),
    );
    let stats = Stats::of_reader(bytes, &options, &mut |_| ());
    match (&read, &stats) {
        (Ok(report), Ok(stats)) => {
            accounted(report, given);
            assert_eq!(stats.read.as_ref().map(|r| r.records), Some(report.records));
            assert!(stats.targets <= 16);
            let counted = stats.read.as_ref().map(|r| r.replayable - r.over_targets_max);
            assert_eq!(counted, Some(stats.requests));
            assert!(!stats.to_string().is_empty());
        }
        (Err(error), Err(_)) => {
            assert!(!error.to_string().is_empty());
            if let Some(report) = TraceError::report(error) {
                accounted(report, given);
            }
        }
        _ => panic!("reading and counting disagree: {read:?}, {stats:?}"),
    }
}

fn accounted(report: &ReadReport, given: u64) {
    assert_eq!(report.records, given);
    assert!(report.malformed <= report.lines);
    assert!(report.first_malformed.len() as u64 <= report.malformed);
    // Only a Mooncake line holds more than one request.
    assert!(report.format == Format::Mooncake || report.records + report.malformed <= report.lines);
}
