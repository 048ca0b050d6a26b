//! Signals: load reports, cache events, results of requests and routing tables.

use super::{Handle, changed, facts};
use crate::fault::Fault;
use crate::types::{
    Decision, Feedback, LARDER_CACHE_HIT, LARDER_CACHE_MISS, LARDER_CACHE_UNKNOWN, LARDER_EVENT_EVICTED,
    LARDER_EVENT_GONE, LARDER_EVENT_STORED, LARDER_NO_NODE, NodeHandle, SignalValue, TableRow,
};
use larder_core::dispatch::{CacheEvent, CacheResult, ReplyFeedback, Request};
use larder_core::nodes::{LoadReport, Signal};
use larder_core::policy::table::{Place, RouteTable};
use larder_core::{NodeId, RouteId, TargetId, Time};
use std::sync::Arc;
use std::time::Duration;

/// The largest HTTP status.
const STATUS_MAX: u16 = 999;

impl Handle {
    /// Passes the result of a request to the policy, and counts it.
    pub(super) fn learn(
        &self,
        now: Time,
        node: NodeId,
        decision: &Decision,
        feedback: &Feedback,
    ) -> Result<(), Fault> {
        let failed = facts::flag("failed", feedback.failed)?;
        let found = match feedback.cache {
            LARDER_CACHE_UNKNOWN => None,
            LARDER_CACHE_HIT => Some(CacheResult::Hit),
            LARDER_CACHE_MISS => Some(CacheResult::Miss),
            other => return Err(Fault::range(format!("{other} is no result of a cache"))),
        };
        if feedback.status > STATUS_MAX {
            return Err(Fault::range(format!("{} is no HTTP status", feedback.status)));
        }
        let class = facts::class(decision.service_class)?;
        let request = Request::new(TargetId(decision.target)).with_class(class);
        let elapsed = Duration::from_nanos(feedback.elapsed_ns);
        let first_byte = (feedback.first_byte_ns > 0).then(|| Duration::from_nanos(feedback.first_byte_ns));
        let counts = &self.slots[node.index()].counts;
        if failed {
            counts.fail();
            self.dispatcher.observe_failure(now, &request, node, first_byte.unwrap_or(elapsed));
            return Ok(());
        }
        let is_useful = matches!(feedback.status, 0 | 200..=299 | 304);
        let found = found.filter(|_| is_useful);
        counts.reply(feedback.bytes, found);
        if feedback.elapsed_ns > 0 {
            self.dispatcher.observe_reply(now, &request, node, &ReplyFeedback { elapsed, first_byte, found });
        }
        Ok(())
    }

    /// Stores a node's load report in place of the previous one.
    pub(crate) fn report(&self, now: Time, id: NodeHandle, values: &[SignalValue]) -> Result<i32, Fault> {
        let node = self.member(id)?;
        let mut report = LoadReport::default();
        for SignalValue { signal, value } in values {
            let known = usize::try_from(*signal).ok().and_then(|index| Signal::ALL.get(index));
            let known = known.ok_or_else(|| Fault::range(format!("{signal} is no signal")))?;
            put(&mut report, *known, *value)?;
        }
        Ok(changed(self.dispatcher.report(now, node, report)))
    }

    /// Passes a change of a node's cache to the policy.
    pub(crate) fn cache_event(
        &self,
        now: Time,
        id: NodeHandle,
        target: u64,
        event: CacheEvent,
    ) -> Result<i32, Fault> {
        let node = self.member(id)?;
        Ok(changed(self.dispatcher.cache_event(now, node, TargetId(target), event)))
    }

    /// Sets the routing table of `ward` and `part`.
    pub(crate) fn set_table(&self, now: Time, rows: &[TableRow]) -> Result<i32, Fault> {
        let place = |row: &TableRow| match row.node {
            LARDER_NO_NODE => Ok((TargetId(row.target), Place::Core)),
            id => Ok((TargetId(row.target), Place::Node(self.member(id)?.0))),
        };
        let places = rows.iter().map(place).collect::<Result<Vec<_>, Fault>>()?;
        let nodes = u16::try_from(self.dispatcher.nodes().slots()).unwrap_or(u16::MAX);
        let table = RouteTable::new(nodes, places).map_err(|error| Fault::range(error.to_string()))?;
        Ok(changed(self.dispatcher.set_table(now, RouteId::DEFAULT, &Arc::new(table))))
    }
}

pub(crate) fn cache_event(number: u8) -> Result<CacheEvent, Fault> {
    match number {
        LARDER_EVENT_STORED => Ok(CacheEvent::Stored),
        LARDER_EVENT_EVICTED => Ok(CacheEvent::Evicted),
        LARDER_EVENT_GONE => Ok(CacheEvent::Gone),
        other => Err(Fault::range(format!("{other} is no cache event"))),
    }
}

fn put(report: &mut LoadReport, signal: Signal, value: u64) -> Result<(), Fault> {
    let share = || Some(u16::try_from(value.min(1_000)).unwrap_or(1_000));
    let count = || {
        let count = u32::try_from(value);
        count.map(Some).map_err(|_| Fault::range(format!("{} = {value} exceeds 32 bits", signal.name())))
    };
    match signal {
        Signal::Cpu => report.cpu_permille = share(),
        Signal::Disk => report.disk_permille = share(),
        Signal::Memory => report.memory_permille = share(),
        Signal::Processes => report.processes = count()?,
        Signal::ServiceTime => report.service_us = count()?,
        Signal::DiskBytes => report.disk_bytes_per_s = Some(value),
        Signal::Paging => report.paging_per_s = count()?,
        Signal::Queue => report.queue = count()?,
        Signal::App(which) => report.app[usize::from(which)] = count()?,
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{LARDER_SIGNAL_APP1, LARDER_SIGNAL_QUEUE};

    #[test]
    fn signals_have_the_numbers_of_the_header() {
        assert_eq!(Signal::ALL[LARDER_SIGNAL_QUEUE as usize], Signal::Queue);
        assert_eq!(Signal::ALL[LARDER_SIGNAL_APP1 as usize], Signal::App(0));
        for (index, signal) in Signal::ALL.into_iter().enumerate() {
            let mut report = LoadReport::default();
            put(&mut report, signal, 7 + index as u64).expect("in range");
            assert_eq!(report.get(signal), Some(7 + index as u64), "{signal}");
        }
    }
}
