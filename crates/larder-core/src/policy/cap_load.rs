//! `cap-load`: [CAP](super::cap) with the nodes' load, the combination that its paper mentions and does not develop
//! (Casalicchio
//! and Colajanni, WWW 2001, section 3).
//!
//! ```text
//! on request r: c = class(r); s = ptr[c]
//!               while load(s) > factor * mean load + slack: s = next(s)        (once round: CAP's own s)
//!               ptr[c] = next(s); send r to s
//! ```
//!
//! *Choice of the load.* CAP gives every node the same number of requests of each class. By Little's law nodes then differ in
//! requests in flight only by the time each request takes: because of unequal objects, an unequal machine, or a slow device. CAP
//! does not see this difference. A costly request counts by the time it takes, without a given cost. The dispatcher counts
//! requests itself: the count is never missing and never stale. The utilisation that nodes report is worse. All requests between
//! two reports see the same numbers and would avoid the same node, and at overload every node reports the same. Counts per class
//! would not help, because a class that waits for another class's device waits as well. The load is therefore all requests in
//! flight at a node by its weight, and reports are not used.
//!
//! *Choice of the bound.* As in bounded-load hashing, the bound is a multiple of the mean. At least (1 - 1 / factor) of the
//! cluster's capacity is then within it, and few nodes are skipped (five at most in the mean with the default factor of 1.25).
//! The slack disables the bound while few requests are in flight, when a single request makes a node differ from the mean; the
//! policy is then exactly CAP. If every node is above the bound, which only concurrent threads can cause, CAP's turn decides.
//!
//! A skipped node loses its turn, like a closed one. Its share of the class goes to the nodes after it until it has caught up.
//! Retries as in CAP.
//!
//! Parameters: [`CapLoadSettings`] and the classification. State: four counters. Cost: O(1) expected in the group of all
//! nodes; O(n) in another group, whose mean is added up.

use super::cap::turn_counters;
use super::description::PolicyDescription;
use super::rr::TurnCounter;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::class::ServiceClass;
use crate::id::NodeId;
use crate::nodes::ClusterView;
use crate::nodes::load::Key;
use crate::range::{SettingsError, in_range};
use crate::time::Time;

/// The description of `cap-load`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("cap-load", "like cap, but skips nodes above the mean load");

/// The parameters of `cap-load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapLoadSettings {
    /// The largest load at which a node still gets its turn, as a multiple of the mean load, in 1/1000. 1000 to
    /// 100,000; default 1250.
    pub factor_permille: u32,
    /// The load added to this bound, in connections of a node of weight 1. 0 to 100,000; default 2.
    pub slack: u32,
}

impl CapLoadSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let (factor, slack) = (self.factor_permille, self.slack);
        let ok = (1_000..=100_000).contains(&factor);
        in_range("cap_load.factor_permille", factor.into(), ok, "1000 to 100000")?;
        in_range("cap_load.slack", slack.into(), slack <= 100_000, "0 to 100000")
    }
}

impl Default for CapLoadSettings {
    fn default() -> Self {
        Self { factor_permille: 1_250, slack: 2 }
    }
}

#[derive(Debug)]
pub(super) struct CapLoad {
    settings: CapLoadSettings,
    turns: [TurnCounter; ServiceClass::COUNT],
}

impl CapLoad {
    pub(super) fn new(settings: CapLoadSettings) -> Self {
        Self { settings, turns: turn_counters() }
    }

    /// Returns the largest load at which a node gets its turn.
    fn bound(&self, nodes: ClusterView<'_>) -> Key {
        let mean = Key::mean(nodes.outstanding_count(), nodes.weight_sum());
        let allowed = u128::from(mean.get()) * u128::from(self.settings.factor_permille) / 1_000;
        Key::of(self.settings.slack).plus_units(u64::try_from(allowed).unwrap_or(u64::MAX))
    }
}

impl Policy for CapLoad {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let turn = &self.turns[request.class.index()];
        let untried = |node: NodeId| !request.exclude.contains(node);
        let bound = self.bound(nodes);
        let within = turn.take(nodes, |node| untried(node) && nodes.key(node) <= bound);
        let node = within.or_else(|| turn.take(nodes, untried))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) }.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let turn = &self.turns[request.class.index()];
        let untried = |node: NodeId| !request.exclude.contains(node);
        let bound = self.bound(nodes);
        let within = turn.next(nodes, |node| untried(node) && nodes.key(node) <= bound);
        let (node, _) = within.or_else(|| turn.next(nodes, untried))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) })
    }

    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        TurnCounter::learned_state(&self.turns)
    }

    fn restore(&self, saved: &LearnedState, _nodes: ClusterView<'_>) {
        TurnCounter::restore(&self.turns, saved);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Dispatcher, Settings};
    use crate::id::TargetId;
    use crate::nodes::NodeSpec;
    use crate::policy::policy_tests::started;
    use crate::policy::{PolicyKind, PolicySettings};
    use ServiceClass::{Cb, Db, Dcb, N};

    fn dispatcher(cap_load: CapLoadSettings, nodes: usize) -> Dispatcher {
        let settings = Settings {
            policy: PolicyKind::CapLoad,
            admission: Admission::Unlimited,
            policies: PolicySettings { cap_load, ..PolicySettings::default() },
            ..Settings::default()
        };
        let specs: Vec<NodeSpec> = (0..nodes).map(|i| NodeSpec::named(format!("n{i}"))).collect();
        Dispatcher::new(settings, &specs).expect("the settings are in range")
    }

    fn send(dispatcher: &Dispatcher, class: ServiceClass) -> u16 {
        started(dispatcher.arrive(Time::ZERO, Request::new(TargetId(1)).with_class(class))).0
    }

    #[test]
    fn with_few_requests_in_flight_the_policy_is_cap() {
        let dispatcher = dispatcher(CapLoadSettings::default(), 2);
        // Figure 2 of the paper: its start, then N1 CB1 CB2 DB1 DCB1 N2 DB2.
        let sent = [Cb, Dcb, N, N, Db, Db].map(|class| send(&dispatcher, class));
        assert_eq!(sent, [0, 0, 0, 1, 0, 1]);
        (0..2).for_each(|_| dispatcher.finish(Time::ZERO, NodeId(0), &mut Vec::new()));
        let nodes = [N, Cb, Cb, Db, Dcb, N, Db].map(|class| send(&dispatcher, class));
        assert_eq!(nodes, [0, 1, 0, 0, 1, 1, 1]);
    }

    #[test]
    fn slow_node_is_skipped_until_it_has_caught_up() {
        let dispatcher = dispatcher(CapLoadSettings { factor_permille: 1_500, slack: 1 }, 4);
        // Node 0 ends no request; the others end all of theirs.
        let mut at_0 = 0;
        for _ in 0..400 {
            let node = send(&dispatcher, N);
            at_0 += u32::from(node == 0);
            if node != 0 {
                dispatcher.finish(Time::ZERO, NodeId(node), &mut Vec::new());
            }
        }
        // x in flight, all at node 0, and one that arrives: x > 1.5 (x + 1) / 4 + 1 from 3 on.
        assert_eq!(at_0, 3);
        (0..3).for_each(|_| dispatcher.finish(Time::ZERO, NodeId(0), &mut Vec::new()));
        let next: Vec<u16> = (0..4).map(|_| send(&dispatcher, N)).collect();
        assert!(next.contains(&0), "{next:?}");
    }

    #[test]
    fn loads_stay_within_the_bound_while_requests_last() {
        let settings = CapLoadSettings { factor_permille: 1_100, slack: 1 };
        let dispatcher = dispatcher(settings, 50);
        for i in 0..5_000_u32 {
            send(&dispatcher, ServiceClass::ALL[(i % 7 % 4) as usize]);
            // About every third request ends, chosen at random, so that nodes differ.
            if i % 3 == 0 {
                let node = NodeId((crate::nodes::mix(i.into()) % 50) as u16);
                if dispatcher.nodes().load(node) > 0 {
                    dispatcher.finish(Time::ZERO, node, &mut Vec::new());
                }
            }
            let rows = dispatcher.nodes().rows();
            let (most, sum) =
                (rows.iter().map(|row| row.load).max(), rows.iter().map(|row| row.load).sum::<u32>());
            // A node at the bound gets one more, and requests that have ended at other nodes lower the mean.
            assert!(
                i < 100 || f64::from(most.unwrap_or(0)) <= 1.1 * f64::from(sum) / 50.0 + 3.1,
                "{most:?} of {sum}"
            );
        }
    }

    #[test]
    fn error_names_the_setting_out_of_range() {
        let low = CapLoadSettings { factor_permille: 999, slack: 0 };
        let error = low.validate().expect_err("below the mean nobody fits").to_string();
        assert_eq!(error, "cap_load.factor_permille = 999 is out of range: it must be 1000 to 100000");
        assert!(CapLoadSettings { factor_permille: 1_000, slack: 100_001 }.validate().is_err());
    }
}
