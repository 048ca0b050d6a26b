//! The HACC paper's experiments (Zhang, Barrientos, Chen and Seltzer, USENIX Windows NT Symposium 1999, section 4): the
//! smart router against an IP sprayer on four workloads (figures 4 to 7).
//!
//! # The benchmark
//! DBench adds users until requests fail, the mean time to connect exceeds 1 s (3 s for the dynamic workloads) or the
//! longest exceeds 2 s (5 s), and then measures 100 s (section 3.3). Here the largest number of users that passes these
//! rules is searched for, by doubling and halving to 2 %: each number is a run of its own with 30 s in which the users
//! come, 270 s in which memories fill, and the 100 s. Connecting is not modelled: a relaying router accepts at once, and
//! what a client of the paper waits for is a backlog. In its place stands the time that a request waits for others: its
//! delay less what it would take alone, read from disk. The rule on the longest time is left out: a large file waits at
//! the disk again for each of its blocks, while connecting waits once, and both times rise together where a server is
//! saturated, which is what the rules look for.
//!
//! ASP is measured at another number of users, the same for both: that at which the sprayer's nodes work 55 % of the time,
//! as the paper's do. At the limit the rules make the delays equal, whereas the paper compares them.
//!
//! # The cluster
//! Three nodes with 64, 64 and 32 MB, of which 24 MB each are taken by the system and the server (ours), and the router;
//! costs are `hacc99`. A node's memory is replaced by least recent use. Nodes report every 200 ms.
//!
//! # The policies
//! HACC is `hacc`, with the paper's weights for static files and for Domino. The sprayer takes the nodes in turn, and for
//! Domino the least loaded one. For ASP the smart router's rule is static: files to the first node, scripts to the other
//! two.

use std::time::Duration;

use larder_core::cache::CacheKind;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::policy::hacc::HaccSettings;
use larder_core::{Bytes, Time};
use larder_trace::synth::profiles::{ProfileKind, Profiles, profiles};
use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use crate::cost::{Costs, Hacc99};
use crate::users::{ProfileUsers, Seen};
use crate::{CacheChoice, Outcome, Scenario, SimNode, Workload, simulate_with};

/// Memory of the nodes, in MiB.
const NODES_MIB: [u64; 3] = [64, 64, 32];
/// What system and server take of it, in MiB.
const SYSTEM_MIB: u64 = 24;
const RAMP: Time = Time::from_secs(30);
const WARM: Time = Time::from_secs(300);
const END: Time = Time::from_secs(400);
/// How much the processors of the paper's nodes work behind the sprayer on ASP: 50 to 60 % (figure 7).
const ASP_CPU: f64 = 0.55;
/// More users than any of the clusters bears.
const USERS_MAX: u32 = 1 << 15;

/// `hacc-bench`: what the cluster bears under HACC and behind a sprayer.
///
/// Lines: `HACC`, `IP-Sprayer`. x: the run, from 1; each has a seed of its own. Metrics: `users` (most by the rules),
/// `users_measured` (those of the other values), `throughput` (requests/s),
/// `latency_s` (mean), `router_busy` and `router_cpu` (shares of the time that it works, and its processor), `node_cpu` and `node_cpu_first`,
/// `node_cpu_others` (shares of the time: mean over nodes, of the first node, mean over the others), `disk_kb_s` (KB read
/// from disk per second, all nodes), `disk_busy` (mean over nodes), `hit_ratio`.
#[derive(Debug)]
pub(super) struct Bench;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawPlan {
    workload: String,
    runs: u64,
}

#[derive(Debug)]
struct BenchPlan {
    kind: ProfileKind,
    runs: u64,
}

const LINES: [&str; 2] = ["HACC", "IP-Sprayer"];

impl Builtin for Bench {
    fn name(&self) -> &'static str {
        "hacc-bench"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let RawPlan { workload, runs } = params(table)?;
        let kind = workload.parse().map_err(|error: larder_trace::synth::SynthError| error.to_string())?;
        if !(1..=100).contains(&runs) {
            return Err("'runs' must be 1 to 100".to_owned());
        }
        Ok(Box::new(BenchPlan { kind, runs }))
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
            "node_cpu",
            "node_cpu_first",
            "node_cpu_others",
            "disk_kb_s",
            "disk_busy",
            "hit_ratio",
        ]
    }

    fn jobs(&self) -> usize {
        LINES.len() * self.runs as usize
    }

    fn key(&self, job: usize) -> String {
        let (line, run) = self.point(job);
        format!("{} {line} run {run} {:?} {NODES_MIB:?}", self.kind.name(), Hacc99::default())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (line, run) = self.point(job);
        let trial = Trial::new(self.kind, line == LINES[0], run);
        let users = trial.most(Trial::bears)?;
        let measured = match self.kind {
            ProfileKind::Asp => Trial::new(self.kind, false, run).most(Trial::is_moderate)?,
            _ => users,
        };
        let values = trial.measure(measured)?;
        let values =
            values.into_iter().chain([("users", f64::from(users)), ("users_measured", f64::from(measured))]);
        Ok(vec![Sample::new(line, run as f64, values)])
    }
}

impl BenchPlan {
    fn point(&self, job: usize) -> (&'static str, u64) {
        (LINES[job % LINES.len()], (job / LINES.len()) as u64 + 1)
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
    fn new(kind: ProfileKind, is_smart: bool, seed: u64) -> Self {
        let costs = Hacc99::default();
        let profiles = profiles(kind, seed);
        let workload = Workload::of_site(&profiles.items, 0);
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
            // One node for files (class N), two for scripts (class CB).
            static_shares: [1, 0, 2, 0],
            hacc: if is_domino { HaccSettings::DOMINO } else { HaccSettings::STATIC_FILES },
            ..Settings::default()
        };
        let node = |mib: u64| SimNode::with_cache(Bytes::mib(mib - SYSTEM_MIB));
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

    fn run(&self, users: u32, warmup: usize) -> Result<(Seen, Outcome), PaperError> {
        let mut seen = Seen::default();
        let scenario = Scenario { warmup, ..self.scenario.clone() };
        let source = ProfileUsers::new(&self.profiles, &self.alone_ns, users, RAMP, WARM..END, &mut seen);
        let outcome = simulate_with(&self.workload, &scenario, Box::new(source))?;
        Ok((seen, outcome))
    }

    /// Whether DBench would go on with more users.
    fn bears(&self, users: u32) -> Result<bool, PaperError> {
        let (seen, _) = self.run(users, 0)?;
        let mean_s = match self.kind {
            ProfileKind::Baseline | ProfileKind::Fas => 1.0,
            ProfileKind::Domino | ProfileKind::Asp => 3.0,
        };
        Ok(seen.refused == 0 && seen.waits.delays().mean_s <= mean_s)
    }

    /// Whether the nodes' processors work at most as much as the paper's behind the sprayer on ASP.
    fn is_moderate(&self, users: u32) -> Result<bool, PaperError> {
        let (_, outcome) = self.run(users, 0)?;
        let busy = outcome.nodes.iter().map(|node| node.cpu_busy).sum::<f64>() / outcome.nodes.len() as f64;
        Ok(busy <= ASP_CPU)
    }

    /// The largest number of users for which `holds`, to 2 %.
    fn most(&self, holds: impl Fn(&Self, u32) -> Result<bool, PaperError>) -> Result<u32, PaperError> {
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
        let (seen, all) = self.run(users, 0)?;
        let delays = seen.delays.delays();
        let warmup = all.requests_all.saturating_sub(delays.count);
        let (_, outcome) = self.run(users, warmup as usize)?;
        let count = outcome.nodes.len() as f64;
        let mean = |of: fn(&crate::NodeOutcome) -> f64| outcome.nodes.iter().map(of).sum::<f64>() / count;
        let first = outcome.nodes.first().map_or(0.0, |node| node.cpu_busy);
        let span_s = END.since(WARM).as_secs_f64();
        Ok(vec![
            ("throughput", delays.count as f64 / span_s),
            ("latency_s", delays.mean_s),
            ("router_busy", outcome.front_busy),
            ("router_cpu", outcome.front_busy * self.router_cpu_share()),
            ("node_cpu", mean(|node| node.cpu_busy)),
            ("node_cpu_first", first),
            ("node_cpu_others", (mean(|node| node.cpu_busy) * count - first) / (count - 1.0)),
            ("disk_kb_s", outcome.bytes_read as f64 / 1_024.0 / outcome.seconds),
            ("disk_busy", mean(|node| node.disk_busy)),
            ("hit_ratio", 1.0 - outcome.miss_ratio),
        ])
    }

    /// The part of the router's time that is its processor's, over what the profiles ask for.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_users_are_found_to_two_percent() {
        let trial = Trial::new(ProfileKind::Baseline, true, 1);
        for limit in [1, 2, 37, 500, 4_711] {
            let found = trial.most(|_, users| Ok(users <= limit)).expect("a search");
            assert!(found <= limit && limit - found <= 1.max(limit / 50), "{found} for {limit}");
        }
    }

    #[test]
    fn few_users_are_borne_and_too_many_are_not() {
        let trial = Trial::new(ProfileKind::Baseline, false, 1);
        assert_eq!((trial.bears(4), trial.bears(1_000)), (Ok(true), Ok(false)));
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let error = |text: &str| Bench.plan(&text.parse().expect("TOML")).err().unwrap_or_default();
        assert!(error("workload = 'x'\nruns = 3").contains("domino"));
        assert!(error("workload = 'asp'\nruns = 0").contains("'runs'"));
    }
}
