//! The one pass over the requests: what each target is asked for.

use std::ops::ControlFlow;

use crate::intern::Interner;
use crate::read::{Limits, ReadReport};
use crate::record::Record;
use crate::stats::Span;
use crate::stats::core90::Days;
use crate::trace::{SizeUnit, Trace};

/// One target's tally.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// Requests.
    pub(super) requests: u64,
    /// Largest reply.
    pub(super) size: u64,
    /// All replies together; saturates.
    pub(super) transferred: u64,
}

/// Tallies in order of first appearance.
pub(super) struct Counter {
    pub(super) targets: Vec<Tally>,
    pub(super) replayable: u64,
    pub(super) over_targets_max: u64,
    keys: Interner,
    times: Option<(i64, i64)>,
    days: Days,
    trace_unit: Option<SizeUnit>,
}

impl Counter {
    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            targets: Vec::new(),
            replayable: 0,
            over_targets_max: 0,
            keys: Interner::new(limits.targets_max, limits.target_name_bytes_max),
            times: None,
            days: Days::default(),
            trace_unit: None,
        }
    }

    pub(super) fn of_trace(trace: &Trace) -> Self {
        let mut counter = Self::new(&Limits::default());
        counter.targets = vec![Tally::default(); trace.targets.len()];
        counter.trace_unit = Some(trace.size_unit);
        // A trace's targets stand in order of first appearance only if it came from a file in time order.
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

    pub(super) fn take(&mut self, record: &Record<'_>) -> ControlFlow<()> {
        if !record.is_replayable() {
            return ControlFlow::Continue(());
        }
        self.replayable += 1;
        let Some(target) = self.keys.intern_key(record.target) else {
            self.over_targets_max += 1;
            return ControlFlow::Continue(());
        };
        if target as usize == self.targets.len() {
            self.targets.push(Tally::default());
        }
        self.add(target, record.body.unwrap_or(0), record.time_ns);
        ControlFlow::Continue(())
    }

    fn add(&mut self, target: u32, size: u64, time_ns: Option<i64>) {
        let tally = &mut self.targets[target as usize];
        tally.requests += 1;
        tally.size = tally.size.max(size);
        tally.transferred = tally.transferred.saturating_add(size);
        if let Some(time) = time_ns {
            let (first, last) = self.times.unwrap_or((time, time));
            self.times = Some((first.min(time), last.max(time)));
            self.days.add(target, time);
        }
    }

    pub(super) fn finish_days(&mut self) -> Days {
        let mut days = std::mem::take(&mut self.days);
        days.finish();
        days
    }

    pub(super) fn span(&self) -> Option<Span> {
        self.times.map(|(first_ns, last_ns)| Span {
            first_ns,
            last_ns,
            seconds: last_ns.abs_diff(first_ns) as f64 / 1e9,
        })
    }

    pub(super) fn size_unit(&self, report: Option<&ReadReport>) -> SizeUnit {
        let of_file = report.map(|report| SizeUnit::of(report.format));
        self.trace_unit.or(of_file).unwrap_or(SizeUnit::Unknown)
    }
}
