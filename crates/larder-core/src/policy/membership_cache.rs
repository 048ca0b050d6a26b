//! A cache of values that are derived from the membership alone (rings, tables, lists) and rebuilt when it changes.
//!
//! A policy has one [`MembershipCache`]. Its route has one group of nodes, so the policy sees one membership. The
//! cached value is a pure function of the open nodes' names, weights and slots. Two switches with the same nodes
//! therefore build the same value, in whatever order the nodes joined, and a replay uses the same value.
//!
//! Building a table takes milliseconds. While one thread builds it, the other threads use the previous value and
//! check its nodes before they use them. Threads wait for the first value, and if the decision is recorded.

use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::sync::{Guard, SwapOption};
use crate::sync::{Mutex, MutexGuard};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::ops::Deref;

/// A node that takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OpenNode {
    /// The node's slot.
    pub(super) node: NodeId,
    /// The XXH3-64 of the node's name, from which its points and its rank are derived. A node that returns, or has
    /// another slot at another switch, gets the same points and rank.
    pub(super) identity: u64,
    /// The weight, 1000 = 1.0.
    pub(super) weight_milli: u32,
}

/// Returns the open nodes, in an order that does not depend on their slots. O(n log n).
pub(super) fn sorted_open_nodes(nodes: ClusterView<'_>) -> Vec<OpenNode> {
    let all = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
    let open = all.filter(|node| nodes.is_open(*node));
    let member = |node| OpenNode {
        node,
        identity: xxhash_rust::xxh3::xxh3_64(nodes.name(node).as_bytes()),
        weight_milli: nodes.weight(node).milli(),
    };
    let mut members: Vec<OpenNode> = open.map(member).collect();
    members.sort_unstable_by_key(|member| (member.identity, member.node));
    members
}

/// A value derived from the membership.
pub(super) struct MembershipCache<T> {
    current: SwapOption<CachedValue<T>>,
    building: Mutex<()>,
}

struct CachedValue<T> {
    epoch: u64,
    value: T,
}

/// A guard of the cached value.
pub(super) struct CacheGuard<T>(Guard<Option<Arc<CachedValue<T>>>>);

impl<T> Deref for CacheGuard<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.as_ref().expect("it was made before it was handed out").value
    }
}

impl<T> Default for MembershipCache<T> {
    fn default() -> Self {
        Self { current: SwapOption::empty(), building: Mutex::new(()) }
    }
}

impl<T> MembershipCache<T> {
    /// Returns the value that `make` derives from the membership. `make` is called at most once for each membership.
    #[inline]
    pub(super) fn get_or_build(
        &self,
        nodes: ClusterView<'_>,
        make: impl FnOnce(Vec<OpenNode>) -> T,
    ) -> CacheGuard<T> {
        let current = self.current.load();
        match &*current {
            Some(cached) if cached.epoch == nodes.members_epoch() => CacheGuard(current),
            _ => self.rebuild(current, nodes, make),
        }
    }

    #[cold]
    fn rebuild(
        &self,
        old: Guard<Option<Arc<CachedValue<T>>>>,
        nodes: ClusterView<'_>,
        make: impl FnOnce(Vec<OpenNode>) -> T,
    ) -> CacheGuard<T> {
        let Some(_making) = self.build_lock(old.is_some() && nodes.is_live()) else { return CacheGuard(old) };
        // The epoch is read before the nodes, so that the next request notices a change in between.
        let epoch = nodes.members_epoch();
        let current = self.current.load();
        if current.as_ref().is_some_and(|cached| cached.epoch == epoch) {
            return CacheGuard(current);
        }
        self.current.store(Some(Arc::new(CachedValue { epoch, value: make(sorted_open_nodes(nodes)) })));
        CacheGuard(self.current.load())
    }

    /// Returns the right to build the next value. `None` if another thread has the right and the previous value can
    /// be used.
    fn build_lock(&self, may_go_on: bool) -> Option<MutexGuard<'_, ()>> {
        if !may_go_on {
            return Some(self.building.lock());
        }
        self.building.try_lock()
    }
}

impl<T> fmt::Debug for MembershipCache<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let epoch = self.current.load().as_ref().map(|cached| cached.epoch);
        f.debug_struct("PerMembership").field("epoch", &epoch).finish_non_exhaustive()
    }
}

/// Maps a hash evenly to 0..n without a division (Lemire, TOMACS 2019).
pub(super) const fn scale(hash: u64, n: u64) -> u64 {
    ((hash as u128 * n as u128) >> 64) as u64
}
