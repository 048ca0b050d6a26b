//! What follows from membership alone (rings, tables, lists) and is made anew when that changes.
//!
//! A policy keeps one [`PerMembership`]; its route has one group of nodes, so the policy sees one membership. What is
//! kept is a pure function of the open nodes' names, weights and slots. Two switches with the same nodes therefore
//! make the same, whatever order the nodes came in, and a record is replayed with the same.
//!
//! Making a table takes milliseconds. While one thread makes it, the others go on with the one before, whose nodes are
//! looked at before they are used; the first one of all, and one that is recorded, is waited for.

use crate::id::NodeId;
use crate::nodes::Sight;
use arc_swap::{ArcSwapOption, Guard};
use core::fmt;
use core::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// A node that takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Member {
    /// Its slot.
    pub(super) node: NodeId,
    /// XXH3-64 of its name: what its points and its rank are made from, so that a node that comes back, or that sits
    /// in another slot at another switch, gets the same.
    pub(super) identity: u64,
    /// 1000 = 1.0.
    pub(super) weight_milli: u32,
}

/// The open nodes, in an order that does not depend on their slots. O(n log n).
pub(super) fn members(nodes: Sight<'_>) -> Vec<Member> {
    let all = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
    let open = all.filter(|node| nodes.is_open(*node));
    let member = |node| Member {
        node,
        identity: xxhash_rust::xxh3::xxh3_64(nodes.name(node).as_bytes()),
        weight_milli: nodes.weight(node).milli(),
    };
    let mut members: Vec<Member> = open.map(member).collect();
    members.sort_unstable_by_key(|member| (member.identity, member.node));
    members
}

/// Something derived from the membership.
pub(super) struct PerMembership<T> {
    current: ArcSwapOption<Made<T>>,
    making: Mutex<()>,
}

struct Made<T> {
    epoch: u64,
    value: T,
}

/// What is current, for as long as it is looked at.
pub(super) struct Current<T>(Guard<Option<Arc<Made<T>>>>);

impl<T> Deref for Current<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.as_ref().expect("it was made before it was handed out").value
    }
}

impl<T> Default for PerMembership<T> {
    fn default() -> Self {
        Self { current: ArcSwapOption::empty(), making: Mutex::new(()) }
    }
}

impl<T> PerMembership<T> {
    /// What `make` makes of the membership, made at most once for each.
    #[inline]
    pub(super) fn of(&self, nodes: Sight<'_>, make: impl FnOnce(Vec<Member>) -> T) -> Current<T> {
        let current = self.current.load();
        match &*current {
            Some(made) if made.epoch == nodes.members_epoch() => Current(current),
            _ => self.renew(current, nodes, make),
        }
    }

    #[cold]
    fn renew(
        &self,
        old: Guard<Option<Arc<Made<T>>>>,
        nodes: Sight<'_>,
        make: impl FnOnce(Vec<Member>) -> T,
    ) -> Current<T> {
        let Some(_making) = self.turn(old.is_some() && nodes.is_live()) else { return Current(old) };
        // Read before the nodes are: a change in between is seen by the next request.
        let epoch = nodes.members_epoch();
        let current = self.current.load();
        if current.as_ref().is_some_and(|made| made.epoch == epoch) {
            return Current(current);
        }
        self.current.store(Some(Arc::new(Made { epoch, value: make(members(nodes)) })));
        Current(self.current.load())
    }

    /// The right to make the next; `None` if another thread has it and there is something to go on with.
    fn turn(&self, may_go_on: bool) -> Option<MutexGuard<'_, ()>> {
        if !may_go_on {
            return Some(self.making.lock().unwrap_or_else(PoisonError::into_inner));
        }
        match self.making.try_lock() {
            Ok(turn) => Some(turn),
            Err(TryLockError::Poisoned(turn)) => Some(turn.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl<T> fmt::Debug for PerMembership<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epoch = self.current.load().as_ref().map(|made| made.epoch);
        f.debug_struct("PerMembership").field("epoch", &epoch).finish_non_exhaustive()
    }
}

/// Maps a hash evenly to 0..n without a division (Lemire, TOMACS 2019).
pub(super) const fn scale(hash: u64, n: u64) -> u64 {
    ((hash as u128 * n as u128) >> 64) as u64
}
