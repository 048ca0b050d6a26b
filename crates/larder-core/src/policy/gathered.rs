//! Weighted round robin by gathered reports: what [`wrr-num`](super::wrr_num) and [`wrr-time`](super::wrr_time) share
//! (Casalicchio and Colajanni, WWW 2001, section 4.1).
//!
//! ```text
//! every T_gat:   q(n) = what the policy makes of n's last report        (missing: the mean of the known)
//!                w(n) = weight(n) q(n) / sum over the open nodes
//! on request:    credit(n) += w(n) for every open node n
//!                s = the node with the most credit; credit(s) -= 1
//! ```
//! The second part is smooth weighted round robin: each node gets its share, spread as evenly as shares allow, and
//! with equal weights it is plain round robin.
//!
//! Between two gathers nothing that nodes report is looked at, however new: that staleness is what the paper's T_gat
//! is about. Gathers lie on multiples of T_gat and happen at the first request after one.
//!
//! Where the paper is silent: the weight formula (see the policies); a node that opens or closes between two gathers
//! changes the sum at once, with q as gathered, or the mean where it has none; credits outlive a gather, since they
//! are parts of a request and not of a weight; the most credit among equals goes to the lowest slot; nodes that a
//! retry must not use are left out for that one request.
//!
//! State: three numbers per node behind one lock. Cost: O(n) per request.

use super::measured::open;
use super::{Choice, Policy, Reason};
use crate::dispatch::{Request, Settings};
use crate::id::NodeId;
use crate::nodes::{LoadReport, Sight, lock};
use crate::tape::Lane;
use crate::time::Time;
use core::time::Duration;
use std::sync::Mutex;

/// One request, in units of credit.
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
    /// Shares of the traffic, by slot, in credit; they sum to about [`ONE`].
    weights: Vec<u64>,
    credits: Vec<i64>,
    /// The membership for which the weights hold.
    members: Option<(usize, usize, u32)>,
    visits: u64,
}

impl Gathered {
    pub(super) fn new(settings: &Settings, quality: Quality) -> Self {
        Self { quality, t_gat: settings.t_gat, age_max: settings.report_age_max, state: Mutex::default() }
    }

    fn decide(&self, state: &mut State, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let members = Some((nodes.slots(), nodes.open_count(), nodes.epoch()));
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
    /// Turns what was gathered into shares.
    fn weigh(&mut self, nodes: Sight<'_>) {
        let slots = nodes.slots();
        self.quality.resize(slots, None);
        self.weights.clear();
        self.weights.resize(slots, 0);
        self.credits.resize(slots, 0);
        let known: Vec<u64> = open(nodes).filter_map(|node| self.quality[node.index()]).collect();
        let sum: u128 = known.iter().map(|quality| u128::from(*quality)).sum();
        let mean = sum.checked_div(known.len() as u128).unwrap_or(1).max(1);
        let worth = |node: NodeId| {
            let quality = self.quality[node.index()].map_or(mean, u128::from).max(1);
            quality * u128::from(nodes.weight(node).milli())
        };
        let total: u128 = open(nodes).map(worth).sum();
        for node in open(nodes) {
            let share = (worth(node) * u128::from(ONE)).checked_div(total).unwrap_or(0);
            self.weights[node.index()] = u64::try_from(share).unwrap_or(ONE).max(1);
        }
    }

    /// The node whose turn it is, paid for.
    fn next_of(&mut self, nodes: Sight<'_>, skip: impl Fn(NodeId) -> bool) -> Option<NodeId> {
        let (mut best, mut paid): (Option<NodeId>, i64) = (None, 0);
        // A slot that has been opened since the weights were made has none yet: it is weighed next time.
        let known = open(nodes).filter(|node| node.index() < self.weights.len() && !skip(*node));
        for node in known {
            let weight = i64::try_from(self.weights[node.index()]).unwrap_or(i64::MAX);
            let credit = &mut self.credits[node.index()];
            *credit = credit.saturating_add(weight);
            paid = paid.saturating_add(weight);
            if best.is_none_or(|best| self.credits[node.index()] > self.credits[best.index()]) {
                best = Some(node);
            }
        }
        let credit = &mut self.credits[best?.index()];
        *credit = credit.saturating_sub(paid);
        best
    }
}

impl Policy for Gathered {
    fn pick(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let mut state = lock(&self.state);
        nodes.visit(Lane::Own(0), &mut state.visits);
        let choice = self.decide(&mut state, now, request, nodes);
        drop(state);
        choice.map(|choice| choice.counted(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let mut state = lock(&self.state).clone();
        self.decide(&mut state, now, request, nodes)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::dispatch::{Admission, Dispatcher};
    use crate::id::TargetId;
    use crate::nodes::{NodeSpec, Weight};
    use crate::policy::PolicyKind;
    use crate::policy::shelf::started;

    pub(in crate::policy) fn dispatcher(policy: PolicyKind, names: &[&str]) -> Dispatcher {
        let settings = Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
        let specs: Vec<NodeSpec> = names.iter().map(|name| NodeSpec::named(*name)).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    /// The nodes that get the next `count` requests.
    pub(in crate::policy) fn send(dispatcher: &Dispatcher, now: Time, count: usize) -> Vec<u16> {
        (0..count).map(|_| started(dispatcher.arrive(now, Request::new(TargetId(7)))).0).collect()
    }

    /// How many of the next `count` requests each of two nodes gets.
    pub(in crate::policy) fn shares(dispatcher: &Dispatcher, now: Time, count: usize) -> [usize; 2] {
        let nodes = send(dispatcher, now, count);
        [0, 1].map(|node| nodes.iter().filter(|at| **at == node).count())
    }

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
        assert_eq!(send(&dispatcher, Time::ZERO, 14), [0, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 2, 0, 0]);
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
