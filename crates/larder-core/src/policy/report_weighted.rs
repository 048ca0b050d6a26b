//! Weighted round robin by periodically collected reports, which [`wrr-num`](super::wrr_num) and
//! [`wrr-time`](super::wrr_time)
//! share (Casalicchio and Colajanni, WWW 2001, section 4.1).
//!
//! ```text
//! every T_gat:   q(n) = the policy's quality of n's last report         (missing: the mean of the known)
//!                w(n) = weight(n) q(n) / sum over the open nodes
//! on request:    s = the open node with the least d(n), of equals the one in the lowest slot
//!                d(s) += 1 / w(s)
//! ```
//!
//! The second part assigns turns by earliest deadline: a node of share w is due at 1/(2w), 3/(2w), 5/(2w) and so on, in units
//! of requests. That is Sainte-Lague's rule, applied one request at a time. Every node gets its share, spread as evenly as the
//! shares allow, and with equal weights it is plain round robin.
//!
//! Between two collections no report is read, however new: the paper's T_gat is about this staleness. Collections are at
//! multiples of T_gat and happen at the first request after one.
//!
//! The paper does not define the following. The weight formula is defined by the policies. If a node opens, closes or gets
//! another weight between two collections, the sum changes at once, with q as collected, or the mean if the node has none. When
//! shares change, a node keeps the fraction of the time until it is due. A new node is due after half its time. Nodes that a
//! retry must not use are skipped for that request only, and are due first at the next request.
//!
//! State: two numbers per node and the queue of due nodes, behind one lock. Cost: O(log n); O(n) at a collection and at a change
//! of membership.

use super::common::CommonSettings;
use super::open_nodes::open_nodes;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::{ClusterView, LoadReport, VisitCounter};
use crate::sync::Mutex;
use crate::time::Time;
use alloc::collections::BinaryHeap;
use alloc::collections::binary_heap::PeekMut;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;
use core::mem;
use core::time::Duration;

/// All of the traffic, in units of weight.
const ONE: u64 = 1 << 32;

/// The function that computes a node's quality from a report: its share of the traffic per unit of weight, as a
/// multiple of any constant. `None` if the report lacks the value. At most 2^32.
pub(super) type Quality = fn(&LoadReport) -> Option<u64>;

#[derive(Debug)]
pub(super) struct ReportWeightedRoundRobin {
    quality: Quality,
    t_gat: Duration,
    age_max: Duration,
    state: Mutex<ScheduleState>,
}

#[derive(Clone, Debug, Default)]
struct ScheduleState {
    /// The time of the next collection.
    next: Time,
    /// The collected qualities, by slot.
    quality: Vec<Option<u64>>,
    /// The shares of the traffic, by slot, in parts of [`ONE`]; 0 for a node that is not in the queue.
    weights: Vec<u64>,
    /// The open nodes by the time at which they are due.
    queue: BinaryHeap<Reverse<(u64, NodeId)>>,
    /// The time at which the last node was due.
    clock: u64,
    /// The membership epoch for which the weights are valid.
    members: Option<u64>,
    /// Memory for the next weights and the next queue, so that a collection allocates nothing.
    spare_weights: Vec<u64>,
    spare_queue: Vec<Reverse<(u64, NodeId)>>,
    visits: VisitCounter,
}

impl ReportWeightedRoundRobin {
    pub(super) fn new(common: &CommonSettings, quality: Quality) -> Self {
        Self { quality, t_gat: common.t_gat, age_max: common.report_age_max, state: Mutex::default() }
    }

    fn decide(
        &self,
        state: &mut ScheduleState,
        now: Time,
        request: &Request,
        nodes: ClusterView<'_>,
    ) -> Option<Choice> {
        let members = Some(nodes.members_epoch());
        let due = now >= state.next;
        if due {
            let period = u64::try_from(self.t_gat.as_nanos()).unwrap_or(u64::MAX).max(1);
            state.next = Time::from_nanos((now.as_nanos() / period).saturating_add(1).saturating_mul(period));
            let slots = (0..nodes.slots()).filter_map(|index| u16::try_from(index).ok().map(NodeId));
            let reported_quality =
                |node| nodes.fresh_report(now, node, self.age_max).and_then(|r| (self.quality)(&r));
            state.quality.clear();
            state.quality.extend(slots.map(reported_quality));
        }
        if due || state.members != members {
            state.weigh(nodes);
            state.members = members;
        }
        let node = state.next_due(nodes, |node| request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }
}

impl ScheduleState {
    /// Computes shares from the collected qualities, and rescales the queue to the new shares.
    fn weigh(&mut self, nodes: ClusterView<'_>) {
        self.quality.resize(nodes.slots(), None);
        let known = open_nodes(nodes).filter_map(|node| self.quality[node.index()]);
        let (sum, count) =
            known.fold((0, 0), |(sum, count): (u128, u128), quality| (sum + u128::from(quality), count + 1));
        let mean = sum.checked_div(count).unwrap_or(1).max(1);
        let worth = |node: NodeId| {
            let quality = self.quality[node.index()].map_or(mean, u128::from).max(1);
            quality * u128::from(nodes.weight(node).milli())
        };
        let total: u128 = open_nodes(nodes).map(worth).sum();
        let mut weights = mem::take(&mut self.spare_weights);
        weights.clear();
        weights.resize(nodes.slots(), 0);
        for node in open_nodes(nodes) {
            let share = (worth(node) * u128::from(ONE)).checked_div(total).unwrap_or(0);
            weights[node.index()] = u64::try_from(share).unwrap_or(ONE).max(1);
        }
        let mut queue = mem::take(&mut self.spare_queue);
        queue.clear();
        queue.extend(open_nodes(nodes).map(|node| Reverse((gap(weights[node.index()]) / 2, node))));
        let mut before = mem::take(&mut self.queue).into_vec();
        for Reverse((due, node)) in before.drain(..) {
            let old = self.weights.get(node.index()).copied().unwrap_or(0);
            let at = queue.binary_search_by_key(&node, |Reverse((_, node))| *node);
            if let (Ok(at), true) = (at, old > 0) {
                let left = u128::from(due.saturating_sub(self.clock)) * u128::from(old);
                let left = left / u128::from(weights[node.index()].max(1));
                queue[at].0.0 = u64::try_from(left).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
            }
        }
        self.spare_queue = before;
        self.queue = queue.into();
        self.spare_weights = mem::replace(&mut self.weights, weights);
        self.clock = 0;
    }

    /// Returns the node that is due next, and schedules its next turn.
    fn next_due(&mut self, nodes: ClusterView<'_>, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let mut passed = Vec::new();
        let chosen = loop {
            let Some(mut top) = self.queue.peek_mut() else { break None };
            let Reverse((due, node)) = *top;
            if !nodes.is_open(node) {
                // The node closed a moment ago; the next request computes new shares.
                PeekMut::pop(top);
            } else if skip(node) {
                passed.push(PeekMut::pop(top));
            } else {
                top.0.0 = due.saturating_add(gap(self.weights[node.index()]));
                self.clock = self.clock.max(due);
                break Some(node);
            }
        };
        self.queue.extend(passed);
        chosen
    }
}

/// Returns the time between two turns of a node with this weight. One request of all nodes together takes 2^16, so
/// the time suffices for 2^48 requests between two collections.
const fn gap(weight: u64) -> u64 {
    match (1_u64 << 48).checked_div(weight) {
        Some(gap) => gap,
        None => 1 << 48,
    }
}

impl Policy for ReportWeightedRoundRobin {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let mut state = self.state.lock();
        nodes.record_visit(&mut state.visits);
        let choice = self.decide(&mut state, now, request, nodes);
        drop(state);
        choice.map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let mut state = self.state.lock().clone();
        self.decide(&mut state, now, request, nodes)
    }

    /// Returns the time of the next collection and the time at which the last node was due. For each node in the
    /// queue, returns its quality plus 1 (0 if missing), its share, and the time at which it is due.
    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        let state = self.state.lock();
        let reported_quality = |node: NodeId| state.quality.get(node.index()).copied().flatten();
        let of = |node: NodeId, due| {
            let share = state.weights.get(node.index()).copied().unwrap_or(0);
            vec![reported_quality(node).map_or(0, |quality| quality.saturating_add(1)), share, due]
        };
        let per_node = state.queue.iter().map(|Reverse((due, node))| (*node, of(*node, *due)));
        let numbers = vec![state.next.as_nanos(), state.clock];
        LearnedState { numbers, per_node: per_node.collect(), ..LearnedState::default() }
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        let [next, clock] = saved.numbers[..] else { return };
        let mut state = self.state.lock();
        // The shares are computed again for the current nodes, because `members` is not set.
        *state = ScheduleState {
            next: Time::from_nanos(next),
            clock,
            visits: state.visits,
            ..ScheduleState::default()
        };
        state.quality.resize(nodes.slots(), None);
        state.weights.resize(nodes.slots(), 0);
        for (node, of) in saved.per_node.iter().filter(|(node, _)| node.index() < nodes.slots()) {
            if let [reported_quality, share, due] = of[..] {
                state.quality[node.index()] =
                    reported_quality.checked_sub(1).map(|quality| quality.min(1 << 32));
                state.weights[node.index()] = share.min(ONE);
                state.queue.push(Reverse((due, *node)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Dispatcher;
    use crate::nodes::Weight;
    use crate::policy::PolicyKind;
    use crate::policy::policy_tests::turns::{dispatcher, send, shares};
    use proptest::prelude::*;

    fn busy(dispatcher: &Dispatcher, now: Time, node: u16, processes: u32) {
        let report = LoadReport { processes: Some(processes), ..LoadReport::default() };
        assert!(dispatcher.report(now, NodeId(node), report));
    }

    #[test]
    fn without_reports_turns_are_round_robin() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b", "c"]);
        assert_eq!(send(&dispatcher, Time::ZERO, 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn turns_are_spread_evenly() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b", "c"]);
        // 1/(1+0), 1/(1+4), 1/(1+4): five, one and one of seven.
        [0, 4, 4].into_iter().enumerate().for_each(|(node, n)| busy(&dispatcher, Time::ZERO, node as u16, n));
        // The first node is due at 1/10, 3/10, 5/10, 7/10, 9/10 of seven requests, the others at 1/2.
        assert_eq!(send(&dispatcher, Time::ZERO, 14), [0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 0, 0]);
    }

    proptest! {
        /// After any number of requests no node has had a turn before a node that was due earlier.
        #[test]
        fn turns_follow_sainte_lague(
            processes in prop::collection::vec(0_u32..40, 1..30),
            requests in 1_usize..300,
        ) {
            let names: Vec<String> = (0..processes.len()).map(|i| format!("n{i}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let dispatcher = dispatcher(PolicyKind::WrrNum, &names);
            (0..).zip(&processes).for_each(|(node, count)| busy(&dispatcher, Time::ZERO, node, *count));
            let sent = send(&dispatcher, Time::ZERO, requests);
            // Past and future turns, of weights 1 / (1 + processes).
            let due = |node: usize, turn: f64| (turn - 0.5) * f64::from(1 + processes[node]);
            let had = |node: usize| sent.iter().filter(|at| usize::from(**at) == node).count() as f64;
            let last = (0..names.len()).map(|node| due(node, had(node))).fold(f64::MIN, f64::max);
            let next = (0..names.len()).map(|node| due(node, had(node) + 1.0)).fold(f64::MAX, f64::min);
            prop_assert!(last <= next * (1.0 + 1e-6), "{} was due before {}", next, last);
        }
    }

    #[test]
    fn reports_count_from_the_next_collection() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b"]);
        assert_eq!(shares(&dispatcher, Time::from_secs(3), 8), [4, 4]);
        busy(&dispatcher, Time::from_secs(4), 0, 2);
        busy(&dispatcher, Time::from_secs(4), 1, 0);
        assert_eq!(shares(&dispatcher, Time::from_millis(9_999), 8), [4, 4], "T_gat is 10 s");
        assert_eq!(shares(&dispatcher, Time::from_secs(10), 8), [2, 6]);
        busy(&dispatcher, Time::from_secs(11), 0, 0);
        assert_eq!(shares(&dispatcher, Time::from_secs(19), 8), [2, 6]);
        assert_eq!(shares(&dispatcher, Time::from_secs(25), 8), [4, 4]);
    }

    #[test]
    fn node_without_a_fresh_report_counts_as_the_mean() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b", "c"]);
        busy(&dispatcher, Time::ZERO, 0, 0);
        busy(&dispatcher, Time::ZERO, 1, 1);
        let count = |now| {
            let nodes = send(&dispatcher, now, 90);
            [0, 1, 2].map(|node| nodes.iter().filter(|at| **at == node).count())
        };
        assert_eq!(count(Time::ZERO), [40, 20, 30], "1 : 1/2 : 3/4");
        assert_eq!(count(Time::from_secs(61)), [30, 30, 30]);
    }

    #[test]
    fn membership_changes_apply_at_once_and_weight_multiplies() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b"]);
        busy(&dispatcher, Time::ZERO, 0, 1);
        busy(&dispatcher, Time::ZERO, 1, 0);
        assert_eq!(shares(&dispatcher, Time::ZERO, 30), [10, 20]);
        dispatcher.fail(Time::ZERO, NodeId(1), &mut Vec::new());
        assert_eq!(shares(&dispatcher, Time::ZERO, 5), [5, 0]);
        dispatcher.recover(Time::ZERO, NodeId(1), &mut Vec::new());
        assert_eq!(shares(&dispatcher, Time::ZERO, 30), [10, 20], "as it was gathered");
        let double = Weight::from_milli(4000).expect("in range");
        dispatcher.reweigh(Time::ZERO, NodeId(0), double, &mut Vec::new());
        busy(&dispatcher, Time::from_secs(20), 0, 1);
        busy(&dispatcher, Time::from_secs(20), 1, 0);
        assert_eq!(shares(&dispatcher, Time::from_secs(20), 30), [20, 10], "4/2 against 1/1");
    }
}
