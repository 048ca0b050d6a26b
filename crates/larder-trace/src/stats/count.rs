//! The pass over the requests that counts the requests of each target.
//!
//! The counts of rare targets are far apart in memory, so that each lookup waits for a cache line. Requests
//! are therefore collected in small batches. The lookups of a batch follow one another closely, so that the
//! processor waits for several cache lines at once.

use std::ops::ControlFlow;

use crate::intern::{self, Interner};
use crate::read::Limits;
use crate::record::{Key, Record};
use crate::report::ReadReport;
use crate::size_unit::SizeUnit;
use crate::stats::Span;
use crate::stats::core90::CoreTracker;
use crate::trace::Trace;

/// The counts of one target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TargetCounts {
    /// Number of requests.
    pub(super) requests: u64,
    /// Size of the largest reply.
    pub(super) size: u64,
    /// Total size of all replies. It saturates.
    pub(super) transferred: u64,
}

/// Number of requests in a batch.
const BATCH: usize = 64;

/// A request whose target has not been looked up.
struct QueuedRequest {
    hash: u64,
    /// End of the key in the bytes of the batch. The key starts at the end of the previous key.
    end: usize,
    size: u64,
    time_ns: Option<i64>,
}

/// The counts of all targets, in order of first appearance.
pub(super) struct TargetCounter {
    pub(super) targets: Vec<TargetCounts>,
    pub(super) replayable: u64,
    pub(super) over_targets_max: u64,
    keys: Interner,
    batch: Vec<QueuedRequest>,
    batch_keys: Vec<u8>,
    times: Option<(i64, i64)>,
    core_tracker: CoreTracker,
    has_sizes: bool,
    trace_unit: Option<SizeUnit>,
}

impl TargetCounter {
    /// Creates an empty counter.
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            targets: Vec::new(),
            replayable: 0,
            over_targets_max: 0,
            keys: Interner::new(limits.targets_max, limits.target_name_bytes_max),
            batch: Vec::with_capacity(BATCH),
            batch_keys: Vec::new(),
            times: None,
            core_tracker: CoreTracker::default(),
            has_sizes: false,
            trace_unit: None,
        }
    }

    /// Counts the requests of a trace.
    pub(super) fn of_trace(trace: &Trace) -> Self {
        let mut counter = Self::new(&Limits::default());
        counter.targets = vec![TargetCounts::default(); trace.targets.len()];
        counter.trace_unit = Some(trace.size_unit);
        // The targets of a trace are in order of first appearance only if the trace was loaded from a file in
        // time order.
        let mut order = vec![u32::MAX; trace.targets.len()];
        let mut next = 0;
        for request in &trace.requests {
            let place = &mut order[request.target as usize];
            if *place == u32::MAX {
                *place = next;
                next += 1;
            }
            let time_ns = trace.origin_ns.map(|origin| {
                origin.saturating_add(i64::try_from(request.time.as_nanos()).unwrap_or(i64::MAX))
            });
            counter.replayable += 1;
            counter.add(*place, request.size.get(), time_ns);
        }
        counter.targets.truncate(next as usize);
        counter
    }

    /// Counts a request of a file, if it is replayable.
    pub(super) fn take(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if !record.is_replayable() {
            return ControlFlow::Continue(());
        }
        self.replayable += 1;
        self.has_sizes |= record.body.is_some();
        let start = self.batch_keys.len();
        match record.target {
            Key::Name(name) => self.batch_keys.extend_from_slice(name),
            Key::Number(number) => self.batch_keys.extend_from_slice(&number.to_be_bytes()),
        }
        let hash = intern::hash(&self.batch_keys[start..]);
        let (end, size) = (self.batch_keys.len(), record.body.unwrap_or(0));
        self.batch.push(QueuedRequest { hash, end, size, time_ns: record.time_ns });
        if self.batch.len() == BATCH {
            self.count_batch();
        }
        ControlFlow::Continue(())
    }

    /// Looks up the targets of the batch, and counts its requests.
    fn count_batch(&mut self) {
        let mut targets = [None; BATCH];
        let mut start = 0;
        for (pending, target) in self.batch.iter().zip(&mut targets) {
            *target = self.keys.intern_hashed(pending.hash, &self.batch_keys[start..pending.end]);
            start = pending.end;
        }
        if self.keys.len() > self.targets.len() {
            self.targets.resize(self.keys.len(), TargetCounts::default());
        }
        let batch = std::mem::take(&mut self.batch);
        for (pending, target) in batch.iter().zip(targets) {
            match target {
                Some(target) => self.add(target, pending.size, pending.time_ns),
                None => self.over_targets_max += 1,
            }
        }
        self.batch = batch;
        self.batch.clear();
        self.batch_keys.clear();
    }

    /// Counts a request of a known target.
    fn add(&mut self, target: u32, size: u64, time_ns: Option<i64>) {
        let tally = &mut self.targets[target as usize];
        tally.requests += 1;
        tally.size = tally.size.max(size);
        tally.transferred = tally.transferred.saturating_add(size);
        if let Some(time) = time_ns {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
            self.core_tracker.add(target, time);
        }
    }

    /// Ends the counting. Returns the daily figures.
    pub(super) fn finish(&mut self) -> CoreTracker {
        self.count_batch();
        let mut days = std::mem::take(&mut self.core_tracker);
        days.finish();
        days
    }

    /// Returns the times of the first and the last request, if the requests have times.
    pub(super) fn span(&self) -> Option<Span> {
        self.times.map(|(first_ns, last_ns)| Span {
            first_ns,
            last_ns,
            seconds: last_ns.abs_diff(first_ns) as f64 / 1e9,
        })
    }

    /// Returns the unit of the sizes.
    pub(super) fn size_unit(&self, report: Option<&ReadReport>) -> SizeUnit {
        let has_sizes = self.has_sizes || self.replayable == 0;
        let of_file = report.map(|report| report.format.size_unit(has_sizes));
        self.trace_unit.or(of_file).unwrap_or(SizeUnit::Unknown)
    }
}
