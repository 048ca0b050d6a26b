//! The stored targets, by the ids that a switch uses, and the subscribers to changes.
//!
//! A switch sends a target's id in the request header `larder-target`, as 16 hexadecimal digits. The entries
//! that the request adds to the cache belong to that target: a whole object or its chunks. Entries without an
//! id are left out. A target is *held* while at least one of its entries is in the cache. A chunked object is
//! held from its first chunk until its last chunk leaves, because most of it still needs no read. The same
//! holds for several objects under one id.
//!
//! Changes are sent to the subscribers in order, under the cache's lock: an eviction precedes the insertion
//! that caused it. A subscriber receives changes first and then reads the held targets page by page, in the
//! order of insertion. A change that a page already contains does no harm.
//!
//! Cost: two look-ups in an ordered map for each entry with an id that is stored or evicted. Memory: about 100
//! bytes per held target. There are never more held targets than entries.

use larder_core::TargetId;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Instant;
use tokio::sync::mpsc;

/// Targets in one page.
const PAGE: usize = 1_024;

/// A change of the stored targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResidencyChange {
    /// The target is stored from now on; the length in bytes of the object that brought it.
    Stored(TargetId, u64),
    /// No entry of the target is stored any more.
    Evicted(TargetId),
}

/// A change and the time at which it happened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResidencyEvent {
    pub(crate) change: ResidencyChange,
    pub(crate) at: Instant,
}

/// A target that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Resident {
    /// The target's number in the order of insertion.
    pub(crate) sequence: u64,
    pub(crate) target: TargetId,
    /// The length in bytes of the object that brought the target.
    pub(crate) bytes: u64,
}

#[derive(Debug)]
struct Residency {
    sequence: u64,
    entries: u32,
}

#[derive(Debug)]
struct Subscriber {
    changes: mpsc::Sender<ResidencyEvent>,
    has_lagged: Arc<AtomicBool>,
}

/// A subscription to changes of the stored targets.
#[derive(Debug)]
pub(crate) struct Subscription {
    /// The changes since the subscription began. Ends when the subscriber lags too far behind or the node shuts
    /// down.
    pub(crate) changes: mpsc::Receiver<ResidencyEvent>,
    has_lagged: Arc<AtomicBool>,
}

impl Subscription {
    /// Returns whether the subscription was cut because its subscriber lagged behind.
    pub(crate) fn has_lagged(&self) -> bool {
        self.has_lagged.load(Relaxed)
    }
}

/// The stored targets, and the subscribers.
#[derive(Debug, Default)]
pub(crate) struct Residents {
    targets: HashMap<TargetId, Residency>,
    in_order: BTreeMap<u64, (TargetId, u64)>,
    next: u64,
    subscribers: Vec<Subscriber>,
    closed: bool,
}

impl Residents {
    /// Records that an entry of `target` was stored, from an object of `bytes` bytes.
    pub(crate) fn add_entry(&mut self, target: TargetId, bytes: u64) {
        if let Some(residency) = self.targets.get_mut(&target) {
            residency.entries += 1;
            return;
        }
        let sequence = self.next;
        self.next += 1;
        self.targets.insert(target, Residency { sequence, entries: 1 });
        self.in_order.insert(sequence, (target, bytes));
        self.notify(ResidencyChange::Stored(target, bytes));
    }

    /// Records that an entry of `target` left the cache.
    pub(crate) fn remove_entry(&mut self, target: TargetId) {
        let Some(residency) = self.targets.get_mut(&target) else { return };
        residency.entries -= 1;
        if residency.entries == 0 {
            self.in_order.remove(&residency.sequence);
            self.targets.remove(&target);
            self.notify(ResidencyChange::Evicted(target));
        }
    }

    /// Adds a subscriber; `None` if there are already `most` subscribers, or the node shuts down.
    pub(crate) fn subscribe(&mut self, most: usize, backlog: usize) -> Option<Subscription> {
        self.subscribers.retain(|subscriber| !subscriber.changes.is_closed());
        if self.closed || self.subscribers.len() >= most {
            return None;
        }
        let (changes, receiver) = mpsc::channel(backlog);
        let has_lagged = Arc::new(AtomicBool::new(false));
        self.subscribers.push(Subscriber { changes, has_lagged: Arc::clone(&has_lagged) });
        Some(Subscription { changes: receiver, has_lagged })
    }

    /// Returns the next stored targets in the order of insertion, from number `from` on. Empty at the end.
    pub(crate) fn page(&self, from: u64) -> Vec<Resident> {
        let rest = self.in_order.range(from..).take(PAGE);
        rest.map(|(&sequence, &(target, bytes))| Resident { sequence, target, bytes }).collect()
    }

    /// Returns the number of stored targets.
    pub(crate) fn len(&self) -> usize {
        self.targets.len()
    }

    /// Ends all subscriptions for good.
    pub(crate) fn close(&mut self) {
        self.closed = true;
        self.subscribers.clear();
    }

    fn notify(&mut self, change: ResidencyChange) {
        if self.subscribers.is_empty() {
            return;
        }
        let event = ResidencyEvent { change, at: Instant::now() };
        self.subscribers.retain(|subscriber| match subscriber.changes.try_send(event) {
            Ok(()) => true,
            Err(mpsc::error::TrySendError::Closed(_)) => false,
            Err(mpsc::error::TrySendError::Full(_)) => {
                subscriber.has_lagged.store(true, Relaxed);
                false
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn drain_changes(subscription: &mut Subscription) -> Vec<ResidencyChange> {
        std::iter::from_fn(|| subscription.changes.try_recv().ok().map(|event| event.change)).collect()
    }

    #[test]
    fn a_target_is_resident_until_its_last_entry_is_evicted() {
        let mut residents = Residents::default();
        let mut subscription = residents.subscribe(1, 16).expect("there is room");
        let (a, b) = (TargetId(1), TargetId(2));
        residents.add_entry(a, 100);
        residents.add_entry(a, 100);
        residents.remove_entry(a);
        residents.add_entry(b, 7);
        residents.remove_entry(a);
        residents.remove_entry(a);
        let expected =
            [ResidencyChange::Stored(a, 100), ResidencyChange::Stored(b, 7), ResidencyChange::Evicted(a)];
        assert_eq!(drain_changes(&mut subscription), expected);
        assert_eq!(residents.page(0), [Resident { sequence: 1, target: b, bytes: 7 }]);
    }

    #[test]
    fn a_lagging_subscriber_is_disconnected_and_the_others_stay() {
        let mut residents = Residents::default();
        let mut slow = residents.subscribe(2, 2).expect("there is room");
        let mut quick = residents.subscribe(2, 100).expect("there is room");
        assert!(residents.subscribe(2, 2).is_none(), "two are the most");
        for id in 0..5 {
            residents.add_entry(TargetId(id), 1);
        }
        assert_eq!((drain_changes(&mut slow).len(), slow.has_lagged()), (2, true));
        assert_eq!((drain_changes(&mut quick).len(), quick.has_lagged()), (5, false));
        assert!(residents.subscribe(2, 2).is_some(), "the place of the one that was cut is free");
        drop(quick);
        assert!(residents.subscribe(2, 2).is_some(), "and so is the place of one that left");
        residents.close();
        assert!(slow.changes.is_closed() || slow.has_lagged());
        assert!(residents.subscribe(2, 2).is_none(), "nobody is told anything any more");
    }

    #[test]
    fn pages_list_all_targets_in_the_order_of_storing() {
        let mut residents = Residents::default();
        for id in (0..3_000_u64).rev() {
            residents.add_entry(TargetId(id), id);
        }
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let page = residents.page(from);
            let Some(last) = page.last() else { break };
            from = last.sequence + 1;
            seen.extend(page.iter().map(|resident| resident.target.0));
        }
        assert_eq!(seen, (0..3_000).rev().collect::<Vec<_>>());
    }

    proptest! {
        /// A subscriber that follows the changes knows the stored targets.
        #[test]
        fn events_add_up_to_the_resident_targets(steps in prop::collection::vec((0..6_u64, any::<bool>()), 0..200)) {
            let mut residents = Residents::default();
            let mut subscription = residents.subscribe(1, 1_000).expect("there is room");
            let mut entries = [0_u32; 6];
            for (id, hold) in steps {
                if hold {
                    entries[id as usize] += 1;
                    residents.add_entry(TargetId(id), 1);
                } else if entries[id as usize] > 0 {
                    entries[id as usize] -= 1;
                    residents.remove_entry(TargetId(id));
                }
            }
            let mut replayed = BTreeSet::new();
            for change in drain_changes(&mut subscription) {
                match change {
                    ResidencyChange::Stored(target, _) => prop_assert!(replayed.insert(target.0), "stored twice"),
                    ResidencyChange::Evicted(target) => prop_assert!(replayed.remove(&target.0), "evicted twice"),
                }
            }
            let held: BTreeSet<u64> = residents.page(0).iter().map(|resident| resident.target.0).collect();
            prop_assert_eq!(&replayed, &held);
            prop_assert_eq!(held, (0..6).filter(|id| entries[*id as usize] > 0).collect());
            prop_assert_eq!(residents.len(), replayed.len());
        }
    }
}
