//! `lard-prefix`: LARD with replication for chains: the deepest known block whose servers have room.
//!
//! ```text
//! cost(n) = (prefill(n) + (1 + W) missing(n)) * (1 + R(n) / (1 + R))
//! n       = the node with the least cost; among equal nodes the one whose next victim is the oldest
//! ```
//!
//! prefill(n) tokens to prefill at n; missing(n) tokens of this prompt that n does not have; R(n) requests at n; W waiting
//! requests and R requests per open node, on average.
//!
//! The first factor is the work before the reply begins. Tokens that are missing delay this request, and also the requests
//! that come to the node after it: about as many as wait at a node. So locality weighs more as the load grows, and
//! without load each request takes the way that is shortest for itself. The second factor is the share of the node's
//! iterations that the request gets: sequences that decode take time and memory, even if all their prompts were cached.
//! It compares nodes with their mean and needs no unit.
//!
//! A server of the deepest known block *has room* if it costs less than a node that knows less. While it has room, the
//! branch stays where it is. A hot branch fills its servers until another node costs less, although this node must prefill the
//! branch; the node then has the branch too, and later requests choose between all servers: LARD's replication. A replica
//! that is no longer used ages in its node's cache, its credits with it, and ends when it is evicted. Nothing has to
//! be tuned for a cluster: costs are in tokens, and load is relative to the mean.
//!
//! Prompts that no node knows better than the others go to the least cost too. Among equal nodes they replace the blocks
//! that were unused for the longest time in the cluster, so the caches together evict about as one large cache would (LARD's LB/GC).
//!
//! Differences from LARD/R (Pai et al., ASPLOS'98, section 2.5): no thresholds T_low and T_high, since prompts differ in
//! their work by orders of magnitude; no period K, since credits end by eviction. Parameters: none. State: the turn among equal
//! nodes. Cost: O(nodes), and O(nodes * blocks) for the credits.

use super::api::{ChainPolicy, least_by};
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::policy::{Choice, Reason};
use core::cmp::Reverse;

#[derive(Debug, Default)]
pub(super) struct LardPrefix {
    turn: usize,
}

/// Sums over the candidates.
#[derive(Clone, Copy, Debug)]
struct ClusterLoad {
    nodes: u128,
    requests: u128,
    waiting: u128,
}

impl ClusterLoad {
    fn of(candidates: &[Candidate]) -> Self {
        let sum = |value: fn(&Candidate) -> u32| candidates.iter().map(|c| u128::from(value(c))).sum();
        Self {
            nodes: candidates.len() as u128,
            requests: sum(|candidate| candidate.work.requests),
            waiting: sum(|candidate| candidate.work.waiting),
        }
    }

    /// Returns the cost of a candidate, multiplied by terms that are equal for all.
    fn cost(self, candidate: &Candidate) -> u128 {
        let missing = u128::from(candidate.missing).saturating_mul(self.nodes + self.waiting);
        let tokens = u128::from(candidate.work.prefill).saturating_mul(self.nodes).saturating_add(missing);
        let share = u128::from(candidate.work.requests) * self.nodes + self.requests + self.nodes;
        tokens.saturating_mul(share)
    }
}

impl ChainPolicy for LardPrefix {
    fn pick(&mut self, _request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        self.turn = self.turn.wrapping_add(1);
        let load = ClusterLoad::of(candidates);
        let found =
            least_by(candidates, self.turn, |candidate| (load.cost(candidate), Reverse(candidate.coldness)))?;
        let deepest = candidates.iter().map(|candidate| candidate.credited).max();
        let reason = match found.credited {
            credited if Some(credited) < deepest => Reason::Replicate,
            0 => Reason::First,
            _ => Reason::Local,
        };
        Some(Choice { node: found.node, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Block;
    use crate::chain::{ChainDispatcher, ChainPolicyKind, ChainSettings};
    use crate::id::{NodeId, TargetId};
    use alloc::vec::Vec;

    fn dispatcher(nodes: usize) -> ChainDispatcher {
        let settings = ChainSettings { policy: ChainPolicyKind::LardPrefix, ..ChainSettings::default() };
        ChainDispatcher::new(&settings, &alloc::vec![40_960; nodes]).expect("good settings")
    }

    /// Returns `shared` blocks of the branch, and `own` blocks that only this prompt has.
    fn prompt(branch: u64, shared: u64, number: u64, own: u64) -> Vec<Block> {
        let block = |id| Block { id: TargetId(id), tokens: 512 };
        let shared = (0..shared).map(|at| block(branch * 1_000_000 + at));
        shared.chain((0..own).map(|at| block((branch * 1_000 + number) * 1_000_000 + 500_000 + at))).collect()
    }

    #[test]
    fn a_branch_stays_while_its_server_has_room_and_spreads_when_it_is_hot() {
        let mut dispatcher = dispatcher(4);
        let mut servers = Vec::new();
        let mut works = Vec::new();
        for number in 0..40 {
            let blocks = prompt(1, 8, number, 1);
            let mut decision = dispatcher.arrive(&ChainRequest::new(&blocks)).expect("nodes are open");
            servers.push((decision.node, decision.reason));
            if number == 0 {
                dispatcher.first_token(&mut decision.work);
            }
            works.push((blocks, decision.work));
        }
        let first = servers[0].0;
        assert_eq!(servers[0].1, Reason::First);
        // With k waiting requests the server costs (2,560 k + 2,048) (5 k + 9), and another node (4,608 k + 18,432) (k + 5).
        assert_eq!(servers[1..5], [(first, Reason::Local); 4]);
        assert_eq!(servers[5].1, Reason::Replicate);
        let replica = servers[5].0;
        let at = |node: NodeId| servers[6..].iter().filter(|(server, _)| *server == node).count();
        assert!(at(first) >= 15 && at(replica) >= 15, "both servers are used from then on: {servers:?}");
        for (blocks, work) in works {
            dispatcher.finish(&blocks, work);
        }
    }

    #[test]
    fn an_unused_replica_decays() {
        let mut dispatcher = dispatcher(2);
        let hot = prompt(1, 8, 0, 0);
        let request = ChainRequest::new(&hot);
        let credited = |dispatcher: &ChainDispatcher, node: u16| {
            let candidates = dispatcher.candidates(&request);
            candidates.iter().find(|c| c.node == NodeId(node)).map_or(0, |c| c.credited)
        };
        // While node 0 is closed, node 1 becomes a server too.
        for closed in [1, 0] {
            dispatcher.set_open(NodeId(closed), false);
            let mut decision = dispatcher.arrive(&request).expect("a node is open");
            dispatcher.first_token(&mut decision.work);
            dispatcher.finish(&hot, decision.work);
            dispatcher.set_open(NodeId(closed), true);
        }
        assert!(credited(&dispatcher, 0) > 0 && credited(&dispatcher, 1) > 0);
        // Other prompts fill node 1's memory of 80 blocks.
        dispatcher.set_open(NodeId(0), false);
        for branch in 2..13 {
            let other = prompt(branch, 8, 0, 0);
            let mut decision = dispatcher.arrive(&ChainRequest::new(&other)).expect("a node is open");
            dispatcher.first_token(&mut decision.work);
            dispatcher.finish(&other, decision.work);
        }
        dispatcher.set_open(NodeId(0), true);
        assert!(credited(&dispatcher, 0) > 0, "the used server keeps the branch");
        assert_eq!(credited(&dispatcher, 1), 0, "the replica is evicted, and its credit with it");
    }

    #[test]
    fn new_prompts_replace_what_was_unused_for_the_longest_time() {
        let mut dispatcher = dispatcher(3);
        let serve = |dispatcher: &mut ChainDispatcher, blocks: &[Block]| {
            let mut decision = dispatcher.arrive(&ChainRequest::new(blocks)).expect("nodes are open");
            dispatcher.first_token(&mut decision.work);
            dispatcher.finish(blocks, decision.work);
            decision.node
        };
        // Three prompts of 80 blocks fill the three nodes.
        let prompts: Vec<_> = (1..4).map(|branch| prompt(branch, 80, 0, 0)).collect();
        let homes: Vec<NodeId> = prompts.iter().map(|blocks| serve(&mut dispatcher, blocks)).collect();
        for used in [0, 2] {
            assert_eq!(serve(&mut dispatcher, &prompts[used]), homes[used]);
        }
        assert_eq!(serve(&mut dispatcher, &prompt(9, 10, 0, 0)), homes[1]);
    }
}
