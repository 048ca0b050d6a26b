//! Merges several logs of one service: by time if all logs have times, one after another otherwise.

use std::collections::BTreeMap;

use larder_core::class::ServiceClass;
use larder_core::{Bytes, TargetId, Time};
use larder_trace::Trace;

use crate::workload::{Item, Workload};

/// The memory that the live node charges for the smallest object, in bytes.
const OBJECT_MIN: u64 = 512;

/// The identity of a target for the dispatcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TargetIdentity {
    /// The target id. Several targets may share one id: they are then sent to the same node, and take memory
    /// separately.
    pub id: TargetId,
    /// The service class.
    pub class: ServiceClass,
}

/// Merges traces as [`merge_as`] does, with an id per target and class N.
pub fn merge(traces: &[Trace]) -> Workload {
    merge_as(traces, &|name| TargetIdentity { id: TargetId::of(name.as_bytes()), class: ServiceClass::N })
}

/// Merges the requests of several traces in time order; equal times are in the order of the traces. A
/// target's size is its largest size in any trace. If a trace has no times, the traces follow one another and
/// the result has no times.
///
/// O(requests * log traces + targets).
pub fn merge_as(traces: &[Trace], identify: &dyn Fn(&str) -> TargetIdentity) -> Workload {
    let mut items: Vec<Item> = Vec::new();
    let mut numbers: Vec<Vec<u32>> = Vec::new();
    // A single log needs no table, because its targets are distinct.
    let mut known: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    let several = traces.len() > 1;
    for trace in traces {
        let mut own = Vec::with_capacity(trace.targets.len());
        for target in &trace.targets {
            let bytes = target.size.max(Bytes(1)).get();
            let fresh = items.len() as u32;
            let number =
                if several { *known.entry(target.name.as_bytes().to_vec()).or_insert(fresh) } else { fresh };
            if number == fresh {
                items.push(item(identify(&target.name), bytes));
            } else if let Some(item) = items.get_mut(number as usize) {
                item.bytes = item.bytes.max(bytes);
                item.memory = item.bytes.max(OBJECT_MIN);
            }
            own.push(number);
        }
        numbers.push(own);
    }
    let timed = !traces.is_empty() && traces.iter().all(|trace| trace.origin_ns.is_some());
    let (requests, times) =
        if timed { order_by_time(traces, &numbers) } else { (concatenate(traces, &numbers), Vec::new()) };
    Workload { items, requests, times }
}

fn item(identity: TargetIdentity, bytes: u64) -> Item {
    Item { memory: bytes.max(OBJECT_MIN), class: identity.class, ..Item::file(identity.id, bytes) }
}

fn concatenate(traces: &[Trace], numbers: &[Vec<u32>]) -> Vec<u32> {
    let of = |(trace, own): (&Trace, &Vec<u32>)| -> Vec<u32> {
        trace.requests.iter().map(|request| own[request.target as usize]).collect()
    };
    traces.iter().zip(numbers).flat_map(of).collect()
}

fn order_by_time(traces: &[Trace], numbers: &[Vec<u32>]) -> (Vec<u32>, Vec<Time>) {
    let origins = || traces.iter().filter_map(|trace| trace.origin_ns);
    let first = origins().min().unwrap_or(0);
    let after = |trace: &Trace| trace.origin_ns.unwrap_or(first).abs_diff(first);
    if let ([trace], [own]) = (traces, numbers) {
        return trace.requests.iter().map(|request| (own[request.target as usize], request.time)).unzip();
    }
    let mut order: Vec<(u64, u32)> = Vec::new();
    for (trace, own) in traces.iter().zip(numbers) {
        let shift = after(trace);
        let one = |request: &larder_trace::Request| {
            (request.time.as_nanos().saturating_add(shift), own[request.target as usize])
        };
        order.extend(trace.requests.iter().map(one));
    }
    // The sort is stable and each trace is in order, so equal times stay in the order of the traces.
    order.sort_by_key(|(time, _)| *time);
    order.into_iter().map(|(time, item)| (item, Time::from_nanos(time))).unzip()
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_trace::{Request, SizeUnit, Target};

    fn trace(origin_s: Option<i64>, requests: &[(u64, &str, u64)]) -> Trace {
        let mut names: Vec<&str> = Vec::new();
        let mut targets: Vec<Target> = Vec::new();
        let mut list = Vec::new();
        for (second, name, bytes) in requests {
            let at = names.iter().position(|known| known == name).unwrap_or_else(|| {
                names.push(name);
                targets.push(Target { name: (*name).to_owned(), size: Bytes(*bytes) });
                names.len() - 1
            });
            list.push(Request {
                time: Time::from_secs(*second),
                target: at as u32,
                client: 0,
                size: Bytes(*bytes),
            });
        }
        let origin_ns = origin_s.map(|second| second * 1_000_000_000);
        Trace { targets, requests: list, size_unit: SizeUnit::Bytes, origin_ns }
    }

    #[test]
    fn logs_are_merged_by_time_and_targets_by_name() {
        let first = trace(Some(100), &[(0, "/a", 1_000), (5, "/b", 10), (9, "/a", 1_000)]);
        let second = trace(Some(98), &[(0, "/c", 7), (7, "/a", 5_000)]);
        let all = merge(&[first.clone(), second.clone()]);
        assert_eq!(all.requests, [2, 0, 1, 0, 0]);
        assert_eq!(all.times, [0, 2, 7, 7, 11].map(Time::from_secs));
        let sizes: Vec<_> = all.items.iter().map(|item| (item.bytes, item.memory)).collect();
        assert_eq!(sizes, [(5_000, 5_000), (10, 512), (7, 512)]);
        let untimed = merge(&[first, Trace { origin_ns: None, ..second }]);
        assert_eq!(untimed.requests, [0, 1, 0, 2, 0]);
        assert!(untimed.times.is_empty());
    }
}
