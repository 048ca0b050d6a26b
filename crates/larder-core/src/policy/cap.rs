//! `cap`: client-aware policy, basic form (Casalicchio and Colajanni, WWW 2001, section 3).
//!
//! Requests are sorted by their URL into four [classes](crate::class::ServiceClass). Each class is distributed separately: one
//! circular list of all nodes, one pointer per class.
//!
//! ```text
//! on request r: c = class(r); s = ptr[c]; ptr[c] = next(s); send r to s
//! ```
//!
//! No node therefore gets two requests of a costly class before every other node had one, whatever requests come between. The
//! policy shares each resource instead of balancing a number.
//!
//! The paper does not define the following. All pointers begin at the first slot. A closed node is skipped, and the class
//! continues with the next node. A retry takes the class's next node that was not tried. The combination with server state,
//! which the paper mentions and does not develop, is [`cap-load`](super::cap_load).
//!
//! Parameters: none but the classification, which the caller does. State: four counters. Cost: O(1) expected, O(n) if most
//! nodes are closed.

use super::description::PolicyDescription;
use super::rr::TurnCounter;
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::class::ServiceClass;
use crate::nodes::ClusterView;
use crate::time::Time;

/// The description of `cap`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_request("cap", "each node in turn, separately for each service class (CAP)");

#[derive(Debug)]
pub(super) struct Cap {
    turns: [TurnCounter; ServiceClass::COUNT],
}

impl Cap {
    pub(super) fn new() -> Self {
        Self { turns: turn_counters() }
    }
}

/// Returns a turn counter for each class.
pub(super) fn turn_counters() -> [TurnCounter; ServiceClass::COUNT] {
    ServiceClass::ALL.map(|class| TurnCounter::numbered(class as u16))
}

impl Policy for Cap {
    fn pick(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let turn = &self.turns[request.class.index()];
        let node = turn.take(nodes, |node| !request.exclude.contains(node))?;
        Some(Choice { node, reason: request.reason_or(Reason::Turn) }.count_request(nodes))
    }

    fn peek(&self, _now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let turn = &self.turns[request.class.index()];
        let (node, _) = turn.next(nodes, |node| !request.exclude.contains(node))?;
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
    use crate::id::{NodeId, TargetId};
    use crate::nodes::NodeSpec;
    use crate::policy::PolicyKind;
    use crate::policy::policy_tests::started;
    use ServiceClass::{Cb, Db, Dcb, N};

    const A: NodeId = NodeId(0);
    const B: NodeId = NodeId(1);

    fn two(policy: PolicyKind) -> Dispatcher {
        let settings = Settings { policy, admission: Admission::Unlimited, ..Settings::default() };
        Dispatcher::new(settings, &["a", "b"].map(NodeSpec::named)).expect("the settings are in range")
    }

    /// Returns a request of a class. For a policy that places by target, the target represents the class.
    fn request(class: ServiceClass) -> Request {
        let half = if matches!(class, Db | Cb) { 0 } else { 1 << 63 };
        Request::new(TargetId(half + class as u64)).with_class(class)
    }

    /// Sends the arrivals of figure 2 in order (N1, CB1, CB2, DB1, DCB1, N2, DB2) and returns the nodes.
    fn figure_2(dispatcher: &Dispatcher) -> Vec<NodeId> {
        let arrivals = [N, Cb, Cb, Db, Dcb, N, Db];
        arrivals.map(|class| started(dispatcher.arrive(Time::ZERO, request(class)))).to_vec()
    }

    /// Returns the requests in service at the end (by class: N, DB, CB, DCB), from those before and the arrivals.
    fn in_service(before: [[u32; 4]; 2], nodes: &[NodeId]) -> [[u32; 4]; 2] {
        let mut after = before;
        for (class, node) in [N, Cb, Cb, Db, Dcb, N, Db].into_iter().zip(nodes) {
            after[node.index()][class.index()] += 1;
        }
        after
    }

    /// A serves one CB and one DCB, B one N and one DB (figure 2, start).
    const START: [[u32; 4]; 2] = [[0, 0, 1, 1], [1, 1, 0, 0]];

    #[test]
    fn figure_2_of_the_paper() {
        let dispatcher = two(PolicyKind::Cap);
        // The state before: A's requests of N and DB have ended.
        let sent =
            [Cb, Dcb, N, N, Db, Db].map(|class| started(dispatcher.arrive(Time::ZERO, request(class))));
        assert_eq!(sent, [A, A, A, B, A, B]);
        (0..2).for_each(|_| dispatcher.finish(Time::ZERO, A, &mut Vec::new()));
        let nodes = figure_2(&dispatcher);
        assert_eq!(nodes, [A, B, A, A, B, B, B], "N1 CB2 DB1 to A; CB1 DCB1 N2 DB2 to B");
        assert_eq!(in_service(START, &nodes), [[1, 1, 2, 1], [2, 2, 1, 1]]);
        assert_eq!(dispatcher.nodes().rows().iter().map(|row| row.load).collect::<Vec<_>>(), [5, 6]);
    }

    #[test]
    fn figure_2_under_round_robin() {
        let nodes = figure_2(&two(PolicyKind::Rr));
        assert_eq!(nodes, [A, B, A, B, A, B, A], "N1 CB2 DCB1 DB2 to A; CB1 DB1 N2 to B");
        assert_eq!(in_service(START, &nodes), [[1, 1, 2, 2], [2, 2, 1, 0]]);
    }

    #[test]
    fn figure_2_under_lard() {
        for policy in [PolicyKind::Lard, PolicyKind::LardUtil] {
            let dispatcher = two(policy);
            // DB and CB belong to A, N and DCB to B.
            for (class, node) in [(Db, A), (Cb, A), (N, B), (Dcb, B)] {
                assert_eq!(started(dispatcher.arrive(Time::ZERO, request(class))), node);
                dispatcher.finish(Time::ZERO, node, &mut Vec::new());
            }
            let nodes = figure_2(&dispatcher);
            assert_eq!(nodes, [B, A, A, A, B, B, A], "CB1 CB2 DB1 DB2 to A; N1 DCB1 N2 to B");
            assert_eq!(in_service(START, &nodes), [[0, 2, 3, 1], [3, 1, 0, 1]]);
        }
    }

    #[test]
    fn classes_are_independent() {
        let specs = ["a", "b", "c"].map(NodeSpec::named);
        let settings =
            Settings { policy: PolicyKind::Cap, admission: Admission::Unlimited, ..Settings::default() };
        let dispatcher = Dispatcher::new(settings, &specs).expect("the settings are in range");
        let mut counts = [0_u32; 3];
        for i in 0..300_u32 {
            // Costly requests come at every seventh place, so plain round robin would not separate them.
            let class = if i % 7 == 0 { Dcb } else { N };
            let node = started(dispatcher.arrive(Time::ZERO, request(class)));
            counts[node.index()] += u32::from(class == Dcb);
        }
        assert_eq!(counts, [15, 14, 14], "43 of them");
        dispatcher.fail(Time::ZERO, NodeId(1), &mut Vec::new());
        let next = [(); 3].map(|()| started(dispatcher.arrive(Time::ZERO, request(Dcb))));
        assert_eq!(next, [NodeId(2), NodeId(0), NodeId(2)], "it was the closed node's turn");
    }
}
