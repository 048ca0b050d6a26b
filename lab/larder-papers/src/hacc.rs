//! The HACC paper's experiments (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT Symposium 1999,
//! section 4): the smart router against an IP sprayer on four workloads (figures 4 to 7).
//!
//! # The benchmark
//! DBench adds users until requests fail, the mean time to connect exceeds 1 s (3 s for the dynamic
//! workloads), or the longest exceeds 2 s (5 s). Then it measures 100 s (section 3.3). Here the largest
//! number of users that meets these rules is searched for, by doubling and bisection to 2 %. Each number is a
//! run with 30 s in which the users arrive, 270 s in which memories fill, and the 100 s.
//!
//! The paper does not state what delays a connection. Here a connection is accepted if fewer than `backlog`
//! requests are in progress. Otherwise the client's SYN is lost and is sent again after 3 s, as Windows NT
//! does. The default of 40 is the ServerListenBacklog of IIS 4.0; `hacc-backlog` varies it. Rates and shares
//! are the work of the requests that begin within the 100 s, over 100 s. That is the work of a run until its
//! end, less that of the same run cut at the beginning of the window. The work left at the end therefore
//! counts, and its time does not.
//!
//! # The cluster
//! There are three nodes with 64, 64 and 32 MB, and the router. The system and the server take 24 MB of each
//! (our assumption). Costs are `hacc99`. Memories are LRU. Nodes report every 200 ms. The router's processor and
//! its line work at the same time, so that a reply takes the longer of the two. For Domino, the time of a disk
//! access is such that an unloaded OpenDocument takes the published 200 ms, whatever its processor time.
//!
//! # The router's processor
//! The published 0.0242 ms/KB is the delay that the router adds, not the time that its processor works. The
//! processor time of a KB is set by the published 80 % on `baseline`, and the other workloads follow from it.
//!
//! # The policies
//! HACC is `hacc`, with the paper's weights for static files and for Domino. The sprayer takes the nodes in
//! turn, and the least loaded node for Domino. For ASP the smart router's rule is static: files go to the
//! first node, scripts to the other two. The load of a disk is its utilisation; the paper weighs bytes per
//! second, normalised in a way that it does not state.

use std::collections::BTreeMap;
use std::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::policy::{HaccSettings, PolicySettings, StaticSettings};
use larder_core::{Bytes, TargetId, Time};
use larder_trace::synth::profiles::{ProfileKind, Profiles, profiles};
use serde::Deserialize;

mod router;

pub(super) use router::Router;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use crate::users::{ProfileUsers, UserStats, site_workload};
use larder_sim::cost::{Costs, Hacc99};
use larder_sim::{CacheChoice, Outcome, Scenario, SimNode, Workload, simulate_with};

/// Memory of the nodes, in MiB.
const NODES_MIB: [u64; 3] = [64, 64, 32];
const RAMP: Time = Time::from_secs(30);
const WARM: Time = Time::from_secs(300);
const END: Time = Time::from_secs(400);
/// Processor time of the router for a KB, in us: gives the published 80 % on `baseline` (hacc-fig04).
const ROUTER_CPU_KIB_US: f64 = 83.2;
/// The delay of an OpenDocument on an idle cluster, in us (section 4.4).
const DOCUMENT_US: f64 = 200_000.0;
/// The KB that an OpenDocument reads, and its processor time in us; see `larder_trace::synth::profiles`.
const DOCUMENT_KIB: f64 = 96.0;
const DOCUMENT_CPU_US: f64 = 30_000.0;
/// A page of the database in KB.
const PAGE_KIB: f64 = 8.0;
/// The share of the requests of `domino` that open a view in the profiles.
const VIEW_SHARE: f64 = 0.2;
/// The items of a view in the profiles: itself and its documents.
const ITEMS_PER_VIEW: u32 = 11;
/// The mean pause of `fas`, in ns.
const FAS_PAUSE_NS: f64 = 2e9;
/// A number of users that exceeds the capacity of all clusters.
const USERS_MAX: u32 = 1 << 15;

/// `hacc-bench`: the capacity of the cluster under HACC and behind a sprayer.
///
/// Lines: `HACC`, `IP-Sprayer`. x: the run, from 1; each has its own seed. The assumptions `system_mib` (24),
/// `cpu_factor` (1: factor of the items' processor times), `block_kib` (16), `backlog` (40), `view_share`
/// (0.2: share of the requests of `domino` that open a view) and `router_factor` (1: factor of the router's
/// times) can be given.
/// With `vary`, the name of one, x is its value, and there is one run. Metrics: `users` (the capacity by the
/// rules), `throughput` (requests/s), `latency_s` (mean), `connect_s` (mean) and `connect_max_s`,
/// `router_busy` and `router_cpu` (utilisation of the router and of its processor), `nodes_per_router` (nodes
/// that saturate the router), `node_cpu`, `node_cpu_first` and `node_cpu_others` (utilisation: mean over
/// nodes, of the first node, mean over the others), `disk_kb_s` (KB read from disk per second and node),
/// `disk_busy` (mean over nodes), `hit_ratio`.
#[derive(Debug)]
pub(super) struct HaccBench;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    workload: String,
    runs: Option<u64>,
    vary: Option<Variation>,
    values: Option<Vec<f64>>,
    #[serde(default)]
    assume: BTreeMap<Variation, f64>,
}

/// The parameter that is varied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Variation {
    SystemMib,
    CpuFactor,
    BlockKib,
    Backlog,
    ViewShare,
    RouterFactor,
}

/// Our assumptions about the nodes that have much influence.
#[derive(Clone, Copy, Debug)]
struct NodeAssumptions {
    /// Memory of a node that system and server take, in MiB.
    system_mib: f64,
    /// The factor of the items' processor times.
    cpu_factor: f64,
    /// The block size of files, in KiB.
    block_kib: f64,
    /// The number of requests in progress from which the cluster accepts no connection.
    backlog: f64,
    /// The share of the requests of `domino` that open a view.
    view_share: f64,
    /// The factor of the router's times.
    router_factor: f64,
}

impl Default for NodeAssumptions {
    fn default() -> Self {
        Self {
            system_mib: 24.0,
            cpu_factor: 1.0,
            block_kib: 16.0,
            backlog: 40.0,
            view_share: VIEW_SHARE,
            router_factor: 1.0,
        }
    }
}

impl NodeAssumptions {
    fn with(self, vary: Variation, value: f64) -> Result<Self, String> {
        let (guess, key, range, good) = match vary {
            Variation::SystemMib => {
                (Self { system_mib: value, ..self }, "system_mib", "0 to 31", (0.0..=31.0).contains(&value))
            }
            Variation::CpuFactor => {
                (Self { cpu_factor: value, ..self }, "cpu_factor", "0.1 to 5", (0.1..=5.0).contains(&value))
            }
            Variation::BlockKib => (
                Self { block_kib: value, ..self },
                "block_kib",
                "4 to 1,024",
                (4.0..=1_024.0).contains(&value),
            ),
            Variation::Backlog => {
                (Self { backlog: value, ..self }, "backlog", "1 to 10,000", (1.0..=10_000.0).contains(&value))
            }
            Variation::ViewShare => (
                Self { view_share: value, ..self },
                "view_share",
                "0.2 to 1",
                (VIEW_SHARE..=1.0).contains(&value),
            ),
            Variation::RouterFactor => (
                Self { router_factor: value, ..self },
                "router_factor",
                "0 to 10",
                (0.0..=10.0).contains(&value),
            ),
        };
        if good { Ok(guess) } else { Err(format!("'values' of '{key}' must be {range}")) }
    }
}

#[derive(Debug)]
struct BenchPlan {
    kind: ProfileKind,
    /// The x, the seed and the assumptions.
    points: Vec<(f64, u64, NodeAssumptions)>,
}

const LINES: [&str; 2] = ["HACC", "IP-Sprayer"];

impl Builtin for HaccBench {
    fn name(&self) -> &'static str {
        "hacc-bench"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let RawPlan { workload, runs, vary, values, assume } = params(table)?;
        let base = assume
            .into_iter()
            .try_fold(NodeAssumptions::default(), |base, (key, value)| base.with(key, value))?;
        let kind = workload.parse().map_err(|error: larder_trace::synth::SynthError| error.to_string())?;
        let points = match (runs, vary, values) {
            (Some(runs), None, None) => {
                if !(1..=100).contains(&runs) {
                    return Err("'runs' must be 1 to 100".to_owned());
                }
                (1..=runs).map(|run| (run as f64, run, base)).collect()
            }
            (None, Some(vary), Some(values)) => {
                if values.is_empty() || values.len() > 100 {
                    return Err("'values' must be 1 to 100 numbers".to_owned());
                }
                let point = |value: f64| Ok((value, 1, base.with(vary, value)?));
                values.into_iter().map(point).collect::<Result<_, String>>()?
            }
            _ => return Err("give either 'runs', or 'vary' and 'values'".to_owned()),
        };
        Ok(Box::new(BenchPlan { kind, points }))
    }
}

impl Plan for BenchPlan {
    fn lines(&self) -> Vec<String> {
        LINES.map(str::to_owned).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec![
            "users",
            "throughput",
            "latency_s",
            "connect_s",
            "connect_max_s",
            "router_busy",
            "router_cpu",
            "nodes_per_router",
            "node_cpu",
            "node_cpu_first",
            "node_cpu_others",
            "disk_kb_s",
            "disk_busy",
            "hit_ratio",
        ]
    }

    fn jobs(&self) -> usize {
        LINES.len() * self.points.len()
    }

    fn key(&self, job: usize) -> String {
        let (line, (_, seed, guess)) = self.point(job);
        format!("{} {line} seed {seed} {guess:?} {:?} {NODES_MIB:?}", self.kind.name(), Hacc99::default())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (line, (x, seed, guess)) = self.point(job);
        let trial = Trial::new(self.kind, line == LINES[0], seed, guess);
        let users = trial.find_most_users(Trial::is_within_limits)?;
        let values = trial.measure(users)?.into_iter().chain([("users", f64::from(users))]);
        Ok(vec![Sample::new(line, x, values)])
    }
}

impl BenchPlan {
    fn point(&self, job: usize) -> (&'static str, (f64, u64, NodeAssumptions)) {
        (LINES[job % LINES.len()], self.points[job / LINES.len()])
    }
}

/// A workload on the cluster under a policy.
struct Trial {
    kind: ProfileKind,
    costs: Hacc99,
    /// Processor time of the router for a KB, in us.
    router_cpu_kib_us: f64,
    profiles: Profiles,
    workload: Workload,
    backlog: u32,
    scenario: Scenario,
}

impl Trial {
    fn new(kind: ProfileKind, is_smart: bool, seed: u64, guess: NodeAssumptions) -> Self {
        let mut costs =
            relay(Hacc99 { block_bytes: (guess.block_kib * 1_024.0) as u64, ..Hacc99::default() });
        costs.router_us *= guess.router_factor;
        costs.router_kib_us *= guess.router_factor;
        costs.line_kib_us *= guess.router_factor;
        if kind == ProfileKind::Domino {
            costs.access_us = document_access_us(&costs, guess.cpu_factor);
        }
        let mut profiles = profiles(kind, seed);
        match kind {
            ProfileKind::Domino => open_views(&mut profiles, guess.view_share, seed),
            ProfileKind::Fas => draw_pauses(&mut profiles, seed),
            ProfileKind::Baseline | ProfileKind::Asp => {}
        }
        let mut workload = site_workload(&profiles.items, 0);
        for item in &mut workload.items {
            item.cpu_ns = (item.cpu_ns as f64 * guess.cpu_factor) as u64;
        }
        let policy = match (kind, is_smart) {
            (ProfileKind::Asp, true) => PolicyKind::Static,
            (_, true) => PolicyKind::Hacc,
            (ProfileKind::Domino, false) => PolicyKind::LeastConn,
            (_, false) => PolicyKind::Rr,
        };
        let is_domino = kind == ProfileKind::Domino;
        let settings = Settings {
            policy,
            seed,
            admission: Admission::Unlimited,
            policies: PolicySettings {
                // One node serves files (class N), two serve scripts (class CB).
                static_partition: StaticSettings { shares: [1, 0, 2, 0] },
                hacc: if is_domino { HaccSettings::DOMINO } else { HaccSettings::STATIC_FILES },
                ..PolicySettings::default()
            },
            ..Settings::default()
        };
        let left = |mib: u64| Bytes(((mib as f64 - guess.system_mib) * 1_048_576.0) as u64);
        let node = |mib: u64| SimNode::with_cache(left(mib));
        let scenario = Scenario {
            nodes: NODES_MIB.map(node).to_vec(),
            cache: CacheChoice::Kind(CacheKind::Lru),
            costs: Costs::Hacc99(costs),
            report_every: Some(Duration::from_millis(200)),
            ..Scenario::lard98(1, settings)
        };
        let router_cpu_kib_us = ROUTER_CPU_KIB_US * guess.router_factor;
        let backlog = guess.backlog as u32;
        Self { kind, costs, router_cpu_kib_us, profiles, workload, backlog, scenario }
    }

    /// Runs the workload; no request begins after `until`. Statistics of users count from `WARM` on.
    fn run(&self, users: u32, until: Time) -> Result<(UserStats, Outcome), PaperError> {
        let mut stats = UserStats::default();
        let source = ProfileUsers::new(&self.profiles, users, self.backlog, RAMP, WARM..until, &mut stats);
        let outcome = simulate_with(&self.workload, &self.scenario, Box::new(source))?;
        Ok((stats, outcome))
    }

    /// Returns whether this number of users meets DBench's rules.
    fn is_within_limits(&self, users: u32) -> Result<bool, PaperError> {
        let (stats, _) = self.run(users, END)?;
        let (mean_s, longest_s) = match self.kind {
            ProfileKind::Baseline | ProfileKind::Fas => (1.0, 2.0),
            ProfileKind::Domino | ProfileKind::Asp => (3.0, 5.0),
        };
        let connects = stats.connects.delays();
        Ok(stats.failed == 0 && connects.mean_s <= mean_s && connects.max_s <= longest_s)
    }

    /// Returns the largest number of users for which `holds`, to 2 %.
    fn find_most_users(
        &self,
        holds: impl Fn(&Self, u32) -> Result<bool, PaperError>,
    ) -> Result<u32, PaperError> {
        let (mut good, mut bad) = (1, 2);
        while bad < USERS_MAX && holds(self, bad)? {
            (good, bad) = (bad, bad * 2);
        }
        while bad - good > 1.max(good / 50) {
            let middle = good.midpoint(bad);
            if holds(self, middle)? { good = middle } else { bad = middle }
        }
        Ok(good)
    }

    fn measure(&self, users: u32) -> Result<Vec<(&'static str, f64)>, PaperError> {
        let ((stats, all), (_, before)) = (self.run(users, END)?, self.run(users, WARM)?);
        let delays = stats.delays.delays();
        let (span_s, count) = (END.since(WARM).as_secs_f64(), NODES_MIB.len() as f64);
        let share = |of: &dyn Fn(&Outcome) -> f64| (of(&all) - of(&before)) / span_s;
        let router = share(&|outcome| outcome.front_busy * outcome.seconds);
        let cpu = share(&|outcome| seconds(outcome, |node| node.cpu_busy));
        let disk = share(&|outcome| seconds(outcome, |node| node.disk_busy));
        let first =
            share(&|outcome| outcome.nodes.first().map_or(0.0, |node| node.cpu_busy * outcome.seconds));
        let (hits, requests) = (all.hits - before.hits.min(all.hits), all.requests - before.requests);
        Ok(vec![
            ("throughput", delays.count as f64 / span_s),
            ("latency_s", delays.mean_s),
            ("connect_s", stats.connects.delays().mean_s),
            ("connect_max_s", stats.connects.delays().max_s),
            ("router_busy", router),
            ("router_cpu", delays.count as f64 * self.router_cpu_s() / span_s),
            ("nodes_per_router", count / router.max(f64::MIN_POSITIVE)),
            ("node_cpu", cpu / count),
            ("node_cpu_first", first),
            ("node_cpu_others", (cpu - first) / (count - 1.0)),
            ("disk_kb_s", share(&|outcome| outcome.bytes_read as f64 / 1_024.0) / count),
            ("disk_busy", disk / count),
            ("hit_ratio", hits as f64 / requests.max(1) as f64),
        ])
    }

    /// Returns the processor time of the router for a request in seconds, as the mean over the profiles.
    fn router_cpu_s(&self) -> f64 {
        let visits = || self.profiles.profiles.iter().flatten();
        let kib = |item: u32| self.costs.reply(&self.workload.items[item as usize]) as f64 / 1_024.0;
        let cpu_us = |item: u32| self.costs.router_us + kib(item) * self.router_cpu_kib_us;
        visits().map(|visit| cpu_us(visit.item)).sum::<f64>() / visits().count() as f64 / 1e6
    }
}

/// Returns costs whose router relays a KB in the time of its processor or its line, whichever is longer.
fn relay(costs: Hacc99) -> Hacc99 {
    Hacc99 { line_kib_us: (costs.line_kib_us - costs.router_kib_us).max(0.0), ..costs }
}

/// Returns a random number from 0 to 1 that depends on the seed and the number of a visit.
fn draw(seed: u64, number: usize) -> f64 {
    let hash = TargetId::of(format!("{seed} {number}").as_bytes()).0 as u32;
    (f64::from(hash) + 0.5) / (f64::from(u32::MAX) + 1.0)
}

/// Turns requests for documents into requests for their views, so that `share` of the requests open a view.
fn open_views(profiles: &mut Profiles, share: f64, seed: u64) {
    let turned = (share - VIEW_SHARE) / (1.0 - VIEW_SHARE);
    for (number, visit) in profiles.profiles.iter_mut().flatten().enumerate() {
        if draw(seed, number) < turned {
            visit.item -= visit.item % ITEMS_PER_VIEW;
        }
    }
}

/// Gives the visits exponential pauses. With equal pauses, users whose replies end together, because one read
/// serves them all, stay together for the rest of the run. The profiles of a log have no such pauses.
fn draw_pauses(profiles: &mut Profiles, seed: u64) {
    for (number, visit) in profiles.profiles.iter_mut().flatten().enumerate() {
        visit.pause_ns = (-draw(seed, number).ln() * FAS_PAUSE_NS) as u64;
    }
}

/// Returns the time of a disk access with which an OpenDocument takes the published time on an idle cluster.
fn document_access_us(costs: &Hacc99, cpu_factor: f64) -> f64 {
    let reply_kib = costs.reply_bytes as f64 / 1_024.0;
    let router_us = costs.router_us + reply_kib * (costs.router_kib_us + costs.line_kib_us);
    let cpu_us = costs.request_us + reply_kib * costs.send_kib_us + DOCUMENT_CPU_US * cpu_factor;
    let page_us = (DOCUMENT_US - router_us - cpu_us) / (DOCUMENT_KIB / PAGE_KIB);
    page_us - PAGE_KIB * 1_024.0 / costs.disk_mb_s
}

/// Returns the busy time of a kind of station in a run, in seconds, as the sum over the nodes.
fn seconds(outcome: &Outcome, of: fn(&larder_sim::NodeOutcome) -> f64) -> f64 {
    outcome.nodes.iter().map(of).sum::<f64>() * outcome.seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_users_are_found_to_two_percent() {
        let trial = Trial::new(ProfileKind::Baseline, true, 1, NodeAssumptions::default());
        for limit in [1, 2, 37, 500, 4_711] {
            let found = trial.find_most_users(|_, users| Ok(users <= limit)).expect("a search");
            assert!(found <= limit && limit - found <= 1.max(limit / 50), "{found} for {limit}");
        }
    }

    #[test]
    fn few_users_are_within_the_limits_and_many_are_not() {
        let trial = Trial::new(ProfileKind::Baseline, false, 1, NodeAssumptions::default());
        assert_eq!((trial.is_within_limits(4), trial.is_within_limits(1_000)), (Ok(true), Ok(false)));
    }

    #[test]
    fn stations_work_no_longer_than_the_window() {
        let trial = Trial::new(ProfileKind::Baseline, false, 1, NodeAssumptions::default());
        let values = trial.measure(8).expect("a run");
        let of =
            |name: &str| values.iter().find(|(key, _)| *key == name).map_or(f64::NAN, |(_, value)| *value);
        // Eight users make requests 2 s apart, which take some 0.3 s.
        assert!((3.0..4.0).contains(&of("throughput")), "{values:?}");
        for share in ["router_busy", "node_cpu", "disk_busy", "hit_ratio"] {
            assert!((0.0..1.0).contains(&of(share)) && of(share) > 0.0, "{share}: {values:?}");
        }
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let error = |text: &str| HaccBench.plan(&text.parse().expect("TOML")).err().unwrap_or_default();
        assert!(error("workload = 'x'\nruns = 3").contains("domino"));
        assert!(error("workload = 'asp'\nruns = 0").contains("'runs'"));
        assert!(error("workload = 'asp'\nruns = 1\nvary = 'system_mib'").contains("either"));
        assert!(error("workload = 'asp'\nvary = 'system_mib'\nvalues = [32.0]").contains("0 to 31"));
        assert!(error("workload = 'asp'\nruns = 1\nassume = { backlog = 0.0 }").contains("'backlog'"));
    }

    #[test]
    fn views_and_pauses_follow_the_assumptions() {
        let mut domino = profiles(ProfileKind::Domino, 1);
        open_views(&mut domino, 0.6, 1);
        let visits = || domino.profiles.iter().flatten();
        let views = visits().filter(|visit| visit.item % ITEMS_PER_VIEW == 0).count() as f64;
        // There are 20,000 requests. Six standard deviations are 0.021.
        assert!((views / visits().count() as f64 - 0.6).abs() < 0.021, "{views}");
        let mut fas = profiles(ProfileKind::Fas, 1);
        draw_pauses(&mut fas, 1);
        let pauses = || fas.profiles.iter().flatten().map(|visit| visit.pause_ns as f64);
        let mean = pauses().sum::<f64>() / pauses().count() as f64;
        assert!((mean / FAS_PAUSE_NS - 1.0).abs() < 0.043, "{mean}");
        let longer = pauses().filter(|pause| *pause > FAS_PAUSE_NS).count() as f64 / pauses().count() as f64;
        assert!((longer - 0.368).abs() < 0.021, "{longer}");
    }

    #[test]
    fn an_unloaded_document_takes_the_published_time() {
        for cpu_factor in [1.0, 3.0] {
            let guess = NodeAssumptions { cpu_factor, ..NodeAssumptions::default() };
            let trial = Trial::new(ProfileKind::Domino, true, 1, guess);
            let document = &trial.workload.items[1];
            let costs = &trial.costs;
            let idle_ns = costs.router_ns(document) + costs.cpu_ns(document) + costs.read_ns(document);
            assert!((idle_ns as f64 / 2e8 - 1.0).abs() < 1e-3, "{cpu_factor}");
        }
    }
}
