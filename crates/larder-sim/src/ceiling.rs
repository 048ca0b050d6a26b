//! What no policy can exceed, so that every table has its ceiling.
//!
//! Two memories that cannot be built stand for all policies: one that never forgets, and one that knows the future.
//! Both are the whole cluster's memory in one piece, used by perfectly balanced nodes, so a real cluster can only miss
//! more and balance worse.
//!
//! * *unbounded*: only the first use of an item misses;
//! * *clairvoyant*: the item whose next use lies farthest in the future leaves first (Belady, IBM Systems Journal
//!   1966), and an item that would be the first to leave is not kept. With items of different sizes this is no exact
//!   optimum, which is hard to compute; it is the usual reference, and may be exceeded slightly.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::cost::Lard98;
use crate::workload::Workload;

/// What a memory misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Requests that miss.
    pub misses: u64,
    /// Bytes of these.
    pub bytes_missed: u64,
    /// Share of the requests that miss, 0 to 1.
    pub miss_ratio: f64,
    /// Requests per second that nodes of the cost model could serve with so few misses, if they were evenly busy.
    pub throughput: f64,
}

/// A memory without limit. O(requests).
pub fn unbounded(workload: &Workload, nodes: usize, costs: &Lard98) -> Ceiling {
    unbounded_after(workload, 0, nodes, costs)
}

/// [`unbounded`], the first `warmup` requests not counted.
pub fn unbounded_after(workload: &Workload, warmup: usize, nodes: usize, costs: &Lard98) -> Ceiling {
    let mut seen = vec![false; workload.items.len()];
    let asked = workload.requests.iter().copied().enumerate();
    let missed = asked.filter(|(_, item)| !core::mem::replace(&mut seen[*item as usize], true));
    of(workload, warmup, missed, nodes, costs)
}

/// A memory of `bytes` that knows the future. O(requests * log items).
pub fn clairvoyant(workload: &Workload, bytes: u64, nodes: usize, costs: &Lard98) -> Ceiling {
    clairvoyant_after(workload, 0, bytes, nodes, costs)
}

/// [`clairvoyant`], the first `warmup` requests not counted.
pub fn clairvoyant_after(
    workload: &Workload,
    warmup: usize,
    bytes: u64,
    nodes: usize,
    costs: &Lard98,
) -> Ceiling {
    let next = next_uses(workload);
    // Ordered by next use: the last one leaves first. `held[item]` is its place in the order.
    let mut order: BTreeSet<(u32, u32)> = BTreeSet::new();
    let mut held: Vec<Option<u32>> = vec![None; workload.items.len()];
    let mut used = 0_u64;
    let mut missed = Vec::new();
    for (at, item) in workload.requests.iter().copied().enumerate() {
        let size = workload.items[item as usize].memory;
        match held[item as usize].take() {
            Some(place) => {
                order.remove(&(place, item));
                used -= size;
            }
            None => missed.push((at, item)),
        }
        if next[at] == NEVER || size > bytes {
            continue;
        }
        order.insert((next[at], item));
        held[item as usize] = Some(next[at]);
        used += size;
        while used > bytes {
            let Some((_, farthest)) = order.pop_last() else { break };
            held[farthest as usize] = None;
            used -= workload.items[farthest as usize].memory;
        }
    }
    of(workload, warmup, missed.into_iter(), nodes, costs)
}

const NEVER: u32 = u32::MAX;

/// For each request, when its item is asked for next.
fn next_uses(workload: &Workload) -> Vec<u32> {
    let mut next = vec![NEVER; workload.requests.len()];
    let mut upcoming = vec![NEVER; workload.items.len()];
    for (at, item) in workload.requests.iter().enumerate().rev() {
        next[at] = core::mem::replace(&mut upcoming[*item as usize], at as u32);
    }
    next
}

/// What the misses, each with the number of its request, come to.
fn of(
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
    use larder_core::TargetId;

    fn workload(requests: &[u32]) -> Workload {
        let items = (0..8).map(|i| Item::file(TargetId(i), 10)).collect();
        Workload { items, requests: requests.to_vec(), times: Vec::new() }
    }

    #[test]
    fn the_future_is_used() {
        // Room for two of 0 1 2 0 1 0 1 2: keeping 0 and 1 and never 2 misses 0, 1, 2 and 2 again.
        let workload = workload(&[0, 1, 2, 0, 1, 0, 1, 2]);
        let costs = Lard98::default();
        assert_eq!(clairvoyant(&workload, 20, 1, &costs).misses, 4);
        assert_eq!(clairvoyant(&workload, 30, 1, &costs).misses, 3);
        assert_eq!(clairvoyant(&workload, 5, 1, &costs).misses, 8);
        assert_eq!(unbounded(&workload, 1, &costs).misses, 3);
        // After 0 1 2 the first uses are over; 2 at the end misses again in the small memory.
        assert_eq!(clairvoyant_after(&workload, 3, 20, 1, &costs).misses, 1);
        assert_eq!(unbounded_after(&workload, 3, 1, &costs).misses, 0);
    }
}
