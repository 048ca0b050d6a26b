//! Hints to the dispatcher: load reports, cache changes, results of requests, and routing tables.
//!
//! All of them are optional. A policy that does not use a hint ignores it. A policy that uses a hint documents its
//! behaviour without it.

use super::{CacheEvent, Change, Dispatcher, ReplyFeedback, Request};
use crate::id::{NodeId, RouteId, TargetId};
use crate::nodes::LoadReport;
use crate::policy::table::RouteTable;
use crate::read_source::ReadSource;
use crate::time::Time;
use alloc::sync::Arc;
use core::time::Duration;

impl Dispatcher {
    /// Stores a node's load report in place of the previous report. Returns false and stores nothing if there is no
    /// such node or the node does not take requests.
    pub fn report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        let act = |_: ReadSource<'_>| self.take_report(now, node, report).then_some(node).ok_or(());
        self.change(now, || Change::Report(node, report), act).is_ok()
    }

    /// Stores a report and passes it to the policies of all routes that use the node.
    pub(super) fn take_report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        if !self.nodes.take_report(now, node, report) {
            return false;
        }
        for (index, route) in self.routes.iter().enumerate() {
            let view = self.view(RouteId(u16::try_from(index).unwrap_or(u16::MAX)), ReadSource::LIVE);
            if view.is_open(node) {
                route.policy.on_report(now, node, &report, view);
            }
        }
        true
    }

    /// Passes a change of a node's cache to the policies. Returns false and stores nothing if there is no such node,
    /// the node does not take requests, or no policy mirrors caches.
    pub fn cache_event(&self, now: Time, node: NodeId, target: TargetId, event: CacheEvent) -> bool {
        let act =
            |source: ReadSource<'_>| self.mirror(now, node, target, event, source).then_some(node).ok_or(());
        self.change(now, || Change::Cache(node, target, event), act).is_ok()
    }

    /// Passes a change of a node's cache to the policies of all routes that use the node. The node has one memory
    /// for all of them.
    pub(super) fn mirror(
        &self,
        now: Time,
        node: NodeId,
        target: TargetId,
        event: CacheEvent,
        source: ReadSource<'_>,
    ) -> bool {
        let mut kept = false;
        for (index, route) in self.routes.iter().enumerate() {
            let view = self.view(RouteId(u16::try_from(index).unwrap_or(u16::MAX)), source);
            kept |= view.is_open(node) && route.policy.cache_event(now, node, target, event, view);
        }
        kept
    }

    /// Passes the result of a request that was answered by `node` to the policy. Call this before
    /// [`Dispatcher::finish`]. The policy may learn from the result. The result itself is not recorded; the
    /// decisions that use the learned values record them.
    pub fn observe_reply(&self, now: Time, request: &Request, node: NodeId, served: &ReplyFeedback) {
        let view = self.view(request.route, ReadSource::LIVE);
        self.route(request.route).policy.on_reply(now, request, node, served, view);
        self.update_limits_if_changed();
    }

    /// Passes the failure of an attempt at `node` to the policy: the attempt failed, timed out or was cancelled
    /// after `waited`. If the first byte of the reply arrived, `waited` is the time until then. Call this while the
    /// request still counts at the node.
    ///
    /// The time that a full reply would have taken is unknown, but it is longer than `waited`. Policies that learn
    /// latencies use `waited` as that lower bound. Never recorded, as [`Dispatcher::observe_reply`].
    pub fn observe_failure(&self, now: Time, request: &Request, node: NodeId, waited: Duration) {
        let view = self.view(request.route, ReadSource::LIVE);
        self.route(request.route).policy.on_failure(now, request, node, waited, view);
    }

    /// Sets a route's routing table, which applies to the following decisions. Returns false if the policy uses no
    /// table or there is no such route.
    pub fn set_table(&self, now: Time, route: RouteId, table: &Arc<RouteTable>) -> bool {
        let act = |_: ReadSource<'_>| self.place_table(route, table).then_some(Change::NO_NODE).ok_or(());
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
    use crate::nodes::{NodeSpec, NodeState, ReceivedReport};

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
        let last = ReceivedReport { at: Time::from_secs(2), report: busy };
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
