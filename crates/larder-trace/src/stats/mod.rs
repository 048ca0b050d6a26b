//! Statistics of a trace for cache clusters: the number of requests, their distribution over targets, and the
//! memory that would serve them.
//!
//! Only replayable requests are counted: GET, status 200, with a body (see [`Record::is_replayable`]). The
//! [`ReadReport`] shows the other contents of the file. The size of a target is that of its largest reply.
//! Targets are ranked by falling number of requests. Equal counts are in order of first appearance.

mod core90;
mod count;
mod locality;
mod table;
mod zipf;

use std::io::Read;
use std::path::Path;

use serde::Serialize;

use crate::error::TraceError;
use crate::read::{Progress, ReadOptions, read, read_from};
use crate::record::Record;
use crate::report::ReadReport;
use crate::size_unit::SizeUnit;
use crate::trace::Trace;

pub use core90::{Core90, DayChange};
pub use locality::Coverage;
pub(crate) use table::format_thousands;
pub use zipf::Zipf;

use count::TargetCounter;
use locality::RankedTargets;

/// The times of the first and the last counted request.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Span {
    /// Time of the first request in nanoseconds since 1970 UTC, or since the origin of the file.
    pub first_ns: i64,
    /// Time of the last request, like `first_ns`.
    pub last_ns: i64,
    /// Time from the first to the last request, in seconds.
    pub seconds: f64,
}

/// Mean token counts of the requests of an LLM trace.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct MeanTokens {
    /// Mean number of input tokens.
    pub input: f64,
    /// Mean number of output tokens.
    pub output: f64,
}

/// The statistics of a trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Stats {
    /// The report of the file; `None` for a trace that was not read from a file.
    pub read: Option<ReadReport>,
    /// Number of counted requests.
    pub requests: u64,
    /// Number of distinct targets.
    pub targets: u64,
    /// The unit of the sizes below.
    pub size_unit: SizeUnit,
    /// Total size of all targets; `None` if the file has no sizes.
    pub working_set: Option<u64>,
    /// Total size of all replies; `None` if the file has no sizes.
    pub transferred: Option<u64>,
    /// Mean size of a reply; `None` if the file has no sizes.
    pub reply_mean: Option<f64>,
    /// Mean size of a target; `None` if the file has no sizes.
    pub target_mean: Option<f64>,
    /// Share of the requests for the most requested target, 0 to 1.
    pub hottest_share: f64,
    /// Share of the requests whose target was requested before: the hit ratio of an infinite cache, 0 to 1.
    pub endless_hit_ratio: f64,
    /// Times of the requests; `None` in formats without times.
    pub span: Option<Span>,
    /// Mean token counts, in formats that have them.
    pub tokens_mean: Option<MeanTokens>,
    /// Zipf fit of popularity by rank; `None` if too few targets have enough requests.
    pub zipf: Option<Zipf>,
    /// The core-90 % set and its change from day to day; `None` without requests.
    pub core90: Option<Core90>,
    /// Density, working-set locality and bytes-transferred locality.
    pub coverage: Vec<Coverage>,
}

impl Stats {
    /// Computes the statistics of a file in one pass.
    ///
    /// # Errors
    /// As for [`read`].
    pub fn of_file(
        path: &Path,
        options: &ReadOptions,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, TraceError> {
        let mut counter = TargetCounter::new(&options.limits);
        let report = read(path, options, |record: &Record<'_>| counter.take(record), on_progress)?;
        Ok(Self::from_counts(counter, Some(report)))
    }

    /// Computes the statistics of a stream in one pass.
    ///
    /// # Errors
    /// As for [`read_from`].
    pub fn of_reader(
        reader: impl Read + Send,
        options: &ReadOptions,
        on_progress: &mut dyn FnMut(Progress),
    ) -> Result<Self, TraceError> {
        let mut counter = TargetCounter::new(&options.limits);
        let report = read_from(reader, options, |record: &Record<'_>| counter.take(record), on_progress)?;
        Ok(Self::from_counts(counter, Some(report)))
    }

    /// Computes the statistics of a trace in memory. They equal those of its file, except for the order of
    /// targets with equal counts if the file is not in time order.
    pub fn of_trace(trace: &Trace) -> Self {
        Self::from_counts(TargetCounter::of_trace(trace), None)
    }

    /// Returns the grid point at this share of the requests in thousandths, if the grid has it.
    pub fn coverage_at(&self, requests_permille: u16) -> Option<&Coverage> {
        self.coverage.iter().find(|point| point.requests_permille == requests_permille)
    }

    /// Computes the statistics from the counts.
    fn from_counts(mut counter: TargetCounter, mut report: Option<ReadReport>) -> Self {
        let days = counter.finish();
        if let Some(report) = &mut report {
            report.replayable = counter.replayable;
            report.over_targets_max = counter.over_targets_max;
        }
        let size_unit = counter.size_unit(report.as_ref());
        let sized = size_unit != SizeUnit::Unknown;
        let ranking = RankedTargets::new(&counter.targets);
        let (requests, targets) = (ranking.requests(), ranking.targets());
        let share = |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 / whole as f64 };
        let tokens_mean = report.as_ref().and_then(|report| {
            let good_lines = report.lines - report.malformed;
            let mean = |sum| share(sum, good_lines);
            report.tokens.map(|sums| MeanTokens { input: mean(sums.input), output: mean(sums.output) })
        });
        Self {
            requests,
            targets,
            size_unit,
            working_set: sized.then_some(ranking.working_set()),
            transferred: sized.then_some(ranking.transferred()),
            reply_mean: sized.then_some(share(ranking.transferred(), requests)),
            target_mean: sized.then_some(share(ranking.working_set(), targets)),
            hottest_share: share(ranking.hottest(), requests),
            endless_hit_ratio: share(requests - targets, requests),
            span: counter.span(),
            tokens_mean,
            zipf: zipf::fit(&ranking.counts()),
            core90: core90::compute(&ranking, days, sized),
            coverage: ranking.coverage(sized),
            read: report,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight requests in 60 s: four of /a (largest reply 100), two of /b (10), one of /c (1), one of /d
    /// (1,000).
    const LOG: &str = r#"x - - [20/Feb/2016:00:00:00 +0000] "GET /b HTTP/1.1" 200 10
x - - [20/Feb/2016:00:00:10 +0000] "GET /a HTTP/1.1" 200 100
x - - [20/Feb/2016:00:00:20 +0000] "GET /a HTTP/1.1" 200 50
x - - [20/Feb/2016:00:00:30 +0000] "GET /d HTTP/1.1" 200 1000
x - - [20/Feb/2016:00:00:40 +0000] "GET /c HTTP/1.1" 200 1
x - - [20/Feb/2016:00:00:40 +0000] "POST /c HTTP/1.1" 200 1
rubbish
x - - [20/Feb/2016:00:00:40 +0000] "GET /b HTTP/1.1" 200 8
x - - [20/Feb/2016:00:00:50 +0000] "GET /a HTTP/1.1" 200 100
x - - [20/Feb/2016:00:01:00 +0000] "GET /a HTTP/1.1" 200 100
"#;

    fn stats() -> Stats {
        Stats::of_reader(LOG.as_bytes(), &ReadOptions::default(), &mut |_| ()).expect("a good log")
    }

    #[test]
    fn figures_of_a_small_log() {
        let stats = stats();
        assert_eq!((stats.requests, stats.targets), (8, 4));
        assert_eq!(stats.working_set, Some(1_111));
        assert_eq!(stats.transferred, Some(1_369));
        assert_eq!(stats.hottest_share, 0.5);
        assert_eq!(stats.endless_hit_ratio, 0.5);
        assert_eq!(stats.span.expect("times").seconds, 60.0);
        // Half of the requests are for /a. Six of eight are for /a and /b. 90 % of eight is 7.2, which takes
        // all four targets.
        let bytes = |permille| stats.coverage_at(permille).and_then(|point| point.bytes);
        assert_eq!(
            (bytes(500), bytes(700), bytes(900), bytes(1_000)),
            (Some(100), Some(110), Some(1_111), Some(1_111))
        );
        assert_eq!(stats.coverage_at(800).and_then(|point| point.bytes), Some(1_110));
    }

    #[test]
    fn table_and_json_match_the_snapshots() {
        insta::assert_snapshot!("table", stats().to_string());
        insta::assert_json_snapshot!("json", stats());
    }

    #[test]
    fn targets_beyond_the_limit_are_counted() {
        let limits = crate::Limits { targets_max: 2, ..crate::Limits::default() };
        let options = ReadOptions { limits, ..ReadOptions::default() };
        let stats = Stats::of_reader(LOG.as_bytes(), &options, &mut |_| ()).expect("a good log");
        let read = stats.read.expect("read");
        assert_eq!((stats.targets, stats.requests, read.replayable, read.over_targets_max), (2, 6, 8, 2));
    }

    #[test]
    fn a_file_and_its_trace_have_the_same_statistics() {
        let recipe = crate::synth::Recipe::zipf(500, 20_000, 0.9);
        let trace = crate::synth::generate(&recipe, 3, 1.0).expect("possible");
        let mut log = Vec::new();
        crate::write_clf(&trace, &mut log).expect("in memory");
        let of_log =
            Stats::of_reader(log.as_slice(), &ReadOptions::default(), &mut |_| ()).expect("a good log");
        let of_trace = Stats::of_trace(&trace);
        assert_eq!(of_log.coverage, of_trace.coverage);
        assert_eq!((of_log.zipf, of_log.reply_mean), (of_trace.zipf, of_trace.reply_mean));
    }

    #[test]
    fn an_empty_trace_has_no_shares() {
        let stats = Stats::of_trace(&Trace {
            targets: Vec::new(),
            requests: Vec::new(),
            size_unit: SizeUnit::Bytes,
            origin_ns: None,
        });
        assert_eq!((stats.requests, stats.hottest_share, stats.core90), (0, 0.0, None));
        assert!(stats.coverage.is_empty());
    }
}
