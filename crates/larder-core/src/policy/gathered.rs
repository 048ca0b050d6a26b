//! Weighted round robin by gathered reports: what [`wrr-num`](super::wrr_num) and [`wrr-time`](super::wrr_time) share
//! (Casalicchio and Colajanni, WWW 2001, section 4.1).
//!
//! ```text
//! every T_gat:   q(n) = what the policy makes of n's last report        (missing: the mean of the known)
//!                w(n) = weight(n) q(n) / sum over the open nodes
//! on request:    s = the open node with the least d(n), of equals the one in the lowest slot
//!                d(s) += 1 / w(s)
//! ```
//! The second part deals the turns out by earliest deadline: a node of share w is due at 1/(2w), 3/(2w), 5/(2w) and so
//! on, in units of requests. That is Sainte-Lague's rule taken one request at a time: every node gets its share, spread as
//! evenly as shares allow, and with equal weights it is plain round robin.
//!
//! Between two gathers nothing that nodes report is looked at, however new: that staleness is what the paper's T_gat
//! is about. Gathers lie on multiples of T_gat and happen at the first request after one.
//!
//! Where the paper is silent: the weight formula (see the policies); a node that opens, closes or gets another weight
//! between two gathers changes the sum at once, with q as gathered, or the mean where it has none; what part of its
//! time until it is due a node has left, it keeps when shares change; a node that is new is due after half its time;
//! nodes that a retry must not use are left out for that one request, and are due first at the next.
//!
//! State: two numbers per node and the queue of the due, behind one lock. Cost: O(log n); O(n) at a gather and at a change
//! of membership.

use super::common::CommonSettings;
use super::open_nodes::open_nodes;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::id::NodeId;
use crate::nodes::{ClusterView, LoadReport, VisitCounter, lock};
use crate::time::Time;
use core::cmp::Reverse;
use core::time::Duration;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::sync::Mutex;

/// All of the traffic, in units of weight.
const ONE: u64 = 1 << 32;

/// What a policy makes of a report: how much of the traffic the node should get per unit of weight, as a multiple of
/// any constant. `None` if the report says nothing of that. At most 2^32.
pub(super) type Quality = fn(&LoadReport) -> Option<u64>;

#[derive(Debug)]
pub(super) struct Gathered {
    quality: Quality,
    t_gat: Duration,
    age_max: Duration,
    state: Mutex<State>,
}

#[derive(Clone, Debug, Default)]
struct State {
    /// When the next gather is due.
    next: Time,
    /// What was gathered, by slot.
    quality: Vec<Option<u64>>,
    /// Shares of the traffic, by slot, in parts of [`ONE`]; 0 for a node that is in no queue.
    weights: Vec<u64>,
    /// The open nodes by when they are due.
    queue: BinaryHeap<Reverse<(u64, NodeId)>>,
    /// When the last node was due.
    clock: u64,
    /// The membership for which the weights hold.
    members: Option<u64>,
    visits: VisitCounter,
}

impl Gathered {
    pub(super) fn new(common: &CommonSettings, quality: Quality) -> Self {
        Self { quality, t_gat: common.t_gat, age_max: common.report_age_max, state: Mutex::default() }
    }

    fn decide(
        &self,
        state: &mut State,
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
            let told = |node| nodes.fresh_report(now, node, self.age_max).and_then(|r| (self.quality)(&r));
            state.quality = slots.map(told).collect();
        }
        if due || state.members != members {
            state.weigh(nodes);
            state.members = members;
        }
        let node = state.next_of(nodes, |node| request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }
}

impl State {
    /// Turns what was gathered into shares, and the queue into one for these.
    fn weigh(&mut self, nodes: ClusterView<'_>) {
        self.quality.resize(nodes.slots(), None);
        let known: Vec<u64> = open(nodes).filter_map(|node| self.quality[node.index()]).collect();
        let sum: u128 = known.iter().map(|quality| u128::from(*quality)).sum();
        let mean = sum.checked_div(known.len() as u128).unwrap_or(1).max(1);
        let worth = |node: NodeId| {
            let quality = self.quality[node.index()].map_or(mean, u128::from).max(1);
            quality * u128::from(nodes.weight(node).milli())
        };
        let total: u128 = open(nodes).map(worth).sum();
        let mut weights = vec![0; nodes.slots()];
        for node in open(nodes) {
            let share = (worth(node) * u128::from(ONE)).checked_div(total).unwrap_or(0);
            weights[node.index()] = u64::try_from(share).unwrap_or(ONE).max(1);
        }
        let mut queue: Vec<_> =
            open(nodes).map(|node| Reverse((gap(weights[node.index()]) / 2, node))).collect();
        for Reverse((due, node)) in self.queue.drain() {
            let old = self.weights.get(node.index()).copied().unwrap_or(0);
            let at = queue.binary_search_by_key(&node, |Reverse((_, node))| *node);
            if let (Ok(at), true) = (at, old > 0) {
                let left = u128::from(due.saturating_sub(self.clock)) * u128::from(old);
                let left = left / u128::from(weights[node.index()].max(1));
                queue[at].0.0 = u64::try_from(left).unwrap_or(u64::MAX / 2).min(u64::MAX / 2);
            }
        }
        self.queue = queue.into();
        self.weights = weights;
        self.clock = 0;
    }

    /// The node that is due next.
    fn next_of(&mut self, nodes: ClusterView<'_>, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let mut passed = Vec::new();
        let chosen = loop {
            let Some(mut top) = self.queue.peek_mut() else { break None };
            let Reverse((due, node)) = *top;
            if !nodes.is_open(node) {
                // It has closed a moment ago; the next request weighs anew.
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

/// The time between two turns of a node with this weight. A request of all nodes together takes 2^16, so that time lasts
/// for 2^48 requests between two gathers.
const fn gap(weight: u64) -> u64 {
    match (1_u64 << 48).checked_div(weight) {
        Some(gap) => gap,
        None => 1 << 48,
    }
}

impl Policy for Gathered {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let mut state = lock(&self.state);
        nodes.record_visit(&mut state.visits);
        let choice = self.decide(&mut state, now, request, nodes);
        drop(state);
        choice.map(|choice| choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let mut state = lock(&self.state).clone();
        self.decide(&mut state, now, request, nodes)
    }

    /// When the next gather is due and the last node was; of each node in the queue what was gathered, plus 1, or 0 if
    /// nothing was, its share, and when it is due.
    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        let state = lock(&self.state);
        let told = |node: NodeId| state.quality.get(node.index()).copied().flatten();
        let of = |node: NodeId, due| {
            let share = state.weights.get(node.index()).copied().unwrap_or(0);
            vec![told(node).map_or(0, |quality| quality.saturating_add(1)), share, due]
        };
        let per_node = state.queue.iter().map(|Reverse((due, node))| (*node, of(*node, *due)));
        let numbers = vec![state.next.as_nanos(), state.clock];
        LearnedState { numbers, per_node: per_node.collect(), ..LearnedState::default() }
    }

    fn restore(&self, memory: &LearnedState, nodes: ClusterView<'_>) {
        let [next, clock] = memory.numbers[..] else { return };
        let mut state = lock(&self.state);
        // Weighed anew for the nodes there are, since no membership is given.
        *state = State { next: Time::from_nanos(next), clock, visits: state.visits, ..State::default() };
        state.quality.resize(nodes.slots(), None);
        state.weights.resize(nodes.slots(), 0);
        for (node, of) in memory.per_node.iter().filter(|(node, _)| node.index() < nodes.slots()) {
            if let [told, share, due] = of[..] {
                state.quality[node.index()] = told.checked_sub(1).map(|quality| quality.min(1 << 32));
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
    fn without_reports_it_is_round_robin() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b", "c"]);
        assert_eq!(send(&dispatcher, Time::ZERO, 7), [0, 1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn shares_are_spread_as_evenly_as_they_allow() {
        let dispatcher = dispatcher(PolicyKind::WrrNum, &["a", "b", "c"]);
        // 1/(1+0), 1/(1+4), 1/(1+4): five, one and one of seven.
        [0, 4, 4].into_iter().enumerate().for_each(|(node, n)| busy(&dispatcher, Time::ZERO, node as u16, n));
        // Due at 1/10, 3/10, 5/10, 7/10, 9/10 of seven requests the one, at 1/2 the others.
        assert_eq!(send(&dispatcher, Time::ZERO, 14), [0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 1, 2, 0, 0]);
    }

    proptest! {
        /// After any number of requests no node has had a turn before one that was due earlier.
        #[test]
        fn nodes_get_what_sainte_lague_gives(
            processes in prop::collection::vec(0_u32..40, 1..30),
            requests in 1_usize..300,
        ) {
            let names: Vec<String> = (0..processes.len()).map(|i| format!("n{i}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let dispatcher = dispatcher(PolicyKind::WrrNum, &names);
            (0..).zip(&processes).for_each(|(node, count)| busy(&dispatcher, Time::ZERO, node, *count));
            let sent = send(&dispatcher, Time::ZERO, requests);
            // Turns had and to come, of weights 1 / (1 + processes).
            let due = |node: usize, turn: f64| (turn - 0.5) * f64::from(1 + processes[node]);
            let had = |node: usize| sent.iter().filter(|at| usize::from(**at) == node).count() as f64;
            let last = (0..names.len()).map(|node| due(node, had(node))).fold(f64::MIN, f64::max);
            let next = (0..names.len()).map(|node| due(node, had(node) + 1.0)).fold(f64::MAX, f64::min);
            prop_assert!(last <= next * (1.0 + 1e-6), "{} was due before {}", next, last);
        }
    }

    #[test]
    fn reports_count_from_the_next_gather_on() {
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
    fn a_silent_node_gets_the_mean_and_an_old_report_is_silence() {
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
    fn membership_counts_at_once_and_weight_multiplies() {
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
