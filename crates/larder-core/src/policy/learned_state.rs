//! The learned state of a policy, which is passed from one dispatcher to another. At a reload the new process
//! therefore starts with the state of its predecessor.
//!
//! Server sets mean the same to every policy that stores them, so they also pass from one policy to another. The
//! rest is numbers that only the policy that wrote them can read. Values that depend on the nodes' reports are not
//! included, because the nodes are asked again.

use super::targets::TargetMap;
use crate::id::{NodeId, TargetId};
use crate::nodes::ClusterView;
use crate::time::Time;
use alloc::vec::Vec;

/// The learned state of a policy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LearnedState {
    pub(super) rows: Vec<SetRow>,
    /// The servers of all targets, concatenated.
    pub(super) servers: Vec<NodeId>,
    /// Turns, random draws and estimates, for the policy that wrote them.
    pub(crate) numbers: Vec<u64>,
    /// Numbers for single nodes, for the policy that wrote them.
    pub(crate) per_node: Vec<(NodeId, Vec<u64>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetRow {
    target: TargetId,
    changed: Time,
    used: bool,
    /// The end of the target's range in `servers`.
    end: u32,
}

/// A target and its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSet<'a> {
    /// The target.
    pub target: TargetId,
    /// The time at which the set last changed.
    pub changed: Time,
    /// Whether the set was used recently.
    pub used: bool,
    /// The servers, in the order in which they were added; at least one.
    pub servers: &'a [NodeId],
}

impl LearnedState {
    /// Adds a target. A target without servers is ignored, as is a target that would exceed 2^32 servers in all.
    pub(crate) fn push(
        &mut self,
        (target, changed, used): (TargetId, Time, bool),
        servers: impl Iterator<Item = NodeId>,
    ) {
        let before = self.servers.len();
        self.servers.extend(servers);
        match u32::try_from(self.servers.len()) {
            Ok(end) if self.servers.len() > before => self.rows.push(SetRow { target, changed, used, end }),
            _ => self.servers.truncate(before),
        }
    }

    /// Returns the server sets, in the order in which they were added.
    pub fn sets(&self) -> impl Iterator<Item = ServerSet<'_>> {
        let mut begin = 0;
        self.rows.iter().map(move |row| {
            let end = row.end as usize;
            let servers = &self.servers[begin..end];
            begin = end;
            ServerSet { target: row.target, changed: row.changed, used: row.used, servers }
        })
    }

    /// Returns the number of targets.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether the state is empty.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.numbers.is_empty() && self.per_node.is_empty()
    }

    /// Returns this state with node ids translated by `place` for another dispatcher. Values of nodes that the other
    /// dispatcher does not have are omitted.
    #[must_use]
    pub fn with_nodes(&self, place: impl Fn(NodeId) -> Option<NodeId>) -> Self {
        let per_node = self.per_node.iter();
        let mut saved = Self {
            numbers: self.numbers.clone(),
            per_node: per_node.filter_map(|(node, of)| Some((place(*node)?, of.clone()))).collect(),
            ..Self::default()
        };
        for set in self.sets() {
            saved.push(
                (set.target, set.changed, set.used),
                set.servers.iter().filter_map(|node| place(*node)),
            );
        }
        saved
    }

    /// Returns this state for a clock that shows `now`. If a set changed after that, the state comes from another clock, such as
    /// that of the machine before it was restarted: then its sets count as changed now, and the numbers, which may contain times,
    /// are omitted. Otherwise sets would not change before the clock has reached the old times.
    #[must_use]
    pub fn not_after(mut self, now: Time) -> Self {
        if self.rows.iter().all(|row| row.changed <= now) {
            return self;
        }
        self.rows.iter_mut().for_each(|row| row.changed = row.changed.min(now));
        Self { numbers: Vec::new(), per_node: Vec::new(), ..self }
    }

    /// Returns the server sets without the numbers.
    #[must_use]
    pub fn sets_only(&self) -> Self {
        Self { numbers: Vec::new(), per_node: Vec::new(), ..self.clone() }
    }
}

impl TargetMap {
    /// Returns all server sets as learned state.
    pub(super) fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        let mut saved = LearnedState::default();
        self.each(nodes, |entry, servers| saved.push(entry, servers));
        saved
    }

    /// Inserts server sets into the map, in place of the sets of the same targets.
    pub(super) fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        for set in saved.sets() {
            let mut shard = self.shard(set.target);
            let slot = shard.touch(set.target);
            let stamp = set.changed + shard.clock_offset;
            shard.store_received(slot, set.servers, nodes.epoch(), stamp, set.changed);
            if set.used {
                shard.touch(set.target);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    #[test]
    fn times_of_another_clock_are_replaced() {
        let mut state = LearnedState { numbers: vec![7], ..LearnedState::default() };
        state.push((TargetId(1), Time::from_secs(10), true), [NodeId(0)].into_iter());
        state.push((TargetId(2), Time::from_secs(90), true), [NodeId(1)].into_iter());
        assert_eq!(state.clone().not_after(Time::from_secs(90)), state, "the same clock");
        let other = state.not_after(Time::from_secs(20));
        let changed: Vec<Time> = other.sets().map(|set| set.changed).collect();
        assert_eq!(changed, [Time::from_secs(10), Time::from_secs(20)]);
        assert!(other.numbers.is_empty());
    }
}
