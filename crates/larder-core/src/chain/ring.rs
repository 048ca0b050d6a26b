//! A ring of consistent hashing with 256 points per node. It is rebuilt if the open nodes change.

use super::candidate::Candidate;
use crate::id::NodeId;
use crate::nodes::mix;
use alloc::vec::Vec;

/// The points of a node on the ring.
const POINTS: u64 = 256;

#[derive(Debug)]
pub(super) struct HashRing {
    /// Selects the hash function of the nodes.
    seed: u64,
    /// The points in ascending order.
    points: Vec<(u64, NodeId)>,
    /// The nodes of the ring.
    members: Vec<NodeId>,
}

impl HashRing {
    pub(super) const fn new(seed: u64) -> Self {
        Self { seed, points: Vec::new(), members: Vec::new() }
    }

    /// Rebuilds the ring if the candidates are not its nodes.
    pub(super) fn update(&mut self, candidates: &[Candidate]) {
        if self.members.iter().copied().eq(candidates.iter().map(|candidate| candidate.node)) {
            return;
        }
        self.members = candidates.iter().map(|candidate| candidate.node).collect();
        let seed = self.seed;
        let point = |node: NodeId, at: u64| (mix(mix((u64::from(node.0) + 1) ^ seed) ^ at), node);
        let points = self.members.iter().flat_map(|node| (0..POINTS).map(move |at| point(*node, at)));
        self.points = points.collect();
        self.points.sort_unstable();
    }

    /// Returns the nodes of the points clockwise from a hash. Each node occurs many times.
    pub(super) fn clockwise(&self, hash: u64) -> impl Iterator<Item = NodeId> {
        let start = self.points.partition_point(|(point, _)| *point < hash);
        self.points[start..].iter().chain(&self.points[..start]).map(|(_, node)| *node)
    }
}
