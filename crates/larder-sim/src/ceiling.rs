//! Upper bounds on the hits and the throughput of all policies.
//!
//! Two ideal memories bound all policies: a memory without limit, and a memory that knows the future. Both
//! are the whole cluster's memory in one piece, and the nodes are perfectly balanced. A real cluster
//! therefore misses more and balances worse.
//!
//! * *unbounded*: only the first use of an item misses.
//! * *clairvoyant*: all future requests are known. Keeping an item until its next use takes its bytes times
//!   the requests in between. The total room is the capacity times all requests. The bound takes the cheapest
//!   intervals until the room is used up; for bytes and disk time, the intervals that save most for their
//!   room. This relaxes the best possible cache: PFOO-U of Berger, Beckmann and Harchol-Balter, "Practical
//!   Bounds on Optimal Caching with Variable Object Sizes", SIGMETRICS 2018.
//!
//! The bounds do not cover a read that several requests share, because it takes no room in memory.

use serde::{Deserialize, Serialize};

use crate::cost::Lard98;
use crate::workload::Workload;

/// The misses of an ideal memory, and the throughput that they allow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Requests that miss.
    pub misses: u64,
    /// Bytes of the requests that miss.
    pub bytes_missed: u64,
    /// Share of the requests that miss, 0 to 1.
    pub miss_ratio: f64,
    /// Requests per second of evenly loaded nodes of the cost model with these misses.
    pub throughput: f64,
}

/// Computes the bound of a memory without limit. O(requests).
pub fn unbounded(workload: &Workload, nodes: usize, costs: &Lard98) -> Ceiling {
    unbounded_after(workload, 0, nodes, costs)
}

/// Computes [`unbounded`] without counting the first `warmup` requests.
pub fn unbounded_after(workload: &Workload, warmup: usize, nodes: usize, costs: &Lard98) -> Ceiling {
    let mut seen = vec![false; workload.items.len()];
    let asked = workload.requests.iter().copied().enumerate();
    let missed = asked.filter(|(_, item)| !core::mem::replace(&mut seen[*item as usize], true));
    ceiling_from_misses(workload, warmup, missed, nodes, costs)
}

/// Computes the bound of a memory of `bytes` that knows the future. O(requests * log requests).
pub fn clairvoyant(workload: &Workload, bytes: u64, nodes: usize, costs: &Lard98) -> Ceiling {
    clairvoyant_after(workload, 0, bytes, nodes, costs)
}

/// Computes [`clairvoyant`] without counting the first `warmup` requests.
pub fn clairvoyant_after(
    workload: &Workload,
    warmup: usize,
    bytes: u64,
    nodes: usize,
    costs: &Lard98,
) -> Ceiling {
    let times = costs.times();
    let asked = workload.requests.len();
    let mut intervals = find_intervals(workload, warmup, bytes);
    let room = bytes as f64 * asked.saturating_sub(warmup) as f64;
    let size = |item: u32| workload.items[item as usize].bytes;
    let all =
        ceiling_from_misses(workload, warmup, workload.requests.iter().copied().enumerate(), nodes, costs);
    let hits = max_saving(&mut intervals, room, |_| 1.0);
    let bytes_hit = max_saving(&mut intervals, room, |item| size(item) as f64);
    let disk_saved = max_saving(&mut intervals, room, |item| times.read_ns(size(item)) as f64);
    let measured = &workload.requests[warmup.min(asked)..];
    let whole = |time: &dyn Fn(u64) -> u64| measured.iter().map(|item| time(size(*item))).sum::<u64>() as f64;
    let (disk_ns, cpu_ns) = (whole(&|bytes| times.read_ns(bytes)), whole(&|bytes| times.hit_ns(bytes)));
    let requests = measured.len().max(1) as f64;
    let misses = all.misses - (hits.ceil() as u64).min(all.misses);
    Ceiling {
        misses,
        bytes_missed: all.bytes_missed - (bytes_hit.ceil() as u64).min(all.bytes_missed),
        miss_ratio: misses as f64 / requests,
        throughput: nodes as f64 * requests * 1e9 / cpu_ns.max(disk_ns - disk_saved).max(1.0),
    }
}

/// The interval from one use of an item to its next use.
#[derive(Clone, Copy, Debug)]
struct Interval {
    item: u32,
    /// Room that keeping the item takes: bytes times requests in between, without the warm-up.
    room: f64,
}

/// Returns the intervals that end after the warm-up, for items that fit into `bytes`.
fn find_intervals(workload: &Workload, warmup: usize, bytes: u64) -> Vec<Interval> {
    let mut last: Vec<Option<usize>> = vec![None; workload.items.len()];
    let mut intervals = Vec::new();
    for (at, item) in workload.requests.iter().copied().enumerate() {
        let memory = workload.items[item as usize].memory;
        if let Some(before) = last[item as usize].replace(at)
            && at >= warmup
            && memory <= bytes
        {
            intervals.push(Interval { item, room: memory as f64 * (at - before.max(warmup)) as f64 });
        }
    }
    intervals
}

/// Returns the largest total value of intervals that fit into `room`. The last interval counts in part.
fn max_saving(intervals: &mut [Interval], mut room: f64, value: impl Fn(u32) -> f64) -> f64 {
    intervals.sort_unstable_by(|a, b| {
        let (dear, cheap) = (a.room * value(b.item), b.room * value(a.item));
        dear.total_cmp(&cheap).then(a.item.cmp(&b.item)).then(a.room.total_cmp(&b.room))
    });
    let mut sum = 0.0;
    for interval in intervals {
        let part = if interval.room <= room { 1.0 } else { room / interval.room };
        sum += part * value(interval.item);
        room -= part * interval.room;
        if part < 1.0 {
            break;
        }
    }
    sum
}

/// Computes the ceiling from the misses, each given as the number of its request and the item.
fn ceiling_from_misses(
    workload: &Workload,
    warmup: usize,
    missed: impl Iterator<Item = (usize, u32)>,
    nodes: usize,
    costs: &Lard98,
) -> Ceiling {
    let costs = costs.times();
    let (mut misses, mut bytes_missed, mut disk_ns) = (0_u64, 0_u64, 0_u64);
    let measured = &workload.requests[warmup.min(workload.requests.len())..];
    for (_, item) in missed.filter(|(at, _)| *at >= warmup) {
        let size = workload.items[item as usize].bytes;
        misses += 1;
        bytes_missed += size;
        disk_ns += costs.read_ns(size);
    }
    let cpu_ns: u64 = measured.iter().map(|item| costs.hit_ns(workload.items[*item as usize].bytes)).sum();
    let requests = measured.len().max(1) as f64;
    Ceiling {
        misses,
        bytes_missed,
        miss_ratio: misses as f64 / requests,
        throughput: nodes as f64 * requests * 1e9 / (cpu_ns.max(disk_ns).max(1)) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::Item;
    use larder_core::cache::{ByteCache, CacheKind};
    use larder_core::{Bytes, TargetId};
    use proptest::prelude::*;

    fn workload(requests: &[u32]) -> Workload {
        let items = (0..8).map(|i| Item::file(TargetId(i), 10)).collect();
        Workload { items, requests: requests.to_vec(), times: Vec::new() }
    }

    #[test]
    fn the_clairvoyant_cache_uses_the_future() {
        // Room of 10 for 8 requests is 80. Intervals: 0 and 1 take 30 and then 20 each; 2 takes 50.
        let workload = workload(&[0, 1, 2, 0, 1, 0, 1, 2]);
        let costs = Lard98::default();
        // Intervals of 20, 20 and 30 fit, and a third of one of 30. Rounded up, four of the eight requests
        // hit.
        assert_eq!(clairvoyant(&workload, 10, 1, &costs).misses, 4);
        assert_eq!(clairvoyant(&workload, 20, 1, &costs).misses, 3);
        assert_eq!(clairvoyant(&workload, 5, 1, &costs).misses, 8, "nothing fits");
        assert_eq!(unbounded(&workload, 1, &costs).misses, 3);
        assert_eq!(unbounded_after(&workload, 3, 1, &costs).misses, 0);
        // The room is 50 after requests 0 1 2. The parts of the intervals within it take 0, 10, 20 and 20;
        // item 2 takes 40.
        assert_eq!(clairvoyant_after(&workload, 3, 10, 1, &costs).misses, 1);
        assert_eq!(clairvoyant_after(&workload, 3, 5, 1, &costs).misses, 5);
    }

    proptest! {
        #[test]
        fn no_cache_does_better(requests in prop::collection::vec(0..12_u32, 1..300), capacity in 1..400_u64, warmup in 0..50_usize) {
            let items = (0..12).map(|i| Item::file(TargetId(i), 5 + 11 * (i % 5))).collect();
            let workload = Workload { items, requests, times: Vec::new() };
            let costs = Lard98::default();
            let bound = clairvoyant_after(&workload, warmup, capacity, 1, &costs);
            let limit = unbounded_after(&workload, warmup, 1, &costs);
            prop_assert!(bound.misses >= limit.misses && bound.bytes_missed >= limit.bytes_missed);
            for kind in CacheKind::ALL {
                let mut cache = ByteCache::new(kind, Bytes(capacity), Bytes(u64::MAX));
                let (mut misses, mut bytes_missed, mut disk_ns) = (0, 0, 0);
                for (at, item) in workload.requests.iter().enumerate() {
                    let size = workload.items[*item as usize].bytes;
                    if !cache.touch(item) {
                        cache.insert(*item, Bytes(size), &mut Vec::new());
                        if at >= warmup {
                            (misses, bytes_missed) = (misses + 1, bytes_missed + size);
                            disk_ns += costs.read_ns(size);
                        }
                    }
                }
                prop_assert!(bound.misses <= misses && bound.bytes_missed <= bytes_missed, "{kind}");
                let measured = &workload.requests[warmup.min(workload.requests.len())..];
                let cpu_ns: u64 =
                    measured.iter().map(|item| costs.hit_ns(workload.items[*item as usize].bytes)).sum();
                let reached = measured.len() as f64 * 1e9 / (cpu_ns.max(disk_ns).max(1)) as f64;
                prop_assert!(reached <= bound.throughput * 1.000_001, "{kind}");
            }
        }
    }
}
