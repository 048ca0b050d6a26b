//! The HACC paper's experiments (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT Symposium 1999,
//! section 4): the smart router against an IP sprayer on four workloads (figures 4 to 7).
//!
//! # The benchmark
//! DBench adds users until requests fail, the mean time to connect exceeds 1 s (3 s for the dynamic
//! workloads), or the longest exceeds 2 s (5 s). Then it measures 100 s (section 3.3). Here the largest
//! number of users that meets these rules is searched for, by doubling and bisection to 2 %. Each number is a
//! run with 30 s in which the users arrive, 270 s in which memories fill, and the 100 s.
//!
//! Connecting is not modelled, because a relaying router accepts at once and the paper's clients wait for a
//! backlog. The waiting time of a request takes its place: its delay less its delay on an idle cluster, read
//! from disk. The rule on the longest time is left out. A large file waits at the disk for each of its
//! blocks, while connecting waits once; both times rise together at a saturated server, which is what the
//! rules look for. Rates and shares are the work of the requests that begin within the 100 s, over 100 s.
//! That is the work of a run until its end, less that of the same run cut at the beginning of the window. The
//! work left at the end therefore counts, and its time does not.
//!
//! ASP is measured at another number of users, equal for both: the number at which the processors of the
//! sprayer's nodes have 55 % utilisation, as in the paper. At the limit the rules would make the delays
//! equal, whereas the paper compares them.
//!
//! # The cluster
//! There are three nodes with 64, 64 and 32 MB, and the router. The system and the server take 24 MB of each
//! (our assumption). Costs are `hacc99`. Memories are LRU. Nodes report every 200 ms.
//!
//! # The policies
//! HACC is `hacc`, with the paper's weights for static files and for Domino. The sprayer takes the nodes in
//! turn, and the least loaded node for Domino. For ASP the smart router's rule is static: files go to the
//! first node, scripts to the other two. The load of a disk is its utilisation; the paper weighs bytes per
//! second, normalised in a way that it does not state.

use std::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::policy::{HaccSettings, PolicySettings, StaticSettings};
use larder_core::{Bytes, Time};
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
/// The processor utilisation of the paper's nodes behind the sprayer on ASP: 50 to 60 % (figure 7).
const ASP_CPU: f64 = 0.55;
/// A number of users that exceeds the capacity of all clusters.
const USERS_MAX: u32 = 1 << 15;

/// `hacc-bench`: the capacity of the cluster under HACC and behind a sprayer.
///
/// Lines: `HACC`, `IP-Sprayer`. x: the run, from 1; each has its own seed. With `vary`, one of `system_mib`
/// (24), `cpu_factor` (1: factor of the items' processor times) and `block_kib` (16), x is its value, and
/// there is one run. Metrics: `users` (the capacity by the rules), `users_measured` (users of the other
/// values), `throughput` (requests/s), `latency_s` (mean), `router_busy` and `router_cpu` (utilisation of the
/// router and of its processor), `nodes_per_router` (nodes that saturate the router), `node_cpu`,
/// `node_cpu_first` and `node_cpu_others` (utilisation: mean over nodes, of the first node, mean over the
/// others), `disk_kb_s` (KB read from disk per second, all nodes), `disk_busy` (mean over nodes),
/// `hit_ratio`.
#[derive(Debug)]
pub(super) struct HaccBench;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    workload: String,
    runs: Option<u64>,
    vary: Option<Variation>,
    values: Option<Vec<f64>>,
}

/// The parameter that is varied.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Variation {
    SystemMib,
    CpuFactor,
    BlockKib,
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
}

impl Default for NodeAssumptions {
    fn default() -> Self {
        Self { system_mib: 24.0, cpu_factor: 1.0, block_kib: 16.0 }
    }
}

impl NodeAssumptions {
    fn with(self, vary: Variation, value: f64) -> Result<Self, String> {
        let (guess, key, range, good) = match vary {
            Variation::SystemMib => {
                (Self { system_mib: value, ..self }, "system_mib", "0 to 31", (0.0..=31.0).contains(&value))
            }
            Variation::CpuFactor => {
                (Self { cpu_factor: value, ..self }, "cpu_factor", "0.1 to 10", (0.1..=10.0).contains(&value))
            }
            Variation::BlockKib => (
                Self { block_kib: value, ..self },
                "block_kib",
                "4 to 1,024",
                (4.0..=1_024.0).contains(&value),
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
        let RawPlan { workload, runs, vary, values } = params(table)?;
        let kind = workload.parse().map_err(|error: larder_trace::synth::SynthError| error.to_string())?;
        let points = match (runs, vary, values) {
            (Some(runs), None, None) => {
                if !(1..=100).contains(&runs) {
                    return Err("'runs' must be 1 to 100".to_owned());
                }
                (1..=runs).map(|run| (run as f64, run, NodeAssumptions::default())).collect()
            }
            (None, Some(vary), Some(values)) => {
                if values.is_empty() || values.len() > 100 {
                    return Err("'values' must be 1 to 100 numbers".to_owned());
                }
                let point = |value: f64| Ok((value, 1, NodeAssumptions::default().with(vary, value)?));
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
            "users_measured",
            "throughput",
            "latency_s",
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
        let measured = match self.kind {
            ProfileKind::Asp => {
                Trial::new(self.kind, false, seed, guess).find_most_users(Trial::is_moderate)?
            }
            _ => users,
        };
        let values = trial.measure(measured)?;
        let values =
            values.into_iter().chain([("users", f64::from(users)), ("users_measured", f64::from(measured))]);
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
    profiles: Profiles,
    workload: Workload,
    alone_ns: Vec<u64>,
    scenario: Scenario,
}

impl Trial {
    fn new(kind: ProfileKind, is_smart: bool, seed: u64, guess: NodeAssumptions) -> Self {
        let costs = Hacc99 { block_bytes: (guess.block_kib * 1_024.0) as u64, ..Hacc99::default() };
        let profiles = profiles(kind, seed);
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
        let alone_ns = workload.items.iter().map(|item| costs.alone_ns(item)).collect();
        Self { kind, costs, profiles, workload, alone_ns, scenario }
    }

    /// Runs the workload; no request begins after `until`. Statistics of users count from `WARM` on.
    fn run(&self, users: u32, until: Time) -> Result<(UserStats, Outcome), PaperError> {
        let mut stats = UserStats::default();
        let source = ProfileUsers::new(&self.profiles, &self.alone_ns, users, RAMP, WARM..until, &mut stats);
        let outcome = simulate_with(&self.workload, &self.scenario, Box::new(source))?;
        Ok((stats, outcome))
    }

    /// Returns whether this number of users meets DBench's rules.
    fn is_within_limits(&self, users: u32) -> Result<bool, PaperError> {
        let (stats, _) = self.run(users, END)?;
        let mean_s = match self.kind {
            ProfileKind::Baseline | ProfileKind::Fas => 1.0,
            ProfileKind::Domino | ProfileKind::Asp => 3.0,
        };
        Ok(stats.refused == 0 && stats.waits.delays().mean_s <= mean_s)
    }

    /// Returns whether the nodes' processors have at most the utilisation of the paper's nodes behind the
    /// sprayer on ASP.
    fn is_moderate(&self, users: u32) -> Result<bool, PaperError> {
        let busy = |outcome: &Outcome| seconds(outcome, |node| node.cpu_busy);
        let window_s = busy(&self.run(users, END)?.1) - busy(&self.run(users, WARM)?.1);
        Ok(window_s / NODES_MIB.len() as f64 / END.since(WARM).as_secs_f64() <= ASP_CPU)
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
            ("router_busy", router),
            ("router_cpu", router * self.router_cpu_share()),
            ("nodes_per_router", count / router.max(f64::MIN_POSITIVE)),
            ("node_cpu", cpu / count),
            ("node_cpu_first", first),
            ("node_cpu_others", (cpu - first) / (count - 1.0)),
            ("disk_kb_s", share(&|outcome| outcome.bytes_read as f64 / 1_024.0)),
            ("disk_busy", disk / count),
            ("hit_ratio", hits as f64 / requests.max(1) as f64),
        ])
    }

    /// Returns the share of the router's time in which its processor works, over the profiles' requests.
    fn router_cpu_share(&self) -> f64 {
        let items =
            self.profiles.profiles.iter().flatten().map(|visit| &self.workload.items[visit.item as usize]);
        let (mut cpu, mut all) = (0.0, 0.0);
        for item in items {
            let router = self.costs.router_ns(item) as f64;
            cpu += router * self.costs.router_cpu_share(item);
            all += router;
        }
        cpu / all.max(f64::MIN_POSITIVE)
    }
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
    }
}
