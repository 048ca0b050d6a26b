//! The workload of a simulated cluster: the items, and the requests in their order.

use larder_core::class::ServiceClass;
use larder_core::{RouteId, TargetId, Time};
use larder_trace::Trace;

use crate::SimError;

/// An item that clients request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// The item's target id for the dispatcher.
    pub id: TargetId,
    /// Size of the reply in bytes.
    pub bytes: u64,
    /// Memory that the item takes, in bytes: the size of its reply. In samples of a log, an item that stands
    /// for a part of its requests takes that part of its memory.
    pub memory: u64,
    /// The item's service class.
    pub class: ServiceClass,
    /// The route of the item's requests.
    pub route: RouteId,
    /// Whether a node may keep the item in memory.
    pub cacheable: bool,
    /// Processor time beyond the time for its bytes, in ns.
    pub cpu_ns: u64,
    /// Time of the node's back-end server (database), in ns.
    pub back_ns: u64,
}

impl Item {
    /// Creates a file: class N, cacheable, no demand beyond its bytes.
    pub const fn file(id: TargetId, bytes: u64) -> Self {
        Self {
            id,
            bytes,
            memory: bytes,
            class: ServiceClass::N,
            route: RouteId::DEFAULT,
            cacheable: true,
            cpu_ns: 0,
            back_ns: 0,
        }
    }
}

/// Items and requests for them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workload {
    /// The items, at most 2^32.
    pub items: Vec<Item>,
    /// The requests in order, as indexes into `items`.
    pub requests: Vec<u32>,
    /// The arrival times, never decreasing: one per request, or none if the trace has no times.
    pub times: Vec<Time>,
}

impl Workload {
    /// Creates the workload of a trace. An item has the size of its target's largest reply. Times are kept if
    /// the trace has any.
    pub fn from_trace(trace: &Trace) -> Self {
        let item = |target: &larder_trace::Target| {
            Item::file(TargetId::of(target.name.as_bytes()), target.size.get().max(1))
        };
        let timed = trace.requests.last().is_some_and(|last| last.time > Time::ZERO);
        Self {
            items: trace.targets.iter().map(item).collect(),
            requests: trace.requests.iter().map(|request| request.target).collect(),
            times: if timed {
                trace.requests.iter().map(|request| request.time).collect()
            } else {
                Vec::new()
            },
        }
    }

    /// Returns the shares of nodes for each service class, in proportion to the requests of the classes
    /// ([`StaticSettings::shares`](larder_core::policy::StaticSettings::shares)). A class without requests
    /// has share 0. If all requests are of one class, that class has share 1.
    pub fn class_shares(&self) -> [u32; ServiceClass::COUNT] {
        let mut counts = [0_u64; ServiceClass::COUNT];
        for item in &self.requests {
            counts[self.items[*item as usize].class.index()] += 1;
        }
        let most = counts.into_iter().max().unwrap_or(0).max(1);
        if counts.iter().filter(|count| **count > 0).count() < 2 {
            return counts.map(|count| u32::from(count > 0));
        }
        // Shares are thousandths of the largest count; only the ratios matter.
        counts.map(|count| if count == 0 { 0 } else { (count * 1_000 / most).max(1) as u32 })
    }

    /// Ranks the items by the number of their requests, most requested first, equal ones by index:
    /// `ranks[item]`.
    pub fn ranks(&self) -> Vec<u32> {
        let counts = self.counts();
        let mut order: Vec<u32> = (0..self.items.len() as u32).collect();
        order.sort_by_key(|item| (core::cmp::Reverse(counts[*item as usize]), *item));
        let mut ranks = vec![0; order.len()];
        for (rank, item) in (0_u32..).zip(order) {
            ranks[item as usize] = rank;
        }
        ranks
    }

    /// Returns the number of requests of each item.
    pub fn counts(&self) -> Vec<u32> {
        let mut counts = vec![0_u32; self.items.len()];
        for item in &self.requests {
            counts[*item as usize] += 1;
        }
        counts
    }

    /// Returns the bytes of all items together.
    pub fn bytes(&self) -> u64 {
        self.items.iter().map(|item| item.bytes).sum()
    }

    pub(crate) fn check(&self) -> Result<(), SimError> {
        let items = self.items.len();
        if self.requests.iter().any(|item| *item as usize >= items) {
            return Err(SimError::Workload("a request names an item that does not exist"));
        }
        if !self.times.is_empty() && self.times.len() != self.requests.len() {
            return Err(SimError::Workload("there must be as many times as requests, or none"));
        }
        if !self.times.is_sorted() {
            return Err(SimError::Workload("the times must not fall"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_as_the_classes_requests() {
        let item = |id, class| Item { class, ..Item::file(TargetId(id), 1) };
        let items = vec![item(0, ServiceClass::N), item(1, ServiceClass::Db), item(2, ServiceClass::Cb)];
        let shares = |counts: [usize; 3]| {
            let requests = (0_u32..).zip(counts).flat_map(|(item, count)| vec![item; count]).collect();
            Workload { items: items.clone(), requests, times: Vec::new() }.class_shares()
        };
        assert_eq!(shares([500, 0, 0]), [1, 0, 0, 0], "all nodes are for files");
        assert_eq!(shares([0, 7, 0]), [0, 1, 0, 0]);
        assert_eq!(shares([600, 300, 0]), [1_000, 500, 0, 0]);
        assert_eq!(shares([90_000, 0, 1]), [1_000, 0, 1, 0], "whoever asks has a share");
        assert_eq!(shares([0, 0, 0]), [0; 4]);
    }
}
