//! `prequal`: the hot-cold rule on a pool of probes, as Prequal (NSDI 2024).
//!
//! ```text
//! a probe of n:  RIF = requests at n;  latency = tokens to prefill at n
//! n              = of the cold probes the one with the lowest latency, else of the hot ones the one with the lowest RIF;
//!                  with fewer than 2 probes a node at random
//! ```
//!
//! The pool, the limit of hot probes, their uses and all parameters are those of `prequal` of ordinary requests; see
//! [`policy::prequal`](crate::policy). The policy does not look at prompts, so the estimated wait counts whole prompts.
//!
//! Differences: A dispatcher of chains has no clock and is told no latency. Therefore the latency is the estimated wait in
//! tokens instead of a median of earlier latencies. Probes age by decisions, not by time: newer probes of the same node
//! replace them, and each decision removes the oldest or the worst one. After a pause the first decisions use values
//! from before it; the paper would remove such probes. Probes of closed nodes are removed.
//!
//! State: the pool and the number of decisions, which seeds the random draws. Cost: O(log nodes).

use super::api::ChainPolicy;
use super::candidate::Candidate;
use super::request::ChainRequest;
use crate::id::NodeId;
use crate::policy::prequal::pool::{Probe, ProbePool, RIF_QUANTILE_PERMILLE};
use crate::policy::{Choice, Reason};

#[derive(Debug)]
pub(super) struct Prequal {
    pool: ProbePool<()>,
}

impl Default for Prequal {
    fn default() -> Self {
        Self { pool: ProbePool::new(0, RIF_QUANTILE_PERMILLE) }
    }
}

impl ChainPolicy for Prequal {
    fn pick(&mut self, request: &ChainRequest<'_>, candidates: &[Candidate]) -> Option<Choice> {
        let is_open = |node: NodeId| candidates.binary_search_by_key(&node, |one| one.node).is_ok();
        let choice = match self.pool.best(|probe| is_open(probe.node), |_| true) {
            Some((at, node)) => {
                self.pool.use_probe(at, 1);
                Choice { node, reason: Reason::Quickest }
            }
            None => {
                let node = candidates.get(self.pool.draw_one(candidates.len()))?.node;
                Choice { node, reason: Reason::Random }
            }
        };
        self.pool.remove_surplus(|probe| is_open(probe.node) || request.exclude.contains(probe.node));
        let uses = self.pool.uses(candidates.len());
        for at in self.pool.draw(candidates.len()) {
            let Candidate { node, work, missing, .. } = candidates[at];
            // The probes are sent after the request, so they count it.
            let own = node == choice.node;
            let rif = u64::from(work.requests) + u64::from(own);
            let latency = work.prefill.saturating_add(if own { missing } else { 0 });
            self.pool.add(Probe { node, rif, latency, uses, age: () }, candidates.len());
        }
        self.pool.end_decision();
        Some(choice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Block;
    use crate::chain::NodeWork;
    use crate::id::TargetId;
    use crate::policy::ExcludedNodes;
    use alloc::vec::Vec;

    const BLOCKS: [Block; 1] = [Block { id: TargetId(1), tokens: 100 }];

    /// Returns candidates with these numbers of requests and of tokens to prefill.
    fn candidates(loads: &[(u32, u64)]) -> Vec<Candidate> {
        let candidate = |(node, (requests, prefill)): (u16, &(u32, u64))| Candidate {
            node: NodeId(node),
            work: NodeWork { requests: *requests, waiting: 0, prefill: *prefill },
            credited: 0,
            missing: 100,
            active: 0,
            resident: 0,
            coldness: 0,
        };
        (0..).zip(loads).map(candidate).collect()
    }

    /// Returns the choices of decisions that meet the same loads.
    fn choices(policy: &mut Prequal, loads: &[(u32, u64)], decisions: usize) -> Vec<Choice> {
        let (request, candidates) = (ChainRequest::new(&BLOCKS), candidates(loads));
        (0..decisions).map(|_| policy.pick(&request, &candidates).expect("nodes are open")).collect()
    }

    fn share(choices: &[Choice], node: u16) -> f64 {
        choices.iter().filter(|choice| choice.node == NodeId(node)).count() as f64 / choices.len() as f64
    }

    #[test]
    fn cold_nodes_are_chosen_by_the_estimated_wait() {
        let mut policy = Prequal::default();
        let found = choices(&mut policy, &[(5, 30_000), (5, 10_000), (5, 20_000), (5, 40_000)], 400);
        assert_eq!(found[0].reason, Reason::Random, "there is no probe yet");
        assert!(found[1..].iter().all(|choice| choice.reason == Reason::Quickest));
        assert!(share(&found, 1) > 0.6, "{}", share(&found, 1));
        assert!(share(&found[1..], 3) < 0.05, "the slowest is never the best of two current probes");
    }

    #[test]
    fn hot_nodes_are_chosen_only_if_all_probes_are_hot() {
        // 19 of 20 nodes have 3 requests, so a probe with 50 is above the quantile.
        let mut loads = [(3, 40_000); 20];
        loads[4] = (50, 0);
        let found = choices(&mut Prequal::default(), &loads, 1_000);
        // At the beginning there are too few probes to tell which ones are hot.
        assert!(
            found[20..].iter().all(|choice| choice.node != NodeId(4)),
            "the node with the shortest wait is hot"
        );
    }

    #[test]
    fn uses_of_a_probe_count_as_requests() {
        let mut policy = Prequal::default();
        let loads = [(0, 0), (0, 10)];
        choices(&mut policy, &loads, 1);
        let (at, node) = policy.pool.best(|_| true, |_| true).expect("both nodes were probed");
        policy.pool.use_probe(at, 1_000);
        let next = policy.pool.best(|_| true, |_| true).expect("both nodes were probed");
        assert_ne!(next.1, node, "the probe is hot now");
    }

    #[test]
    fn probes_of_closed_nodes_are_removed() {
        let mut policy = Prequal::default();
        choices(&mut policy, &[(0, 0), (0, 0), (0, 0)], 10);
        // Nodes 1 and 2 are closed, so no two probes are valid.
        let alone = choices(&mut policy, &[(0, 0)], 1);
        assert_eq!(alone[0], Choice { node: NodeId(0), reason: Reason::Random });
        let again = choices(&mut policy, &[(9, 0), (9, 0), (9, 0)], 1);
        assert_eq!(again[0].reason, Reason::Random, "the probes of nodes 1 and 2 are gone");
    }

    #[test]
    fn a_retry_uses_no_probe_of_an_excluded_node() {
        let mut policy = Prequal::default();
        choices(&mut policy, &[(0, 0), (0, 10), (0, 20)], 10);
        let exclude = ExcludedNodes::NONE.with(NodeId(0));
        let request = ChainRequest { exclude, ..ChainRequest::new(&BLOCKS) };
        let rest = &candidates(&[(0, 0), (0, 10), (0, 20)])[1..];
        let choice = policy.pick(&request, rest).expect("two nodes are open");
        assert_ne!(choice.node, NodeId(0));
    }

    #[test]
    fn no_candidate_gives_no_choice() {
        assert_eq!(Prequal::default().pick(&ChainRequest::new(&BLOCKS), &[]), None);
    }
}
