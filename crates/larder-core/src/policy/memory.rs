//! What a policy has learned, taken out of one dispatcher and laid into another: so that the process that takes over from
//! one that ends does not begin anew.
//!
//! Server sets mean the same to every policy that keeps some, so they also pass from one policy to another. The rest is
//! numbers that only the policy that wrote them can read. What follows from the nodes' reports is not in it: nodes are
//! asked anew.

use super::targets::Targets;
use crate::id::{NodeId, TargetId};
use crate::nodes::Sight;
use crate::time::Time;

/// What a policy has learned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    pub(super) rows: Vec<Row>,
    /// The servers of all targets, one after the other.
    pub(super) servers: Vec<NodeId>,
    /// Turns, lots and estimates, for the policy that wrote them.
    pub(crate) numbers: Vec<u64>,
    /// What is known of single nodes, for the policy that wrote it.
    pub(crate) of_nodes: Vec<(NodeId, Vec<u64>)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Row {
    target: TargetId,
    changed: Time,
    used: bool,
    /// Where its servers end.
    end: u32,
}

/// A target and its servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSet<'a> {
    /// The target.
    pub target: TargetId,
    /// When the set last changed.
    pub changed: Time,
    /// Whether it was used lately.
    pub used: bool,
    /// Its servers, in the order in which they were added; at least one.
    pub servers: &'a [NodeId],
}

impl Memory {
    /// Adds a target. One without servers is left out, and so is what is beyond 2^32 servers.
    pub(crate) fn push(
        &mut self,
        (target, changed, used): (TargetId, Time, bool),
        servers: impl Iterator<Item = NodeId>,
    ) {
        let before = self.servers.len();
        self.servers.extend(servers);
        match u32::try_from(self.servers.len()) {
            Ok(end) if self.servers.len() > before => self.rows.push(Row { target, changed, used, end }),
            _ => self.servers.truncate(before),
        }
    }

    /// The targets and their servers, in the order in which they were added.
    pub fn sets(&self) -> impl Iterator<Item = ServerSet<'_>> {
        let mut begin = 0;
        self.rows.iter().map(move |row| {
            let end = row.end as usize;
            let servers = &self.servers[begin..end];
            begin = end;
            ServerSet { target: row.target, changed: row.changed, used: row.used, servers }
        })
    }

    /// Some of the server sets, in their order, each as `change` makes it: when it last changed, and its servers. Those for
    /// which it gives none are left out.
    #[must_use]
    pub fn map_sets<I: Iterator<Item = NodeId>>(
        &self,
        change: impl Fn(&ServerSet<'_>) -> Option<(Time, I)>,
    ) -> Self {
        let mut memory = Self::default();
        for set in self.sets() {
            if let Some((changed, servers)) = change(&set) {
                memory.push((set.target, changed, set.used), servers);
            }
        }
        memory
    }

    /// Number of targets.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.numbers.is_empty() && self.of_nodes.is_empty()
    }

    /// The same in another dispatcher, whose nodes have other places; what is known of nodes that it does not have is
    /// left out.
    #[must_use]
    pub fn with_nodes(&self, place: impl Fn(NodeId) -> Option<NodeId>) -> Self {
        let of_nodes = self.of_nodes.iter();
        let mut memory = Self {
            numbers: self.numbers.clone(),
            of_nodes: of_nodes.filter_map(|(node, of)| Some((place(*node)?, of.clone()))).collect(),
            ..Self::default()
        };
        for set in self.sets() {
            memory.push(
                (set.target, set.changed, set.used),
                set.servers.iter().filter_map(|node| place(*node)),
            );
        }
        memory
    }

    /// The server sets alone.
    #[must_use]
    pub fn sets_only(&self) -> Self {
        Self { numbers: Vec::new(), of_nodes: Vec::new(), ..self.clone() }
    }
}

impl Targets {
    /// All sets.
    pub(super) fn memory(&self, nodes: Sight<'_>) -> Memory {
        let mut memory = Memory::default();
        self.each(nodes, |entry, servers| memory.push(entry, servers));
        memory
    }

    /// Lays sets into the map, in place of those of the same targets.
    pub(super) fn remember(&self, memory: &Memory, nodes: Sight<'_>) {
        for set in memory.sets() {
            let mut shard = self.shard(set.target);
            let slot = shard.touch(set.target);
            let stamp = set.changed + shard.ahead;
            shard.lay(slot, set.servers, nodes.epoch(), stamp, set.changed);
            if set.used {
                shard.touch(set.target);
            }
        }
    }
}
