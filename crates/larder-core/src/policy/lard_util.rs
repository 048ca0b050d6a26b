//! `lard-util`: LARD whose load is what nodes measure, not what the front-end counts: the LARD that CAP is compared
//! with (Casalicchio and Colajanni, WWW 2001, section 4.1).
//!
//! ```text
//! load(n) = utilisation of n's busiest device (CPU or disk) since its last report, in 1/1000
//! n = server[target]
//! none:                                                    n = least loaded; server[target] = n
//! (load(n) > T_high and some load < T_low)
//!   or load(n) >= 2 T_high:                                n = least loaded; server[target] = n
//! serve at n
//! ```
//! This is [basic LARD](super::lard) with T_low = 0.3 and T_high = 0.7; the paper says that small changes to them do not
//! matter. With T_high above one half, 2 T_high is never reached: it stands for thresholds that are set lower.
//!
//! The CAP paper says two things. It uses "the LARD version proposed in" the LARD paper, which moves a target only if
//! some node is below T_low, or at 2 T_high. And in its own words, above the threshold a request goes "to a lowly loaded
//! node, if it exists, or to the least loaded node", which needs no node below T_low. This is the former. T_low set just
//! below T_high comes near the latter: any node that is not highly loaded itself then relieves one that is. In
//! simulation it makes little difference (experiment cap-thresholds).
//!
//! Where the paper is silent: it does not say how utilisation is sampled; here it is the node's last
//! [report](crate::nodes::LoadReport). Ties of the least loaded go to the node with fewer requests in flight by its
//! weight, then to the first at or after the target's hash position. A node that has not reported, or not within
//! `report_age_max`, is *unknown*: it is neither above T_high nor below T_low, and counts as T_low when the least
//! loaded is looked for, so it comes after the idle and before the busy. With no report at all, targets are placed by
//! requests in flight and stay. A node that joins is not held back. A target moves only to a node that is less
//! loaded than its own. A retry goes to the least loaded node that was not tried and moves nothing.
//!
//! Between two reports nothing seems to change, so every target of an overloaded node that is asked for in that time
//! moves to one and the same node. That is the policy's weakness, not the implementation's: short periods help.
//!
//! Parameters: `util_low_permille` (300), `util_high_permille` (700), `report_age_max` (60 s), the size of the target
//! map. State: the target map. Cost: O(1) while the target's node is not overloaded, else O(n).

use super::lard::known;
use super::measured::{least_by, open};
use super::targets::Targets;
use super::{Choice, Known, Policy, Reason};
use crate::dispatch::{Request, Settings};
use crate::id::{NodeId, TargetId};
use crate::nodes::Sight;
use crate::time::Time;
use core::time::Duration;

#[derive(Debug)]
pub(super) struct LardUtil {
    low: u16,
    high: u16,
    age_max: Duration,
    targets: Targets,
}

impl LardUtil {
    pub(super) fn new(settings: &Settings) -> Self {
        Self {
            low: settings.util_low_permille,
            high: settings.util_high_permille,
            age_max: settings.report_age_max,
            targets: Targets::new(settings.targets_max, settings.shards),
        }
    }

    /// What the node has measured; `None` if that is unknown.
    fn measured(&self, now: Time, node: NodeId, nodes: Sight<'_>) -> Option<u16> {
        nodes.fresh_report(now, node, self.age_max)?.utilisation()
    }

    /// What the node's load counts as when nodes are compared.
    fn load(&self, now: Time, node: NodeId, nodes: Sight<'_>) -> u16 {
        self.measured(now, node, nodes).unwrap_or(self.low)
    }

    fn overloaded(&self, now: Time, node: NodeId, nodes: Sight<'_>) -> bool {
        let idle = |node| self.measured(now, node, nodes).is_some_and(|load| load < self.low);
        let is = |load: u16| load > self.high && (load >= 2 * self.high || open(nodes).any(idle));
        self.measured(now, node, nodes).is_some_and(is)
    }

    fn least(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<NodeId> {
        let start = nodes.position(request.target.0);
        let tried = |node| request.exclude.contains(node);
        least_by(nodes, start, tried, |node| self.load(now, node, nodes))
    }

    fn decide(
        &self,
        now: Time,
        request: &Request,
        server: Option<NodeId>,
        was_assigned: bool,
        nodes: Sight<'_>,
    ) -> Option<Choice> {
        let Some(server) = server else {
            let reason = if was_assigned { Reason::Lost } else { Reason::First };
            return self.least(now, request, nodes).map(|node| Choice { node, reason });
        };
        let local = Choice { node: server, reason: Reason::Local };
        if !self.overloaded(now, server, nodes) {
            return Some(local);
        }
        let node = self.least(now, request, nodes)?;
        let better = self.load(now, node, nodes) < self.load(now, server, nodes);
        Some(if better { Choice { node, reason: Reason::Migrate } } else { local })
    }

    fn retry(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        let node = self.least(now, request, nodes)?;
        Some(Choice { node, reason: Reason::Retry })
    }
}

impl Policy for LardUtil {
    fn pick(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| choice.counted(nodes));
        }
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        let epoch = nodes.epoch();
        let server = shard.members(slot, nodes).next();
        let choice = self.decide(now, request, server, shard.was_assigned(slot), nodes)?;
        shard.put_sole(slot, choice, now, epoch, nodes);
        Some(choice.counted(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: Sight<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let (server, was_assigned) = match shard.find(request.target) {
            None => (None, false),
            Some(slot) => (shard.members(slot, nodes).next(), shard.was_assigned(slot)),
        };
        self.decide(now, request, server, was_assigned, nodes)
    }

    fn known(&self, target: TargetId, nodes: Sight<'_>) -> Option<Known> {
        known(&self.targets, target, nodes)
    }

    fn targets(&self) -> usize {
        self.targets.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Dispatcher};
    use crate::nodes::{LoadReport, NodeSpec};
    use crate::policy::PolicyKind;

    /// A target that an idle cluster of three places at node 0.
    const AT_0: TargetId = TargetId(1);

    fn dispatcher(settings: Settings) -> Dispatcher {
        let settings = Settings { policy: PolicyKind::LardUtil, admission: Admission::Unlimited, ..settings };
        Dispatcher::new(settings, &["a", "b", "c"].map(NodeSpec::named)).expect("the settings are in range")
    }

    fn send(dispatcher: &Dispatcher, now: Time, target: TargetId) -> (u16, Reason) {
        match dispatcher.arrive(now, Request::new(target)) {
            Arrival::Start(choice) => (choice.node.0, choice.reason),
            other => panic!("expected a start, got {other:?}"),
        }
    }

    fn report(dispatcher: &Dispatcher, now: Time, node: u16, cpu_permille: u16, disk_permille: u16) {
        let report = LoadReport {
            cpu_permille: Some(cpu_permille),
            disk_permille: Some(disk_permille),
            ..LoadReport::default()
        };
        assert!(dispatcher.report(now, NodeId(node), report));
    }

    #[test]
    fn a_target_moves_from_above_t_high_to_below_t_low_only() {
        let dispatcher = dispatcher(Settings::default());
        let now = Time::from_secs(1);
        assert_eq!(send(&dispatcher, now, AT_0), (0, Reason::First));
        for (own, other, expected) in [
            (700, 0, (0, Reason::Local)),
            (701, 300, (0, Reason::Local)),
            (1000, 300, (0, Reason::Local)),
            (701, 299, (2, Reason::Migrate)),
        ] {
            report(&dispatcher, now, 0, 0, own);
            report(&dispatcher, now, 1, 500, 0);
            report(&dispatcher, now, 2, other, 0);
            assert_eq!(send(&dispatcher, now, AT_0), expected, "{own} against {other}");
        }
        assert_eq!(send(&dispatcher, now, AT_0), (2, Reason::Local), "it belongs there now");
    }

    #[test]
    fn new_targets_go_to_the_least_utilised_whatever_is_in_flight() {
        let dispatcher = dispatcher(Settings::default());
        report(&dispatcher, Time::ZERO, 0, 100, 0);
        report(&dispatcher, Time::ZERO, 1, 90, 0);
        report(&dispatcher, Time::ZERO, 2, 0, 95);
        assert!((0..9).all(|i| send(&dispatcher, Time::ZERO, TargetId(i << 60)) == (1, Reason::First)));
    }

    #[test]
    fn an_unknown_node_comes_after_the_idle_and_before_the_busy() {
        let dispatcher = dispatcher(Settings::default());
        report(&dispatcher, Time::ZERO, 0, 301, 0);
        report(&dispatcher, Time::ZERO, 1, 299, 0);
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0).0, 1);
        report(&dispatcher, Time::ZERO, 1, 302, 0);
        assert_eq!(send(&dispatcher, Time::ZERO, TargetId(2)).0, 2, "it has said nothing");
        report(&dispatcher, Time::ZERO, 0, 900, 0);
        report(&dispatcher, Time::ZERO, 1, 900, 0);
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (1, Reason::Local), "unknown is not below T_low");
    }

    #[test]
    fn an_old_report_counts_as_missing() {
        let dispatcher =
            dispatcher(Settings { report_age_max: Duration::from_secs(5), ..Settings::default() });
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (0, Reason::First));
        report(&dispatcher, Time::ZERO, 0, 900, 0);
        report(&dispatcher, Time::ZERO, 1, 100, 0);
        assert_eq!(send(&dispatcher, Time::from_millis(5_001), AT_0), (0, Reason::Local));
        assert_eq!(send(&dispatcher, Time::from_secs(5), AT_0), (1, Reason::Migrate));
    }

    #[test]
    fn twice_t_high_relieves_without_an_idle_node() {
        let settings = Settings { util_low_permille: 100, util_high_permille: 400, ..Settings::default() };
        let dispatcher = dispatcher(settings);
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (0, Reason::First));
        for node in [1, 2] {
            report(&dispatcher, Time::ZERO, node, 500 + node, 0);
        }
        report(&dispatcher, Time::ZERO, 0, 799, 0);
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (0, Reason::Local));
        report(&dispatcher, Time::ZERO, 0, 800, 0);
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (1, Reason::Migrate));
    }
}
