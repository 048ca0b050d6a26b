//! Session affinity: a client returns to the node that keeps its session.
//!
//! The client's node is used without asking the policy if four conditions hold. It belongs to the route's group, it
//! is up or draining, it has not failed this request, and its load is below T_high. A session is no reason to
//! overload a node. The policy does not learn from such a request. The admission limit S applies as for any request,
//! because affinity is evaluated after admission.
//!
//! Otherwise the policy decides, and the reason states why the affinity was not followed.
//!
//! A backup that is up but stands by keeps its clients too, because it has their state. HAProxy's persistence
//! cookies apply to backups in the same way.
//!
//! A node that the caller has chosen ([`RequestAffinity::Placed`]) is used while it is open, whatever its load: the
//! caller has counted it.
//!
//! The caller decides how long a draining node keeps its clients, because it knows when draining began. After that
//! time it passes [`RequestAffinity::Expired`].

use super::arrival::Decision;
use crate::nodes::ClusterView;
use crate::policy::{Reason, Request, RequestAffinity};

/// The outcome of evaluating a request's affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AffinityOutcome {
    /// The request has no affinity, or the node has failed the request already.
    None,
    Accepted(Decision),
    /// The affinity is not followed, for this reason.
    Rejected(Reason),
}

impl AffinityOutcome {
    /// Returns the policy's decision, with the reason why the policy was asked.
    #[inline]
    pub(super) fn or_policy(self, decision: Option<Decision>) -> Option<Decision> {
        match self {
            Self::Rejected(reason) => decision.map(|decision| Decision { reason, ..decision }),
            _ => decision,
        }
    }
}

/// Evaluates a request's affinity. `thresholds` returns T_low and T_high of its route. Counts nothing.
#[inline]
pub(super) fn evaluate_affinity(
    request: &Request,
    view: ClusterView<'_>,
    thresholds: impl Fn() -> (u32, u32),
) -> AffinityOutcome {
    match evaluate_first_attempt(request, view, thresholds) {
        // The reason "retry" is more informative.
        AffinityOutcome::Rejected(_) if !request.exclude.is_empty() => AffinityOutcome::None,
        affinity => affinity,
    }
}

#[inline]
fn evaluate_first_attempt(
    request: &Request,
    view: ClusterView<'_>,
    thresholds: impl Fn() -> (u32, u32),
) -> AffinityOutcome {
    match request.affinity {
        RequestAffinity::None | RequestAffinity::Origin(_) => AffinityOutcome::None,
        RequestAffinity::Expired(_) => AffinityOutcome::Rejected(Reason::StickyDrained),
        RequestAffinity::Placed(node) if view.is_open(node) && !request.exclude.contains(node) => {
            AffinityOutcome::Accepted(Decision { node, reason: request.reason_or(Reason::Placed) })
        }
        RequestAffinity::Placed(_) => AffinityOutcome::None,
        RequestAffinity::Sticky(node) if request.exclude.contains(node) => AffinityOutcome::None,
        RequestAffinity::Sticky(node) => {
            // This is checked only if the node takes no new clients: it drains or stands by.
            if !view.is_open(node) && !view.keeps_clients(node) {
                return AffinityOutcome::Rejected(Reason::StickyDown);
            }
            let high = view.learned(|| thresholds().1.into());
            let most = high.saturating_mul(u64::from(view.weight(node).milli()));
            // Long-lived requests do not count. Otherwise a client could lose its session because of its node's
            // other connections.
            if u64::from(view.counting(false).load(node)) * 1000 >= most {
                return AffinityOutcome::Rejected(Reason::StickyFull);
            }
            AffinityOutcome::Accepted(Decision { node, reason: request.reason_or(Reason::Sticky) })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Admission, Arrival, Dispatcher, RouteSpec, Settings};
    use super::*;
    use crate::id::{NodeId, RouteId, TargetId};
    use crate::nodes::{GroupId, Groups, NodeSpec, Weight};
    use crate::policy::PolicyKind;
    use crate::time::Time;

    /// Creates a dispatcher with three nodes. Only the last node is in the group that route 1 uses.
    fn dispatcher(policy: PolicyKind) -> Dispatcher {
        let admission = Admission::Unlimited;
        let settings = Settings { policy, t_low: 1, t_high: 2, admission, ..Settings::default() };
        let group = GroupId::new(1).expect("a group");
        let routes = vec![RouteSpec { group, settings: settings.clone() }];
        let node = |name: &str| NodeSpec::named(name);
        let last = NodeSpec { groups: Groups::NONE.with(group), ..node("c") };
        Dispatcher::with_routes(settings, routes, &[node("a"), node("b"), last]).expect("valid")
    }

    fn wish(target: u64, node: u16) -> Request {
        Request::new(TargetId(target)).with_affinity(RequestAffinity::Sticky(NodeId(node)))
    }

    fn arrive(dispatcher: &Dispatcher, request: Request) -> (u16, &'static str) {
        match dispatcher.arrive(Time::ZERO, request) {
            Arrival::Start(decision) => (decision.node.0, decision.reason.name()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_placed_request_goes_to_its_node_while_that_is_open_and_has_not_failed() {
        let dispatcher = dispatcher(PolicyKind::LardR);
        let placed =
            |node: u16| Request::new(TargetId(1)).with_affinity(RequestAffinity::Placed(NodeId(node)));
        for _ in 0..20 {
            assert_eq!(arrive(&dispatcher, placed(1)), (1, "placed"), "T_high does not count");
        }
        let failed = Request { exclude: crate::policy::ExcludedNodes::NONE.with(NodeId(1)), ..placed(1) };
        assert_ne!(arrive(&dispatcher, failed).0, 1);
        assert_eq!(arrive(&dispatcher, placed(99)).1, "first", "no such node");
        dispatcher.set_state(Time::ZERO, NodeId(1), crate::nodes::NodeState::Down, &mut Vec::new());
        assert_ne!(arrive(&dispatcher, placed(1)).0, 1);
        assert_ne!(
            arrive(&dispatcher, placed(0).with_route(RouteId(1))).0,
            0,
            "it is not in the route's group"
        );
    }

    #[test]
    fn sticky_node_is_used_up_to_t_high_with_every_policy() {
        for policy in PolicyKind::ALL
            .into_iter()
            .filter(|policy| !matches!(policy, PolicyKind::Ward | PolicyKind::Part))
        {
            let dispatcher = dispatcher(policy);
            assert_eq!(arrive(&dispatcher, wish(1, 1)), (1, "sticky"), "{policy}");
            assert_eq!(arrive(&dispatcher, wish(2, 1)), (1, "sticky"), "{policy}");
            assert_eq!(dispatcher.nodes().load(NodeId(1)), 2, "{policy}");
            let (_, reason) = arrive(&dispatcher, wish(3, 1));
            assert_eq!(reason, "sticky_full", "{policy}");
            let mut started = Vec::new();
            dispatcher.finish(Time::ZERO, NodeId(1), &mut started);
            assert_eq!(arrive(&dispatcher, wish(3, 1)), (1, "sticky"), "{policy}");
        }
    }

    #[test]
    fn weight_scales_t_high() {
        let dispatcher = dispatcher(PolicyKind::Rr);
        let mut started = Vec::new();
        assert!(dispatcher.reweigh(
            Time::ZERO,
            NodeId(0),
            Weight::from_milli(500).expect("a weight"),
            &mut started
        ));
        assert_eq!(arrive(&dispatcher, wish(1, 0)), (0, "sticky"));
        assert_eq!(arrive(&dispatcher, wish(2, 0)).1, "sticky_full");
    }

    #[test]
    fn draining_node_keeps_clients_and_down_node_does_not() {
        let dispatcher = dispatcher(PolicyKind::LardR);
        let mut started = Vec::new();
        assert!(dispatcher.drain(Time::ZERO, NodeId(0), &mut started));
        assert_eq!(arrive(&dispatcher, wish(1, 0)), (0, "sticky"));
        let past = Request::new(TargetId(1)).with_affinity(RequestAffinity::Expired(NodeId(0)));
        let (node, reason) = arrive(&dispatcher, past);
        assert!(node != 0 && reason == "sticky_drained", "{node} {reason}");
        assert!(dispatcher.fail(Time::ZERO, NodeId(1), &mut started));
        let (node, reason) = arrive(&dispatcher, wish(1, 1));
        assert!(node == 2 && reason == "sticky_down", "{node} {reason}");
        // A request that failed at its node goes to another node, and the reason names this.
        let retried = dispatcher.retry(Time::ZERO, NodeId(0), wish(1, 0)).expect("another node");
        assert_eq!((retried.node, retried.reason.name()), (NodeId(2), "retry"));
    }

    #[test]
    fn affinity_to_a_node_of_another_group_is_not_followed() {
        let dispatcher = dispatcher(PolicyKind::Hash);
        assert_eq!(arrive(&dispatcher, wish(1, 0).with_route(RouteId(1))), (2, "sticky_down"));
        assert_eq!(arrive(&dispatcher, wish(1, 2).with_route(RouteId(1))), (2, "sticky"));
        assert_eq!(arrive(&dispatcher, wish(1, 99)).1, "sticky_down", "no such node");
    }

    #[test]
    fn explanation_matches_decision() {
        let dispatcher = dispatcher(PolicyKind::Lard);
        for request in [wish(1, 1), wish(2, 1), wish(3, 1)] {
            let explained = dispatcher.explain_request(Time::ZERO, &request).decision.expect("a node");
            assert_eq!(arrive(&dispatcher, request), (explained.node.0, explained.reason.name()));
        }
    }
}
