//! `lard-util`: LARD with loads that the nodes report instead of loads that the front-end counts. It is the LARD
//! with which CAP
//! is compared (Casalicchio and Colajanni, WWW 2001, sections 4.1 and 5).
//!
//! ```text
//! load(n), by utilisation:  that of n's busiest device (CPU or disk) since its last report, in 1/1000
//!          by connections:  those that n had at the last poll, by its weight; a poll every T_gat
//! n = server[target]
//! none:                                                    n = least loaded; server[target] = n
//! (load(n) > T_high and some load < T_low)
//!   or load(n) >= 2 T_high:                                n = least loaded; server[target] = n
//! serve at n
//! ```
//!
//! This is [basic LARD](super::lard). The paper's simulator uses utilisation with T_low = 0.3 and T_high = 0.7, and states that
//! small changes of them do not matter. With T_high above one half, 2 T_high is never reached; the rule matters for lower
//! thresholds. The paper's prototype uses connections: a Collector on each server counts them, and a Manager on the switch polls
//! it every 10 s. The thresholds are then those of LARD, `t_low` and `t_high`.
//!
//! The CAP paper makes two statements. It uses "the LARD version proposed in" the LARD paper, which moves a target only if some
//! node is below T_low, or at 2 T_high. In its own words, above the threshold a request goes "to a lowly loaded node, if it
//! exists, or to the least loaded node", which needs no node below T_low. This implementation follows the former. T_low just
//! below T_high approximates the latter: any node that is not highly loaded then relieves one that is. In simulation it makes
//! little difference (experiment cap-thresholds).
//!
//! The paper does not define how utilisation is sampled. Here each [report](crate::nodes::LoadReport) counts at once. By
//! connections, a node's first report in each T_gat (counted from the start of the run) is the poll, and the others are ignored,
//! so that one source of signals serves both. A report without the number makes it missing at once. Ties of the least loaded go
//! to the node with fewer requests in flight by its weight, then to the first one at or after the target's hash position.
//!
//! A node that has not reported the number, or not within `report_age_max`, is *unknown*. It is neither above T_high nor below
//! T_low. In the search for the least loaded node it counts as T_low, so it comes after idle nodes and before busy ones. With no
//! report at all, targets are placed by requests in flight and stay. A joining node is not limited. A target moves only to a node
//! that is less loaded than its own. A retry goes to the least loaded node that was not tried and moves nothing.
//!
//! Between two reports loads seem constant, so every target of an overloaded node that is requested in that time moves to the
//! same node. This is a weakness of the policy, not of the implementation; short periods help.
//!
//! Parameters: `util_by`; `util_low_permille` (300) and `util_high_permille` (700), or `t_low`, `t_high` and `t_gat`;
//! `report_age_max` (60 s), the size of the target map. State: the target map and a number per node. Cost: O(1) while the
//! target's node is not overloaded, else the search for the least loaded node: n/64 steps and a few blocks of 64.

use super::common::CommonSettings;
use super::description::PolicyDescription;
use super::gauge::{Gauge, MissingLoadRule};
use super::lard::known;
use super::targets::TargetMap;
use super::{Choice, LearnedState, Policy, Reason, Request, TargetServers};
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, LoadReport};
use crate::range::{SettingsError, in_range};
use crate::time::Time;
use core::time::Duration;

/// The description of `lard-util`.
pub(super) const DESCRIPTION: PolicyDescription =
    PolicyDescription::by_target("lard-util", "like lard, on the utilisation that nodes report");

/// The measure of a node's load in `lard-util`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UtilBy {
    /// The utilisation of the node's busiest device: CAP's simulator.
    #[default]
    Utilisation,
    /// The node's connections at the last poll, one poll every `t_gat`: CAP's prototype.
    Connections,
}

/// The parameters of `lard-util`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LardUtilSettings {
    /// The measure of a node's load: utilisation between `low_permille` and `high_permille`, or connections between
    /// `t_low` and `t_high`. Default: utilisation (CAP section 4.1).
    pub by: UtilBy,
    /// T_low, in 1/1000 of a device's time. 1 to 998; default 300 (CAP section 4.1).
    pub low_permille: u16,
    /// T_high, in 1/1000 of a device's time. Above `low_permille`, to 999; default 700 (CAP section 4.1).
    pub high_permille: u16,
}

impl LardUtilSettings {
    pub(crate) fn validate(&self) -> Result<(), SettingsError> {
        let (low, high) = (self.low_permille, self.high_permille);
        in_range("util_low_permille", low.into(), (1..=998).contains(&low), "1 to 998")?;
        let high_ok = high > low && high <= 999;
        in_range("util_high_permille", high.into(), high_ok, "above util_low_permille, at most 999")
    }
}

impl Default for LardUtilSettings {
    fn default() -> Self {
        Self { by: UtilBy::Utilisation, low_permille: 300, high_permille: 700 }
    }
}

#[derive(Debug)]
pub(super) struct LardUtil {
    /// T_low and T_high in the gauge's unit: 1/1000 of a device's time, or of a connection.
    low: u32,
    high: u32,
    by: UtilBy,
    poll: Duration,
    gauge: Gauge,
    targets: TargetMap,
}

impl LardUtil {
    pub(super) fn new(common: &CommonSettings, settings: LardUtilSettings) -> Self {
        let (low, high) = match settings.by {
            UtilBy::Utilisation => (settings.low_permille.into(), settings.high_permille.into()),
            UtilBy::Connections => (common.t_low * 1_000, common.t_high * 1_000),
        };
        Self {
            low,
            high,
            by: settings.by,
            poll: common.t_gat,
            gauge: Gauge::new(common.nodes_max, common.report_age_max),
            targets: TargetMap::of(common),
        }
    }

    /// Returns the node's load for a comparison; T_low if it is unknown.
    fn load(&self, now: Time, node: NodeId, nodes: ClusterView<'_>) -> u32 {
        self.gauge.get(now, node, nodes).unwrap_or(self.low)
    }

    #[inline]
    fn overloaded(&self, now: Time, node: NodeId, nodes: ClusterView<'_>) -> bool {
        let is = |load: u32| {
            load > self.high && (load >= 2 * self.high || self.gauge.any_below(now, self.low, nodes))
        };
        self.gauge.get(now, node, nodes).is_some_and(is)
    }

    fn least(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<NodeId> {
        let start = nodes.position(request.target.0);
        let tried = |node| request.exclude.contains(node);
        self.gauge.least(now, start, MissingLoadRule::At(self.low), nodes, tried)
    }

    fn decide(
        &self,
        now: Time,
        request: &Request,
        server: Option<NodeId>,
        was_assigned: bool,
        nodes: ClusterView<'_>,
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

    fn retry(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        let node = self.least(now, request, nodes)?;
        Some(Choice { node, reason: Reason::Retry })
    }

    /// Returns the number of the poll to which a time belongs.
    fn poll(&self, at: Time) -> u128 {
        u128::from(at.as_nanos()) / self.poll.as_nanos().max(1)
    }
}

impl Policy for LardUtil {
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes).map(|choice| choice.count_request(nodes));
        }
        let mut shard = self.targets.visit(request.target, nodes);
        let slot = shard.touch(request.target);
        if let Some(node) = shard.sole(slot, nodes).filter(|node| !self.overloaded(now, *node, nodes)) {
            return Some(Choice { node, reason: Reason::Local }.count_request(nodes));
        }
        let epoch = nodes.epoch();
        let server = shard.open_members(slot, nodes).next();
        let choice = self.decide(now, request, server, shard.was_assigned(slot), nodes)?;
        shard.put_sole(slot, choice, now, epoch, nodes);
        Some(choice.count_request(nodes))
    }

    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice> {
        if !request.exclude.is_empty() {
            return self.retry(now, request, nodes);
        }
        let shard = self.targets.shard(request.target);
        let (server, was_assigned) = match shard.find(request.target) {
            None => (None, false),
            Some(slot) => (shard.open_members(slot, nodes).next(), shard.was_assigned(slot)),
        };
        self.decide(now, request, server, was_assigned, nodes)
    }

    fn on_report(&self, now: Time, node: NodeId, report: &LoadReport, nodes: ClusterView<'_>) {
        let load = match self.by {
            UtilBy::Utilisation => report.utilisation().map(u32::from),
            UtilBy::Connections => {
                let last = self.gauge.put_at(now, node, nodes);
                // A report without the number makes the load missing, at any time.
                let known = report.processes.is_some();
                if known && last.is_some_and(|at| self.poll(at) == self.poll(now)) {
                    return;
                }
                let share = |count: u32| u64::from(count) * 1_000_000 / u64::from(nodes.weight(node).milli());
                report.processes.map(|count| u32::try_from(share(count)).unwrap_or(u32::MAX))
            }
        };
        self.gauge.put(now, node, load, nodes);
    }

    fn known(&self, target: TargetId, nodes: ClusterView<'_>) -> Option<TargetServers> {
        known(&self.targets, target, nodes)
    }

    fn targets(&self) -> usize {
        self.targets.len()
    }

    fn sets(&self) -> Option<&TargetMap> {
        Some(&self.targets)
    }

    fn learned_state(&self, nodes: ClusterView<'_>) -> LearnedState {
        self.targets.learned_state(nodes)
    }

    fn restore(&self, saved: &LearnedState, nodes: ClusterView<'_>) {
        self.targets.restore(saved, nodes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch::{Admission, Arrival, Dispatcher, Settings};
    use crate::nodes::{LoadReport, NodeSpec};
    use crate::policy::{PolicyKind, PolicySettings};

    /// A target that an idle cluster of three nodes places at node 0.
    const AT_0: TargetId = TargetId(1);

    fn own(lard_util: LardUtilSettings) -> Settings {
        let policies = PolicySettings { lard_util, ..PolicySettings::default() };
        Settings { policies, ..Settings::default() }
    }

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
    fn target_moves_only_from_above_t_high_to_below_t_low() {
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
    fn new_targets_go_to_the_least_utilised_node() {
        let dispatcher = dispatcher(Settings::default());
        report(&dispatcher, Time::ZERO, 0, 100, 0);
        report(&dispatcher, Time::ZERO, 1, 90, 0);
        report(&dispatcher, Time::ZERO, 2, 0, 95);
        assert!((0..9).all(|i| send(&dispatcher, Time::ZERO, TargetId(i << 60)) == (1, Reason::First)));
    }

    #[test]
    fn unknown_node_ranks_between_idle_and_busy() {
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
    fn by_connections_a_poll_is_valid_until_the_next() {
        let dispatcher =
            dispatcher(own(LardUtilSettings { by: UtilBy::Connections, ..LardUtilSettings::default() }));
        let has = |second: u64, node: u16, connections: u32| {
            let report = LoadReport { processes: Some(connections), ..LoadReport::default() };
            assert!(dispatcher.report(Time::from_secs(second), NodeId(node), report));
        };
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (0, Reason::First));
        [(0, 64), (1, 3), (2, 30)].into_iter().for_each(|(node, count)| has(1, node, count));
        has(2, 0, 900);
        let now = Time::from_secs(9);
        assert_eq!(send(&dispatcher, now, AT_0), (0, Reason::Local), "900 came between two polls");
        has(10, 0, 66);
        assert_eq!(send(&dispatcher, Time::from_secs(10), AT_0), (1, Reason::Migrate), "66 > 65 and 3 < 25");
        // A node twice as strong has half the load.
        let spec = NodeSpec {
            weight: crate::nodes::Weight::from_f64(2.0).expect("in range"),
            ..NodeSpec::named("d")
        };
        let node = dispatcher.join(Time::from_secs(10), spec, &mut Vec::new()).expect("there is room");
        [(1, 7), (2, 7), (0, 7)].into_iter().for_each(|(node, count)| has(20, node, count));
        has(20, node.0, 13);
        assert_eq!(
            send(&dispatcher, Time::from_secs(20), TargetId(2)),
            (node.0, Reason::First),
            "6.5 against 7"
        );
    }

    #[test]
    fn by_connections_a_report_is_withdrawn_between_polls() {
        let dispatcher =
            dispatcher(own(LardUtilSettings { by: UtilBy::Connections, ..LardUtilSettings::default() }));
        let report = |second: u64, node: u16, processes: Option<u32>| {
            let report = LoadReport { processes, ..LoadReport::default() };
            assert!(dispatcher.report(Time::from_secs(second), NodeId(node), report));
        };
        assert_eq!(send(&dispatcher, Time::ZERO, AT_0), (0, Reason::First));
        [(0, 70), (1, 3), (2, 30)].into_iter().for_each(|(node, count)| report(1, node, Some(count)));
        report(3, 0, None);
        assert_eq!(send(&dispatcher, Time::from_secs(3), AT_0), (0, Reason::Local), "of 70 nothing is left");
        report(4, 0, Some(70));
        assert_eq!(send(&dispatcher, Time::from_secs(4), AT_0), (1, Reason::Migrate), "it counts at once");
    }

    #[test]
    fn at_twice_t_high_a_target_moves_without_an_idle_node() {
        let own_settings =
            LardUtilSettings { low_permille: 100, high_permille: 400, ..LardUtilSettings::default() };
        let dispatcher = dispatcher(own(own_settings));
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
