//! Figures of what switches and nodes have said: levels of the last time, rates of the last two.

use std::collections::BTreeMap;

use serde::Serialize;

use super::source::{Answer, HotTarget, Latency, Live, LiveNode, NodeStats, Peers, Said, Shade};

/// Hot targets that are kept.
const HOTTEST: usize = 20;

/// All that is shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Picture {
    /// Those that were asked.
    pub(crate) sources: Vec<SourceRow>,
    /// All of them together.
    pub(crate) cluster: Cluster,
    pub(crate) nodes: Vec<NodeRow>,
    /// The hottest targets, of all switches.
    pub(crate) hottest: Vec<HotTarget>,
    /// Decisions since the start, by reason.
    pub(crate) decisions: BTreeMap<String, u64>,
    /// What switches answered or broke off, by why.
    pub(crate) failures: BTreeMap<String, u64>,
    pub(crate) shadow: Vec<ShadowRow>,
}

/// One that was asked.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct SourceRow {
    pub(crate) admin: String,
    /// `switch` or `node`; none if it does not answer.
    pub(crate) kind: Option<&'static str>,
    /// Its policy, if it has one.
    pub(crate) policy: Option<String>,
    /// Why it does not answer.
    pub(crate) error: Option<String>,
}

/// All together. Rates are none until two answers have come.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Cluster {
    pub(crate) requests_per_s: Option<f64>,
    /// Of requests since the last time, by what nodes say.
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) in_flight: u64,
    /// How many may be, over all switches; none if there is no limit.
    pub(crate) admission_limit: Option<u64>,
    pub(crate) queued: u64,
    pub(crate) connections: u64,
    pub(crate) nodes_up: usize,
    pub(crate) nodes: usize,
    /// Requests of the busiest node over the mean of those that are up, since the last time.
    pub(crate) imbalance: Option<f64>,
    /// Of requests since the last time, at switches.
    pub(crate) p50_s: Option<f64>,
    pub(crate) p99_s: Option<f64>,
}

/// A node, as one of those that were asked says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct NodeRow {
    /// Which of the sources says so.
    pub(crate) source: usize,
    pub(crate) name: String,
    pub(crate) state: String,
    pub(crate) load: u64,
    pub(crate) requests_per_s: Option<f64>,
    /// Since the last time; of all if there was no request since.
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) errors: u64,
    /// None for a node that speaks for itself.
    pub(crate) weight: Option<f64>,
    pub(crate) memory_bytes: u64,
}

/// A policy in the shadow of a switch.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct ShadowRow {
    pub(crate) policy: String,
    /// The nodes' own word, not the shadow's.
    pub(crate) live: bool,
    pub(crate) runs: bool,
    pub(crate) hit_ratio: Option<f64>,
    pub(crate) imbalance: Option<f64>,
}

/// Orders of the nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SortBy {
    #[default]
    Name,
    Load,
    Requests,
    Hits,
}

impl SortBy {
    /// The next one in turn.
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
    const fn of_switch(node: &LiveNode) -> Self {
        let [a, b, c, d, e] = node.requests;
        Self { requests: a + b + c + d + e + node.aborted, hits: node.hits, misses: node.misses }
    }

    const fn of_node(stats: &NodeStats) -> Self {
        Self { requests: stats.requests, hits: stats.hits, misses: stats.misses }
    }

    /// None where counters have begun anew.
    fn since(self, before: Self) -> Option<Self> {
        Some(Self {
            requests: self.requests.checked_sub(before.requests)?,
            hits: self.hits.checked_sub(before.hits)?,
            misses: self.misses.checked_sub(before.misses)?,
        })
    }

    fn hit_ratio(self) -> Option<f64> {
        let told = self.hits + self.misses;
        (told > 0).then(|| self.hits as f64 / told as f64)
    }
}

/// Sums over sources, for what is a ratio in the end.
#[derive(Default)]
struct Sums {
    per_s: Option<f64>,
    moved: Counts,
    /// By node that is up.
    each: BTreeMap<String, u64>,
    times: Latency,
    unlimited: bool,
}

impl Picture {
    /// Of what was said now and the time before.
    pub(super) fn of(now: &[Answer], before: Option<&[Answer]>) -> Self {
        let (mut picture, mut sums) = (Self::default(), Sums::default());
        for (at, answer) in now.iter().enumerate() {
            let earlier = before.and_then(|before| before.get(at)).filter(|earlier| earlier.said.is_ok());
            let (kind, policy, error) = match &answer.said {
                Ok(Said::Switch(live)) => {
                    picture.take_switch(at, answer, live, earlier, &mut sums);
                    (Some("switch"), Some(live.status.policy.clone()), None)
                }
                Ok(Said::Node(stats, peers)) => {
                    picture.take_node(at, answer, stats, peers.as_ref(), earlier, &mut sums);
                    (Some("node"), peers.as_ref().map(|peers| peers.policy.clone()), None)
                }
                Err(error) => (None, None, Some(error.clone())),
            };
            picture.sources.push(SourceRow { admin: answer.admin.clone(), kind, policy, error });
        }
        picture.finish(&sums);
        picture
    }

    /// Orders the nodes; of equal ones by name.
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

    fn take_switch(
        &mut self,
        source: usize,
        answer: &Answer,
        live: &Live,
        earlier: Option<&Answer>,
        sums: &mut Sums,
    ) {
        let old = match earlier.map(|earlier| &earlier.said) {
            // Another process began at zero.
            Some(Ok(Said::Switch(old)))
                if old.reloads.generation == live.reloads.generation
                    && old.status.uptime_s <= live.status.uptime_s =>
            {
                Some(old)
            }
            _ => None,
        };
        let seconds = earlier.map(|earlier| (answer.at - earlier.at).as_secs_f64());
        for node in &live.nodes {
            let counts = Counts::of_switch(node);
            let twin = old.and_then(|old| old.nodes.iter().find(|other| other.name == node.name));
            let moved = twin.and_then(|twin| counts.since(Counts::of_switch(twin)));
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
                requests_per_s: per_s(moved, seconds),
                hit_ratio: moved.and_then(Counts::hit_ratio).or_else(|| counts.hit_ratio()),
                errors: node.requests[4] + node.aborted,
                weight: Some(node.weight),
                memory_bytes: live.memory_of(node),
            });
            sums.count(&node.name, node.state == "up", moved, seconds);
        }
        if let Some(old) = old {
            sums.add_times(&live.latency, &old.latency);
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
        let row = |shade: &Shade, live| ShadowRow {
            policy: shade.policy.clone(),
            live,
            runs: shade.runs,
            hit_ratio: shade.lately.hit_ratio,
            imbalance: shade.lately.imbalance,
        };
        self.shadow.extend(shadow.map(|shadow| row(&shadow.live, true)));
        self.shadow.extend(shadow.iter().flat_map(|shadow| &shadow.policies).map(|shade| row(shade, false)));
    }

    fn take_node(
        &mut self,
        source: usize,
        answer: &Answer,
        stats: &NodeStats,
        peers: Option<&Peers>,
        earlier: Option<&Answer>,
        sums: &mut Sums,
    ) {
        let counts = Counts::of_node(stats);
        let seconds = earlier.map(|earlier| (answer.at - earlier.at).as_secs_f64());
        let moved = match earlier.map(|earlier| &earlier.said) {
            Some(Ok(Said::Node(old, _))) => counts.since(Counts::of_node(old)),
            _ => None,
        };
        self.nodes.push(NodeRow {
            source,
            name: stats.name.clone(),
            state: if stats.draining { "draining" } else { "up" }.to_owned(),
            load: stats.in_flight,
            requests_per_s: per_s(moved, seconds),
            hit_ratio: moved.and_then(Counts::hit_ratio).or_else(|| counts.hit_ratio()),
            errors: stats.server_errors + stats.aborted,
            weight: None,
            memory_bytes: stats.cache_bytes_max,
        });
        sums.count(&stats.name, !stats.draining, moved, seconds);
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
        self.cluster.requests_per_s = sums.per_s;
        self.cluster.hit_ratio = sums.moved.hit_ratio();
        let (most, all) = (sums.each.values().max().copied().unwrap_or(0), sums.each.values().sum::<u64>());
        self.cluster.imbalance = (all > 0).then(|| most as f64 * sums.each.len() as f64 / all as f64);
        self.cluster.p50_s = quantile(&sums.times, 0.5);
        self.cluster.p99_s = quantile(&sums.times, 0.99);
        self.hottest.sort_by(|a, b| {
            b.requests_per_s.total_cmp(&a.requests_per_s).then_with(|| a.target.cmp(&b.target))
        });
        self.hottest.truncate(HOTTEST);
    }
}

impl Sums {
    fn count(&mut self, name: &str, up: bool, moved: Option<Counts>, seconds: Option<f64>) {
        let moved_or_none = moved.unwrap_or_default();
        if let Some(rate) = per_s(moved, seconds) {
            *self.per_s.get_or_insert(0.0) += rate;
        }
        self.moved.hits += moved_or_none.hits;
        self.moved.misses += moved_or_none.misses;
        if up {
            *self.each.entry(name.to_owned()).or_default() += moved_or_none.requests;
        }
    }

    /// Of switches of one version, whose bounds are the same.
    fn add_times(&mut self, now: &Latency, before: &Latency) {
        if self.times.bounds_s.is_empty() {
            self.times = Latency { bounds_s: now.bounds_s.clone(), counts: vec![0; now.counts.len()] };
        }
        if self.times.bounds_s == now.bounds_s && now.counts.len() == before.counts.len() {
            for ((sum, now), before) in self.times.counts.iter_mut().zip(&now.counts).zip(&before.counts) {
                *sum += now.saturating_sub(*before);
            }
        }
    }
}

fn per_s(moved: Option<Counts>, seconds: Option<f64>) -> Option<f64> {
    let (moved, seconds) = (moved?, seconds.filter(|seconds| *seconds > 0.0)?);
    Some(moved.requests as f64 / seconds)
}

fn add(sums: &mut BTreeMap<String, u64>, more: &BTreeMap<String, u64>) {
    for (name, count) in more {
        *sums.entry(name.clone()).or_default() += count;
    }
}

/// The time that this share of requests stayed below, taken as evenly spread between two bounds.
fn quantile(times: &Latency, share: f64) -> Option<f64> {
    let all: u64 = times.counts.iter().sum();
    let mut left = all as f64 * share;
    for (at, count) in times.counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let lower = at.checked_sub(1).and_then(|at| times.bounds_s.get(at)).copied().unwrap_or(0.0);
        let upper = times.bounds_s.get(at).or(times.bounds_s.last()).copied()?;
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

    fn live(scale: u64, generation: u64) -> Said {
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
        Said::Switch(serde_json::from_value(json).expect("as a switch says"))
    }

    fn answers(at: Instant, said: Vec<Result<Said, String>>) -> Vec<Answer> {
        said.into_iter().map(|said| Answer { admin: "x:1".to_owned(), at, said }).collect()
    }

    #[test]
    fn rates_are_of_two_answers_one_after_the_other() {
        let start = Instant::now();
        let before = answers(start, vec![Ok(live(1, 1)), Err("gone".to_owned())]);
        let now = answers(start + Duration::from_secs(2), vec![Ok(live(3, 1)), Ok(live(3, 1))]);
        let picture = Picture::of(&now, Some(&before));
        // 62 and 20 requests in 2 s; the other has said nothing before.
        assert_eq!(picture.cluster.requests_per_s, Some(41.0));
        assert_eq!(picture.cluster.hit_ratio, Some(40.0 / 80.0));
        assert_eq!((picture.cluster.nodes_up, picture.cluster.nodes), (1, 2));
        assert_eq!((picture.cluster.in_flight, picture.cluster.admission_limit), (6, Some(18)));
        assert_eq!((picture.cluster.p50_s, picture.cluster.imbalance), (Some(0.001), Some(1.0)));
        assert!((picture.cluster.p99_s.unwrap() - 0.00198).abs() < 1e-9);
        assert_eq!(picture.decisions["first"], 6);
        assert_eq!((picture.nodes[0].requests_per_s, picture.nodes[0].errors), (Some(31.0), 3));
        assert_eq!(picture.nodes[2].requests_per_s, None);
    }

    #[test]
    fn counters_that_begin_anew_are_no_rate() {
        let start = Instant::now();
        let before = answers(start, vec![Ok(live(3, 1))]);
        for said in [live(1, 2), live(1, 1)] {
            let now = answers(start + Duration::from_secs(1), vec![Ok(said)]);
            let picture = Picture::of(&now, Some(&before));
            assert_eq!((picture.cluster.requests_per_s, picture.cluster.p99_s), (None, None));
        }
    }

    #[test]
    fn nodes_are_ordered() {
        let mut picture = Picture::of(&answers(Instant::now(), vec![Ok(live(1, 1))]), None);
        picture.sort(SortBy::Hits);
        assert_eq!(picture.nodes[0].name, "a");
        picture.nodes[1].load = 7;
        picture.sort(SortBy::Load);
        assert_eq!(picture.nodes[0].name, "b");
        picture.sort(SortBy::Name);
        assert_eq!(picture.nodes[0].name, "a");
        let all = [SortBy::Name, SortBy::Load, SortBy::Requests, SortBy::Hits];
        assert!(all.iter().all(|by| all.contains(&by.next()) && !by.name().is_empty()));
    }
}
