//! What nodes tell the dispatcher of their own accord: how loaded they are, and what their caches keep.
//!
//! Both are hints. A policy that does not use them is not touched; one that does says what it does without them.

use super::{Change, Dispatcher};
use crate::id::{NodeId, TargetId};
use crate::nodes::{LoadReport, Sight};
use crate::tape::Tape;
use crate::time::Time;

/// A change in a node's cache. Source: the node, at the moment of the change; an event that is lost leaves the
/// mirror wrong about that target until the next event or the target's next use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CacheEvent {
    /// The target is in the cache now.
    Stored,
    /// The target has left the cache.
    Evicted,
}

impl Dispatcher {
    /// A node says how loaded it is; the report takes the place of the one before. False, and nothing is kept, if
    /// there is no such node or it does not take requests.
    pub fn report(&self, now: Time, node: NodeId, report: LoadReport) -> bool {
        let act = |_: Option<&Tape>| self.nodes.take_report(now, node, report).then_some(node).ok_or(());
        self.change(now, || Change::Report(node, report), act).is_ok()
    }

    /// A node's cache has changed. False, and nothing is kept, if there is no such node, it does not take requests,
    /// or the policy does not mirror caches.
    pub fn cache_event(&self, now: Time, node: NodeId, target: TargetId, event: CacheEvent) -> bool {
        let act = |tape: Option<&Tape>| {
            let sight = Sight::new(&self.nodes, tape);
            self.mirror(now, node, target, event, sight).then_some(node).ok_or(())
        };
        self.change(now, || Change::Cache(node, target, event), act).is_ok()
    }

    /// Lets the policy follow a change in the cache of a node that takes requests.
    pub(super) fn mirror(
        &self,
        now: Time,
        node: NodeId,
        target: TargetId,
        event: CacheEvent,
        sight: Sight<'_>,
    ) -> bool {
        sight.is_open(node) && self.policy.cache_event(now, node, target, event, sight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Input, Output, Settings};
    use crate::nodes::{NodeSpec, NodeState, Reported};
    use core::time::Duration;

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
            let told = dispatcher.handle(Time::from_secs(second), Input::Report(NodeId(1), report));
            assert_eq!(told, [Output::Changed(true)]);
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
        let event = Input::Cache(NodeId(0), TargetId(7), CacheEvent::Stored);
        assert_eq!(dispatcher().handle(Time::ZERO, event), [Output::Changed(false)]);
    }
}
