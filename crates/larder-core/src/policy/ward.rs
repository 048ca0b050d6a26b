//! `ward` and `part`: routing by a table computed from a log (Cherkasova and Karlsson, HPL-2001-2, section 2).
//!
//! Nodes accept client connections themselves; the node that accepted a request is its origin. Every node has the same
//! [table](super::table::RouteTable). The *core*, the most popular targets, is served at the origin. The *partition* is served by
//! its owners. The rest, which no cache would keep, is served at the origin.
//!
//! ```text
//!                    ward                      part
//! core               at the origin             at the node that the target's hash selects
//! owner is origin    at the origin             at the origin
//! owner is another   handed to the owner       handed to the owner
//! not in the table   at the origin             at the origin
//! ```
//!
//! PART is WARD with an empty core. `part` therefore partitions a table's core too, by hash, so that one table serves both. Given
//! a table without a core, it does what the paper says.
//!
//! *Behind a switch* no request has an origin. A target of the partition goes to its owner as before. A target of the
//! core, or one that the table does not contain, may be served anywhere. So it goes to the node with the fewest requests
//! in flight, equals in turn. This replaces the even arrivals of the paper's round-robin DNS, with load. The core is
//! meant for this. For other targets nothing is lost by the analysis's own assumption that no cache keeps them, until the
//! table is refreshed. (`part` has no core: those targets go to the node of their hash.)
//!
//! *Refresh*: the paper computes the table from yesterday's log, and mentions every 15 minutes. A table is replaced as a whole,
//! and a decision sees the old or the new one. A live table is computed from a [census](crate::census) of the switch's own
//! traffic. A table that was built for other nodes is used as far as it applies: an owner that does not exist, or is not in the
//! route's group, counts as closed.
//!
//! The paper does not define the following. A target whose owner takes no requests is served at its origin, like a target that is
//! not in the table. A request whose origin takes no requests is treated like one without an origin. So is a retry, which goes to
//! the node with the fewest requests in flight that was not tried. The table's nodes are slots in the order in which the nodes
//! joined.
//!
//! Parameters: the table (default none: every request is served at its origin, which is the paper's RR). State: one counter, and
//! the table. Cost: O(1), one binary search among a few ids.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::least_conn::LeastConnections;
use super::table::{Place, RouteTable};
use super::{Choice, LearnedState, Policy, Reason, Request};
use crate::nodes::ClusterView;
use crate::sync::SwapOption;
use crate::time::Time;
use alloc::sync::Arc;

/// The description of `ward`.
pub(super) const DESCRIPTION: PolicyDescription = PolicyDescription::by_target(
    "ward",
    "where the routing table says: core where it arrived, partition at its owner (WARD)",
);

/// The description of `part`.
pub(super) const PART: PolicyDescription =
    PolicyDescription::by_target("part", "where the routing table says, without a core (PART)");

#[derive(Debug)]
pub(super) struct Ward {
    table: SwapOption<RouteTable>,
    has_core: bool,
    fallback: LeastConnections,
}

impl Ward {
    pub(super) fn new(common: &CommonSettings) -> Self {
        Self {
            table: SwapOption::new(common.table.clone()),
            has_core: true,
            fallback: LeastConnections::default(),
        }
    }

    /// Creates the policy without a core.
    pub(super) fn part(common: &CommonSettings) -> Self {
        Self { has_core: false, ..Self::new(common) }
    }

    /// Returns the node that the table or the origin determines; `None` if neither does.
    fn route(&self, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return None;
        }
        let place = self.table.load().as_ref().and_then(|table| table.get(request.target));
        let owner = match place {
            Some(Place::Core) if !self.has_core => nodes.hashed(request.target.0, |_| false),
            Some(place) => place.owner().filter(|node| nodes.is_open(*node)),
            None => None,
        };
        let origin = request.origin().filter(|node| nodes.is_open(*node));
        let (node, reason) = match (owner, origin) {
            (Some(owner), _) if owner_is(request, owner) => (owner, Reason::Local),
            (Some(owner), _) => (owner, Reason::Owner),
            (None, Some(origin)) if place == Some(Place::Core) => (origin, Reason::Core),
            (None, Some(origin)) => (origin, Reason::Origin),
            (None, None) => return None,
        };
        Some(Choice { node, reason })
    }
}

fn owner_is(request: &Request, owner: crate::id::NodeId) -> bool {
    request.origin() == Some(owner)
}

impl Policy for Ward {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        match self.route(request, nodes) {
            Some(choice) => Some(choice.count_request(nodes)),
            None => self.fallback.pick(now, request, nodes),
        }
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        self.route(request, nodes).or_else(|| self.fallback.peek(now, request, nodes))
    }

    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        self.fallback.learned_state(nodes)
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        self.fallback.restore(saved, nodes);
    }

    fn set_table(&self, table: Arc<RouteTable>) -> bool {
        self.table.store(Some(table));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Decision, Dispatcher, Settings};
    use crate::id::{NodeId, TargetId};
    use crate::nodes::NodeSpec;
    use crate::policy::PolicyKind;

    const CORE: TargetId = TargetId(10);
    const OF_1: TargetId = TargetId(11);
    const UNKNOWN: TargetId = TargetId(12);

    fn dispatcher(policy: PolicyKind) -> Dispatcher {
        let table =
            RouteTable::new(3, [(CORE, Place::Core), (OF_1, Place::Node(1))]).expect("it is in range");
        let settings = Settings {
            policy,
            admission: Admission::Unlimited,
            table: Some(Arc::new(table)),
            ..Settings::default()
        };
        Dispatcher::new(settings, &["a", "b", "c"].map(NodeSpec::named)).expect("the settings are in range")
    }

    fn send(dispatcher: &Dispatcher, request: Request) -> (u16, Reason) {
        match dispatcher.arrive(Time::ZERO, request) {
            Arrival::Start(Decision { node, reason }) => (node.0, reason),
            other => panic!("expected a start, got {other:?}"),
        }
    }

    fn at(target: TargetId, origin: u16) -> Request {
        Request::new(target).with_origin(NodeId(origin))
    }

    #[test]
    fn ward_uses_core_owner_and_origin() {
        let ward = dispatcher(PolicyKind::Ward);
        for origin in 0..3 {
            assert_eq!(send(&ward, at(CORE, origin)), (origin, Reason::Core));
            assert_eq!(send(&ward, at(UNKNOWN, origin)), (origin, Reason::Origin));
            let reason = if origin == 1 { Reason::Local } else { Reason::Owner };
            assert_eq!(send(&ward, at(OF_1, origin)), (1, reason));
        }
    }

    #[test]
    fn part_has_no_core() {
        let part = dispatcher(PolicyKind::Part);
        // TargetId(10) is at the beginning of the hash range: slot 0.
        assert_eq!(send(&part, at(CORE, 0)), (0, Reason::Local));
        assert_eq!(send(&part, at(CORE, 2)), (0, Reason::Owner));
        assert_eq!(send(&part, at(UNKNOWN, 2)), (2, Reason::Origin));
        assert_eq!(send(&part, at(OF_1, 2)), (1, Reason::Owner));
    }

    #[test]
    fn closed_owner_or_origin_is_skipped() {
        for kind in [PolicyKind::Ward, PolicyKind::Part] {
            let dispatcher = dispatcher(kind);
            assert!(dispatcher.fail(Time::ZERO, NodeId(1), &mut Vec::new()));
            assert_eq!(send(&dispatcher, at(OF_1, 2)), (2, Reason::Origin), "{kind}: the owner is down");
            assert_eq!(
                send(&dispatcher, at(UNKNOWN, 1)),
                (0, Reason::LeastLoaded),
                "{kind}: the origin is down"
            );
            assert_eq!(
                send(&dispatcher, at(OF_1, 7)).1,
                Reason::LeastLoaded,
                "{kind}: there is no such node"
            );
        }
    }

    #[test]
    fn without_an_origin_the_table_or_the_load_decides() {
        let ward = dispatcher(PolicyKind::Ward);
        assert_eq!(send(&ward, Request::new(OF_1)), (1, Reason::Owner));
        let nodes = [CORE, UNKNOWN, CORE].map(|target| send(&ward, Request::new(target)));
        // Node 1 has a request already; of the two other nodes each has its turn, then all are equal.
        assert_eq!(nodes.map(|(node, _)| node), [0, 2, 0]);
        assert!(nodes.iter().all(|(_, reason)| *reason == Reason::LeastLoaded));
    }

    #[test]
    fn without_a_table_each_origin_serves() {
        let settings = Settings { policy: PolicyKind::Ward, ..Settings::default() };
        let dispatcher = Dispatcher::new(settings, &["a", "b"].map(NodeSpec::named)).expect("in range");
        assert_eq!(send(&dispatcher, at(OF_1, 1)), (1, Reason::Origin));
    }
}
