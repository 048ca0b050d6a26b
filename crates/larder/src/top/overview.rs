//! Figures computed from reports of switches and nodes: levels of the last poll, and rates between the last
//! two polls.

use std::collections::BTreeMap;

use serde::Serialize;

use super::source::{
    HotTarget, Latency, LiveNode, NodeStats, PeerStats, Poll, Report, ShadowPolicy, SwitchReport,
};

/// Largest number of hottest targets in an overview.
const HOTTEST: usize = 20;

/// All figures that `larder top` shows.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Overview {
    /// The admin interfaces that were polled.
    pub(crate) sources: Vec<SourceRow>,
    /// Totals of all switches and nodes.
    pub(crate) cluster: ClusterTotals,
    pub(crate) nodes: Vec<NodeRow>,
    /// The hottest targets of all switches.
    pub(crate) hottest: Vec<HotTarget>,
    /// Decisions since the start, by reason.
    pub(crate) decisions: BTreeMap<String, u64>,
    /// Requests that switches answered with an error of their own, or aborted, by cause.
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) shadow: Vec<ShadowRow>,
}

/// An admin interface that was polled.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SourceRow {
    pub(crate) admin: String,
    /// `switch` or `node`; `None` if it does not answer.
    pub(crate) kind: Option<&'static str>,
    /// The routing policy, if there is one.
    pub(crate) policy: Option<String>,
    /// The error of the last poll; `None` if it succeeded.
    pub(crate) error: Option<String>,
}

/// Totals of all switches and nodes. Rates are `None` until two polls have succeeded.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct ClusterTotals {
    pub(crate) requests_per_s: Option<f64>,
    /// Hit ratio of the requests between the last two polls, as the nodes report it.
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) in_flight: u64,
    /// Sum of the switches' admission limits; `None` if a switch has no limit.
    pub(crate) admission_limit: Option<u64>,
    pub(crate) queued: u64,
    pub(crate) connections: u64,
    pub(crate) nodes_up: usize,
    pub(crate) nodes: usize,
    /// Requests of the busiest node over the mean of all nodes that are up, between the last two polls.
    pub(crate) imbalance: Option<f64>,
    /// Median time of the switches' requests between the last two polls.
    pub(crate) p50_s: Option<f64>,
    pub(crate) p99_s: Option<f64>,
}

/// A node, as a switch or the node itself reports it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeRow {
    /// Index of the admin interface that reported the node.
    pub(crate) source: usize,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) load: u64,
    pub(crate) requests_per_s: Option<f64>,
    /// Hit ratio between the last two polls; of all requests if there was none between them.
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) errors: u64,
    /// Weight at the switch; `None` if the node reported itself.
    pub(crate) weight: Option<f64>,
    pub(crate) memory_bytes: u64,
}

/// A shadow policy of a switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ShadowRow {
    pub(crate) policy: String,
    /// Whether the figures are those of the real nodes rather than of a simulation.
    pub(crate) live: bool,
    pub(crate) runs: bool,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) imbalance: Option<f64>,
}

/// Sort order of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SortBy {
    #[default]
    Name,
    Load,
    Requests,
    Hits,
}

impl SortBy {
    /// Returns the next sort order in the cycle.
    pub(crate) const fn next(self) -> Self {
        match self {
            Self::Name => Self::Load,
            Self::Load => Self::Requests,
            Self::Requests => Self::Hits,
            Self::Hits => Self::Name,
        }
    }

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Name => "name",
            Self::Load => "load",
            Self::Requests => "requests",
            Self::Hits => "hit ratio",
        }
    }
}

/// A node's counters.
#[derive(Clone, Copy, Default)]
struct Counts {
    requests: u64,
    hits: u64,
    misses: u64,
}

impl Counts {
    const fn from_switch(node: &LiveNode) -> Self {
        let [a, b, c, d, e] = node.requests;
        Self { requests: a + b + c + d + e + node.aborted, hits: node.hits, misses: node.misses }
    }

    const fn from_node(stats: &NodeStats) -> Self {
        Self { requests: stats.requests, hits: stats.hits, misses: stats.misses }
    }

    /// Returns the difference to earlier counts; `None` if the counters were reset in between.
    fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            requests: self.requests.checked_sub(before.requests)?,
            hits: self.hits.checked_sub(before.hits)?,
            misses: self.misses.checked_sub(before.misses)?,
        })
    }

    fn hit_ratio(self) -> Option<f64> {
        let total = self.hits + self.misses;
        (total > 0).then(|| self.hits as f64 / total as f64)
    }
}

/// Sums over all polled reports, from which ratios and quantiles are computed.
#[derive(Default)]
struct Sums {
    rate_per_s: Option<f64>,
    delta: Counts,
    /// Requests between the last two polls, by node that is up.
    requests_by_node: BTreeMap<String, u64>,
    latency: Latency,
    unlimited: bool,
}

impl Overview {
    /// Creates an overview from the current polls and the previous polls.
    pub(super) fn new(now: &[Poll], before: Option<&[Poll]>) -> Self {
        let (mut overview, mut sums) = (Self::default(), Sums::default());
        for (at, poll) in now.iter().enumerate() {
            let earlier = before.and_then(|before| before.get(at)).filter(|earlier| earlier.report.is_ok());
            let (kind, policy, error) = match &poll.report {
                Ok(Report::Switch(live)) => {
                    overview.add_switch(at, poll, live, earlier, &mut sums);
                    (Some("switch"), Some(live.status.policy.clone()), None)
                }
                Ok(Report::Node(stats, peers)) => {
                    overview.add_node(at, poll, stats, peers.as_ref(), earlier, &mut sums);
                    (Some("node"), peers.as_ref().map(|peers| peers.policy.clone()), None)
                }
                Err(error) => (None, None, Some(error.clone())),
            };
            overview.sources.push(SourceRow { admin: poll.admin.clone(), kind, policy, error });
        }
        overview.finish(&sums);
        overview
    }

    /// Sorts the nodes. Nodes that compare equal are sorted by name.
    pub(crate) fn sort(&mut self, by: SortBy) {
        let key = |row: &NodeRow| match by {
            SortBy::Name => 0.0,
            SortBy::Load => row.load as f64,
            SortBy::Requests => row.requests_per_s.unwrap_or(0.0),
            SortBy::Hits => row.hit_ratio.unwrap_or(0.0),
        };
        self.nodes.sort_by(|a, b| {
            key(b).total_cmp(&key(a)).then_with(|| (&a.name, a.source).cmp(&(&b.name, b.source)))
        });
    }

    fn add_switch(
        &mut self,
        source: usize,
        poll: &Poll,
        live: &SwitchReport,
        earlier: Option<&Poll>,
        sums: &mut Sums,
    ) {
        let old = match earlier.map(|earlier| &earlier.report) {
            // After a reload or a restart the counters begin at zero, so no difference is computed.
            Some(Ok(Report::Switch(old)))
                if old.reloads.generation == live.reloads.generation
                    && old.status.uptime_s <= live.status.uptime_s =>
            {
                Some(old)
            }
            _ => None,
        };
        let seconds = earlier.map(|earlier| (poll.at - earlier.at).as_secs_f64());
        for node in &live.nodes {
            let counts = Counts::from_switch(node);
            let previous = old.and_then(|old| old.nodes.iter().find(|other| other.name == node.name));
            let delta = previous.and_then(|previous| counts.since(Counts::from_switch(previous)));
            let state = match &*node.state {
                "up" if !node.healthy => "unhealthy",
                "up" if node.standby => "standby",
                state => state,
            };
            self.nodes.push(NodeRow {
                source,
                name: node.name.clone(),
                state: state.to_owned(),
                load: node.load,
                requests_per_s: rate_per_s(delta, seconds),
                hit_ratio: delta.and_then(Counts::hit_ratio).or_else(|| counts.hit_ratio()),
                errors: node.requests[4] + node.aborted,
                weight: Some(node.weight),
                memory_bytes: live.memory_of(node),
            });
            sums.count(&node.name, node.state == "up", delta, seconds);
        }
        if let Some(old) = old {
            sums.add_latency(&live.latency, &old.latency);
        }
        self.cluster.in_flight += live.status.outstanding;
        self.cluster.queued += live.status.queued;
        self.cluster.connections += live.status.client_connections;
        match live.status.admission_limit {
            Some(limit) => *self.cluster.admission_limit.get_or_insert(0) += limit,
            None => sums.unlimited = true,
        }
        add(&mut self.decisions, &live.decisions);
        add(&mut self.failures, &live.failures);
        self.hottest.extend(live.hottest.iter().cloned());
        let shadow = live.shadow.as_ref();
        let row = |entry: &ShadowPolicy, live| ShadowRow {
            policy: entry.policy.clone(),
            live,
            runs: entry.runs,
            hit_ratio: entry.lately.hit_ratio,
            imbalance: entry.lately.imbalance,
        };
        self.shadow.extend(shadow.map(|shadow| row(&shadow.live, true)));
        self.shadow.extend(shadow.iter().flat_map(|shadow| &shadow.policies).map(|entry| row(entry, false)));
    }

    fn add_node(
        &mut self,
        source: usize,
        poll: &Poll,
        stats: &NodeStats,
        peers: Option<&PeerStats>,
        earlier: Option<&Poll>,
        sums: &mut Sums,
    ) {
        let counts = Counts::from_node(stats);
        let seconds = earlier.map(|earlier| (poll.at - earlier.at).as_secs_f64());
        let delta = match earlier.map(|earlier| &earlier.report) {
            Some(Ok(Report::Node(old, _))) => counts.since(Counts::from_node(old)),
            _ => None,
        };
        self.nodes.push(NodeRow {
            source,
            name: stats.name.clone(),
            state: if stats.draining { "draining" } else { "up" }.to_owned(),
            load: stats.in_flight,
            requests_per_s: rate_per_s(delta, seconds),
            hit_ratio: delta.and_then(Counts::hit_ratio).or_else(|| counts.hit_ratio()),
            errors: stats.server_errors + stats.aborted,
            weight: None,
            memory_bytes: stats.cache_bytes_max,
        });
        sums.count(&stats.name, !stats.draining, delta, seconds);
        self.cluster.in_flight += stats.in_flight;
        self.cluster.connections += stats.connections;
        if let Some(peers) = peers {
            add(&mut self.decisions, &peers.decisions);
        }
    }

    fn finish(&mut self, sums: &Sums) {
        let names = |up: bool| {
            let rows = self.nodes.iter().filter(move |row| !up || row.state == "up");
            rows.map(|row| &row.name).collect::<std::collections::BTreeSet<_>>().len()
        };
        (self.cluster.nodes_up, self.cluster.nodes) = (names(true), names(false));
        if sums.unlimited {
            self.cluster.admission_limit = None;
        }
        self.cluster.requests_per_s = sums.rate_per_s;
        self.cluster.hit_ratio = sums.delta.hit_ratio();
        let (most, all) = (
            sums.requests_by_node.values().max().copied().unwrap_or(0),
            sums.requests_by_node.values().sum::<u64>(),
        );
        self.cluster.imbalance =
            (all > 0).then(|| most as f64 * sums.requests_by_node.len() as f64 / all as f64);
        self.cluster.p50_s = quantile(&sums.latency, 0.5);
        self.cluster.p99_s = quantile(&sums.latency, 0.99);
        self.hottest.sort_by(|a, b| {
            b.requests_per_s.total_cmp(&a.requests_per_s).then_with(|| a.target.cmp(&b.target))
        });
        self.hottest.truncate(HOTTEST);
    }
}

impl Sums {
    fn count(&mut self, name: &str, up: bool, delta: Option<Counts>, seconds: Option<f64>) {
        let delta_or_zero = delta.unwrap_or_default();
        if let Some(rate) = rate_per_s(delta, seconds) {
            *self.rate_per_s.get_or_insert(0.0) += rate;
        }
        self.delta.hits += delta_or_zero.hits;
        self.delta.misses += delta_or_zero.misses;
        if up {
            *self.requests_by_node.entry(name.to_owned()).or_default() += delta_or_zero.requests;
        }
    }

    /// Adds the latency histogram of a switch. Switches of one version have the same bounds; others are
    /// ignored.
    fn add_latency(&mut self, now: &Latency, before: &Latency) {
        if self.latency.bounds_s.is_empty() {
            self.latency = Latency { bounds_s: now.bounds_s.clone(), counts: vec![0; now.counts.len()] };
        }
        if self.latency.bounds_s == now.bounds_s && now.counts.len() == before.counts.len() {
            for ((sum, now), before) in self.latency.counts.iter_mut().zip(&now.counts).zip(&before.counts) {
                *sum += now.saturating_sub(*before);
            }
        }
    }
}

fn rate_per_s(delta: Option<Counts>, seconds: Option<f64>) -> Option<f64> {
    let (delta, seconds) = (delta?, seconds.filter(|seconds| *seconds > 0.0)?);
    Some(delta.requests as f64 / seconds)
}

fn add(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (name, count) in more {
        *sums.entry(name.clone()).or_default() += count;
    }
}

/// Returns the given quantile of a histogram. Times are taken as evenly spread between two bounds.
fn quantile(latency: &Latency, share: f64) -> Option<f64> {
    let all: u64 = latency.counts.iter().sum();
    let mut left = all as f64 * share;
    for (at, count) in latency.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let lower = at.checked_sub(1).and_then(|at| latency.bounds_s.get(at)).copied().unwrap_or(0.0);
        let upper = latency.bounds_s.get(at).or(latency.bounds_s.last()).copied()?;
        if left <= *count as f64 {
            return Some(lower + (upper - lower) * left / *count as f64);
        }
        left -= *count as f64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn live(scale: u64, generation: u64) -> Report {
        let json = serde_json::json!({
            "status": { "policy": "lard-r", "uptime_s": 10.0 * scale as f64, "outstanding": 3, "admission_limit": 9 },
            "reloads": { "generation": generation },
            "nodes": [
                { "name": "a", "state": "up", "healthy": true, "requests": [0, 30 * scale, 0, 0, scale], "hits": 20 * scale, "misses": 10 * scale },
                { "name": "b", "state": "draining", "healthy": true, "requests": [0, 10 * scale, 0, 0, 0], "hits": 0, "misses": 10 * scale },
            ],
            "latency": { "bounds_s": [0.001, 0.002], "counts": [50 * scale, 50 * scale, 0] },
            "decisions": { "first": scale },
            "hottest": [{ "target": "t", "requests_per_s": 2.0 }],
        });
        Report::Switch(serde_json::from_value(json).expect("as a switch says"))
    }

    fn polls(at: Instant, report: Vec<Result<Report, String>>) -> Vec<Poll> {
        report.into_iter().map(|report| Poll { admin: "x:1".to_owned(), at, report }).collect()
    }

    #[test]
    fn rates_are_computed_between_two_polls() {
        let start = Instant::now();
        let before = polls(start, vec![Ok(live(1, 1)), Err("gone".to_owned())]);
        let now = polls(start + Duration::from_secs(2), vec![Ok(live(3, 1)), Ok(live(3, 1))]);
        let overview = Overview::new(&now, Some(&before));
        // The first source has 62 and 20 requests in 2 s. The second did not answer the first poll.
        assert_eq!(overview.cluster.requests_per_s, Some(41.0));
        assert_eq!(overview.cluster.hit_ratio, Some(40.0 / 80.0));
        assert_eq!((overview.cluster.nodes_up, overview.cluster.nodes), (1, 2));
        assert_eq!((overview.cluster.in_flight, overview.cluster.admission_limit), (6, Some(18)));
        assert_eq!((overview.cluster.p50_s, overview.cluster.imbalance), (Some(0.001), Some(1.0)));
        assert!((overview.cluster.p99_s.unwrap() - 0.00198).abs() < 1e-9);
        assert_eq!(overview.decisions["first"], 6);
        assert_eq!((overview.nodes[0].requests_per_s, overview.nodes[0].errors), (Some(31.0), 3));
        assert_eq!(overview.nodes[2].requests_per_s, None);
    }

    #[test]
    fn reset_counters_give_no_rate() {
        let start = Instant::now();
        let before = polls(start, vec![Ok(live(3, 1))]);
        for report in [live(1, 2), live(1, 1)] {
            let now = polls(start + Duration::from_secs(1), vec![Ok(report)]);
            let overview = Overview::new(&now, Some(&before));
            assert_eq!((overview.cluster.requests_per_s, overview.cluster.p99_s), (None, None));
        }
    }

    #[test]
    fn nodes_are_sorted() {
        let mut overview = Overview::new(&polls(Instant::now(), vec![Ok(live(1, 1))]), None);
        overview.sort(SortBy::Hits);
        assert_eq!(overview.nodes[0].name, "a");
        overview.nodes[1].load = 7;
        overview.sort(SortBy::Load);
        assert_eq!(overview.nodes[0].name, "b");
        overview.sort(SortBy::Name);
        assert_eq!(overview.nodes[0].name, "a");
        let all = [SortBy::Name, SortBy::Load, SortBy::Requests, SortBy::Hits];
        assert!(all.iter().all(|by| all.contains(&by.next()) && !by.name().is_empty()));
    }
}
