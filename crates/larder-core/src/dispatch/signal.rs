//! What the dispatcher is told beside requests: how loaded nodes are, what their caches keep, how requests went, and
//! routing tables.
//!
//! All are hints. A policy that does not use them is not touched; one that does says what it does without them.

use super::{CacheEvent, Change, Dispatcher, Request, Served};
use crate::id::{NodeId, RouteId, TargetId};
use crate::nodes::LoadReport;
use crate::policy::table::RouteTable;
use crate::source::Source;
use crate::time::Time;
use core::time::Duration;
use std::sync::Arc;

impl Dispatcher {
    /// A node says how loaded it is; the report takes the place of the one before. False, and nothing is kept, if
    /// there is no such node or it does not take requests.
    pub fn report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        let act = |_: Source<'_>| self.take_report(now, node, report).then_some(node).ok_or(());
        self.change(now, || Change::Report(node, report), act).is_ok()
    }

    /// Keeps a report and lets the policies of all routes that use the node follow it.
    pub(super) fn take_report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        if !self.nodes.take_report(now, node, report) {
            return false;
        }
        for (index, route) in self.routes.iter().enumerate() {
            let sight = self.sight(RouteId(u16::try_from(index).unwrap_or(u16::MAX)), Source::LIVE);
            if sight.is_open(node) {
                route.policy.reported(now, node, &report, sight);
            }
        }
        true
    }

    /// A node's cache has changed. False, and nothing is kept, if there is no such node, it does not take requests,
    /// or the policy does not mirror caches.
    pub fn cache_event(&self, now: Time, node: NodeId, target: TargetId, event: CacheEvent) -> bool {
        let act =
            |source: Source<'_>| self.mirror(now, node, target, event, source).then_some(node).ok_or(());
        self.change(now, || Change::Cache(node, target, event), act).is_ok()
    }

    /// Lets the policies follow a change in the cache of a node that takes requests: those of all routes that use the
    /// node, since its memory is one.
    pub(super) fn mirror(
        &self,
        now: Time,
        node: NodeId,
        target: TargetId,
        event: CacheEvent,
        source: Source<'_>,
    ) -> bool {
        let mut kept = false;
        for (index, route) in self.routes.iter().enumerate() {
            let sight = self.sight(RouteId(u16::try_from(index).unwrap_or(u16::MAX)), source);
            kept |= sight.is_open(node) && route.policy.cache_event(now, node, target, event, sight);
        }
        kept
    }

    /// A request that was started at `node` has been answered; to be told before [`Dispatcher::finish`]. For policies that
    /// learn from it. What they learn is not recorded here, but with the decisions that go by it.
    pub fn served(&self, now: Time, request: &Request, node: NodeId, served: &Served) {
        let sight = self.sight(request.route, Source::LIVE);
        self.route(request.route).policy.served(now, request, node, served, sight);
        self.follow_thresholds();
    }

    /// A try at `node` has ended after `waited` without a whole reply: it failed, took too long, or was given up. `waited` is
    /// the time to the first byte of the reply, if that came. To be told while the request is counted there. How long a
    /// reply would have taken is not known, but that it took longer; policies that learn latencies take it for that. Never
    /// recorded, as [`Dispatcher::served`].
    pub fn unserved(&self, now: Time, request: &Request, node: NodeId, waited: Duration) {
        let sight = self.sight(request.route, Source::LIVE);
        self.route(request.route).policy.unserved(now, request, node, waited, sight);
    }

    /// A route gets another routing table. Decisions made from here on go by it. False if its policy uses none or there
    /// is no such route.
    pub fn set_table(&self, now: Time, route: RouteId, table: &Arc<RouteTable>) -> bool {
        let act = |_: Source<'_>| self.place_table(route, table).then_some(Change::NO_NODE).ok_or(());
        self.change(now, || Change::Table(route, table.clone()), act).is_ok()
    }

    pub(super) fn place_table(&self, route: RouteId, table: &Arc<RouteTable>) -> bool {
        let route = self.routes.get(route.index());
        route.is_some_and(|route| route.policy.set_table(table.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::Settings;
    use crate::nodes::{NodeSpec, NodeState, Reported};

    fn dispatcher() -> Dispatcher {
        let specs = [NodeSpec::named("a"), NodeSpec::named("b")];
        Dispatcher::new(Settings::default(), &specs).expect("the settings are in range")
    }

    #[test]
    fn the_last_report_is_shown_with_its_age() {
        let dispatcher = dispatcher();
        let busy = LoadReport { cpu_permille: Some(900), processes: Some(12), ..LoadReport::default() };
        assert!(dispatcher.nodes().rows().iter().all(|row| row.report.is_none()), "nobody has said anything");
        for (second, report) in [(1, LoadReport::default()), (2, busy)] {
            assert!(dispatcher.report(Time::from_secs(second), NodeId(1), report));
        }
        let rows = dispatcher.nodes().rows();
        let last = Reported { at: Time::from_secs(2), report: busy };
        assert_eq!((rows[0].report, rows[1].report), (None, Some(last)));
        assert_eq!(last.age(Time::from_secs(5)), Duration::from_secs(3));
    }

    #[test]
    fn a_report_does_not_outlive_its_node() {
        let dispatcher = dispatcher();
        let report = LoadReport::default();
        assert!(!dispatcher.report(Time::ZERO, NodeId(2), report), "there is no such node");
        for state in [NodeState::Down, NodeState::Draining] {
            assert!(dispatcher.report(Time::ZERO, NodeId(0), report));
            dispatcher.set_state(Time::ZERO, NodeId(0), state, &mut Vec::new());
            assert!(!dispatcher.report(Time::ZERO, NodeId(0), report), "{state}: it takes no requests");
            dispatcher.recover(Time::ZERO, NodeId(0), &mut Vec::new());
            assert_eq!(dispatcher.nodes().report(NodeId(0)), None, "{state}: what it said before is gone");
        }
        assert!(dispatcher.report(Time::ZERO, NodeId(0), report));
        dispatcher.leave(Time::ZERO, NodeId(0), &mut Vec::new());
        let newcomer = dispatcher.join(Time::ZERO, NodeSpec::named("c"), &mut Vec::new());
        assert_eq!(newcomer, Ok(NodeId(0)), "it takes the slot");
        assert_eq!(dispatcher.nodes().report(NodeId(0)), None, "and not the report");
    }

    #[test]
    fn a_policy_without_a_mirror_drops_cache_events() {
        assert!(!dispatcher().cache_event(Time::ZERO, NodeId(0), TargetId(7), CacheEvent::Stored));
    }
}
