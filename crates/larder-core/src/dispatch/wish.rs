//! Wishes: a client that comes back to the node that keeps something for it.
//!
//! A wish is granted before the policy is asked, which learns nothing of it, if the node is of the route's group, is up
//! or drains, has not failed this request, and has less than T_high: a client's habit is no reason to overload a node.
//! S holds as for any request, since a wish is looked at behind the gate. Else the policy decides, and the reason says why the
//! wish was not granted. A backup that is up and stands by keeps its clients too, since it has their state: as with HAProxy, whose
//! persistence cookies hold for backups. Whether a draining node still keeps its clients is the shell's to say, which knows since when it
//! drains: it asks by [`Tie::Past`] when that is over.

use super::arrival::Decision;
use crate::nodes::Sight;
use crate::policy::{Reason, Request, Tie};

/// The outcome of a wish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wished {
    /// There is none, or the node has failed the request already.
    No,
    Granted(Decision),
    /// It is not granted, for this reason.
    Denied(Reason),
}

impl Wished {
    /// The policy's decision instead, with the reason why it was asked.
    #[inline]
    pub(super) fn instead(self, decision: Option<Decision>) -> Option<Decision> {
        match self {
            Self::Denied(reason) => decision.map(|decision| Decision { reason, ..decision }),
            _ => decision,
        }
    }
}

/// The outcome of a request's wish. `thresholds` gives T_low and T_high of its route. Nothing is counted.
#[inline]
pub(super) fn wished(request: &Request, sight: Sight<'_>, thresholds: impl Fn() -> (u32, u32)) -> Wished {
    match answer(request, sight, thresholds) {
        // That it is tried again says more.
        Wished::Denied(_) if !request.exclude.is_empty() => Wished::No,
        wished => wished,
    }
}

#[inline]
fn answer(request: &Request, sight: Sight<'_>, thresholds: impl Fn() -> (u32, u32)) -> Wished {
    match request.tie {
        Tie::None | Tie::Origin(_) => Wished::No,
        Tie::Past(_) => Wished::Denied(Reason::StickyDrained),
        Tie::Wish(node) if request.exclude.contains(node) => Wished::No,
        Tie::Wish(node) => {
            // Looked at only where the node takes no new clients: it drains, or stands by.
            if !sight.is_open(node) && !sight.keeps_clients(node) {
                return Wished::Denied(Reason::StickyDown);
            }
            let high = sight.learned(|| thresholds().1.into());
            let most = high.saturating_mul(u64::from(sight.weight(node).milli()));
            // Long-lived requests do not count: a client of a node's fellow connections would lose its session to them.
            if u64::from(sight.counting(false).load(node)) * 1000 >= most {
                return Wished::Denied(Reason::StickyFull);
            }
            Wished::Granted(Decision { node, reason: request.reason_or(Reason::Sticky) })
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

    /// Three nodes, the last of which alone is in a group, which route 1 uses.
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
        Request::new(TargetId(target)).with_tie(Tie::Wish(NodeId(node)))
    }

    fn arrive(dispatcher: &Dispatcher, request: Request) -> (u16, &'static str) {
        match dispatcher.arrive(Time::ZERO, request) {
            Arrival::Start(decision) => (decision.node.0, decision.reason.name()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_wish_is_granted_up_to_t_high_whatever_the_policy() {
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
    fn a_weight_is_a_share_of_t_high() {
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
    fn a_node_that_drains_keeps_its_clients_and_one_that_is_down_gives_way() {
        let dispatcher = dispatcher(PolicyKind::LardR);
        let mut started = Vec::new();
        assert!(dispatcher.drain(Time::ZERO, NodeId(0), &mut started));
        assert_eq!(arrive(&dispatcher, wish(1, 0)), (0, "sticky"));
        let past = Request::new(TargetId(1)).with_tie(Tie::Past(NodeId(0)));
        let (node, reason) = arrive(&dispatcher, past);
        assert!(node != 0 && reason == "sticky_drained", "{node} {reason}");
        assert!(dispatcher.fail(Time::ZERO, NodeId(1), &mut started));
        let (node, reason) = arrive(&dispatcher, wish(1, 1));
        assert!(node == 2 && reason == "sticky_down", "{node} {reason}");
        // What has failed there goes elsewhere, and says so.
        let retried = dispatcher.retry(Time::ZERO, NodeId(0), wish(1, 0)).expect("another node");
        assert_eq!((retried.node, retried.reason.name()), (NodeId(2), "retry"));
    }

    #[test]
    fn a_wish_for_a_node_of_another_group_is_none() {
        let dispatcher = dispatcher(PolicyKind::Hash);
        assert_eq!(arrive(&dispatcher, wish(1, 0).with_route(RouteId(1))), (2, "sticky_down"));
        assert_eq!(arrive(&dispatcher, wish(1, 2).with_route(RouteId(1))), (2, "sticky"));
        assert_eq!(arrive(&dispatcher, wish(1, 99)).1, "sticky_down", "no such node");
    }

    #[test]
    fn what_is_explained_is_what_is_decided() {
        let dispatcher = dispatcher(PolicyKind::Lard);
        for request in [wish(1, 1), wish(2, 1), wish(3, 1)] {
            let explained = dispatcher.explain_request(Time::ZERO, &request).decision.expect("a node");
            assert_eq!(arrive(&dispatcher, request), (explained.node.0, explained.reason.name()));
        }
    }
}
