//! The CAP paper's experiments (Casalicchio and Colajanni, WWW 2001): page delays at sites of mixed services (figures 4
//! to 6) and how WRR depends on its gather period (figure 3). Figure 2 is [`super::cap_vector`].
//!
//! # The load
//! The paper gives 100 to 300 sessions a second and 2 to 32 servers, not which of them its figures are for. Here one rule
//! sets the load of every experiment: so many sessions a second that under CAP the kind of station that works most
//! (processor, disk, network interface, back-end) works a given share of the time, mean over the nodes. It is found by a
//! run with few sessions, as utilisation grows in proportion to the rate: what a request takes does not
//! depend on it, and CAP's hit ratio neither.
//!
//! # The policies
//! CAP, LARD and static partitioning dispatch each request (layer 7); WRR, RR and RAN each connection, which is a page
//! (layer 4). WRR is "always able to choose the best parameters": here the best of the number of processes gathered every
//! 0.1, 0.5, 1, 2, 5 and 10 s, by the 90th percentile. LARD's utilisation is reported as often as suits it best, by the
//! same rule. Utilisation is that of the busiest of processor, disk, network interface and back-end. One line is not in
//! the paper: LARD as its authors published it, which goes by connections that the switch counts itself and needs no
//! reports.

use std::sync::OnceLock;
use std::time::Duration;

use larder_core::class::ServiceClass;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::{Bytes, Time};
use larder_trace::synth::sessions::{SessionRecipe, Site};
use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use crate::cost::{Cap01, Costs, Layer};
use crate::outcome::DelayLog;
use crate::users::SessionUsers;
use crate::{CacheChoice, Outcome, Scenario, SimNode, Workload, simulate_with};

/// Periods of which the best is taken, in seconds.
const PERIODS_S: [f64; 6] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0];
/// Sessions a second and node of the run that the load is computed from: too few to fill any station.
const PROBE_PER_NODE_S: f64 = 3.0;
/// A node's memory as a share of the document tree (section 4.2).
const MEMORY_SHARE: f64 = 0.15;

const fn warm_s() -> f64 {
    40.0
}

const fn until_s() -> f64 {
    140.0
}

/// A cluster and a site.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Bench {
    /// The site.
    site: String,
    /// Servers.
    nodes: u16,
    /// The share of the time that the busiest kind of station works under CAP, above 0 and below 1.
    load: f64,
    /// So many seeds, from 1; their pages are put together.
    seeds: u64,
    /// Pages that begin before are not measured, in seconds.
    #[serde(default = "warm_s")]
    warm_s: f64,
    /// No page begins after, in seconds.
    #[serde(default = "until_s")]
    until_s: f64,
    #[serde(skip)]
    rate: OnceLock<Result<f64, PaperError>>,
}

/// What a policy gave.
struct Run {
    pages: DelayLog,
    outcomes: Vec<Outcome>,
}

impl Bench {
    fn check(&self) -> Result<(), String> {
        let site = self.site.parse::<Site>().map_err(|error| error.to_string())?;
        let good = (1..=1_024).contains(&self.nodes) && (1..=100).contains(&self.seeds);
        if !good {
            return Err("'nodes' must be 1 to 1,024 and 'seeds' 1 to 100".to_owned());
        }
        if !(self.load > 0.0 && self.load < 1.0) {
            return Err("'load' must be above 0 and below 1".to_owned());
        }
        if !(self.warm_s >= 0.0 && self.until_s > self.warm_s && self.until_s <= 10_000.0) {
            return Err(format!("{site}: 'until_s' must be above 'warm_s' and at most 10,000"));
        }
        Ok(())
    }

    fn key(&self) -> String {
        let Self { site, nodes, load, seeds, warm_s, until_s, .. } = self;
        let costs = Cap01::default();
        format!(
            "{site} on {nodes} at {load}, seeds {seeds}, {warm_s} to {until_s} s, {PERIODS_S:?}, {costs:?}"
        )
    }

    /// Sessions a second, by the rule.
    fn rate(&self) -> Result<f64, PaperError> {
        let found = self.rate.get_or_init(|| {
            let probe_per_s = PROBE_PER_NODE_S * f64::from(self.nodes);
            let probe = self.run(PolicyKind::Cap, 1.0, probe_per_s)?;
            let busiest = probe.busy().into_iter().fold(0.0, f64::max);
            // Tenths of a session a second, so that a rate can be quoted.
            Ok((probe_per_s * self.load / busiest * 10.0).round() / 10.0)
        });
        found.clone()
    }

    fn site(&self) -> Result<Site, PaperError> {
        self.site.parse().map_err(|error| PaperError::Workload(format!("{error}")))
    }

    /// All seeds under a policy whose nodes report every `period_s`.
    fn run(&self, policy: PolicyKind, period_s: f64, rate: f64) -> Result<Run, PaperError> {
        let mut run = Run { pages: DelayLog::new(), outcomes: Vec::new() };
        for seed in 1..=self.seeds {
            self.run_seed(policy, period_s, rate, seed, &mut run)?;
        }
        Ok(run)
    }

    fn run_seed(
        &self,
        policy: PolicyKind,
        period_s: f64,
        rate: f64,
        seed: u64,
        run: &mut Run,
    ) -> Result<(), PaperError> {
        let site = self.site()?;
        let recipe =
            SessionRecipe { sessions_per_s: rate, span_s: self.until_s, ..SessionRecipe::cap01(site) };
        let sessions = recipe.sessions(seed).map_err(|error| PaperError::Workload(error.to_string()))?;
        let is_layer4 =
            matches!(policy, PolicyKind::Random | PolicyKind::Rr | PolicyKind::WrrNum | PolicyKind::WrrTime);
        let costs =
            Cap01 { switch: if is_layer4 { Layer::Layer4 } else { Layer::Layer7 }, ..Cap01::default() };
        let memory = Bytes((sessions.tree_bytes() as f64 * MEMORY_SHARE) as u64);
        let settings = Settings {
            policy,
            seed,
            admission: Admission::Unlimited,
            t_gat: Duration::from_secs_f64(period_s),
            static_shares: site.classes().map(u32::from),
            ..Settings::default()
        };
        let scenario = Scenario {
            nodes: vec![SimNode::with_cache(memory); usize::from(self.nodes)],
            cache: CacheChoice::Kind(larder_core::cache::CacheKind::Lru),
            costs: Costs::Cap01(costs),
            warmup: (sessions.objects.len() as f64 * self.warm_s / self.until_s) as usize,
            report_every: Some(Duration::from_secs_f64(period_s)),
            ..Scenario::lard98(1, settings)
        };
        let workload = Workload::of_site(&sessions.items, costs.place_ns());
        let window = Time::ZERO + Duration::from_secs_f64(self.warm_s)
            ..Time::ZERO + Duration::from_secs_f64(self.until_s);
        let users = SessionUsers::new(&sessions, is_layer4, window, &mut run.pages);
        run.outcomes.push(simulate_with(&workload, &scenario, Box::new(users))?);
        Ok(())
    }

    /// The best of the periods for a policy: the one with the lowest 90th percentile under the first seed.
    fn best(&self, policy: PolicyKind, rate: f64) -> Result<f64, PaperError> {
        let mut best = (f64::INFINITY, PERIODS_S[0]);
        for period_s in PERIODS_S {
            let mut run = Run { pages: DelayLog::new(), outcomes: Vec::new() };
            self.run_seed(policy, period_s, rate, 1, &mut run)?;
            let p90_s = run.pages.delays().p90_s;
            if p90_s < best.0 {
                best = (p90_s, period_s);
            }
        }
        Ok(best.1)
    }
}

impl Run {
    fn mean(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        self.outcomes.iter().map(of).sum::<f64>() / self.outcomes.len().max(1) as f64
    }

    /// Shares of the time that processors, disks, network interfaces and back-ends work, mean over the nodes.
    fn busy(&self) -> [f64; 4] {
        let of = |part: fn(&crate::NodeOutcome) -> f64| {
            self.mean(|outcome| {
                outcome.nodes.iter().map(part).sum::<f64>() / outcome.nodes.len().max(1) as f64
            })
        };
        [
            of(|node| node.cpu_busy),
            of(|node| node.disk_busy),
            of(|node| node.nic_busy),
            of(|node| node.back_busy),
        ]
    }

    fn values(&self, rate: f64, period_s: f64) -> Vec<(&'static str, f64)> {
        let (delays, [cpu, disk, nic, back]) = (self.pages.delays(), self.busy());
        let most = |outcome: &Outcome| {
            let busy = |node: &crate::NodeOutcome| node.cpu_busy.max(node.disk_busy).max(node.back_busy);
            outcome.nodes.iter().map(busy).fold(0.0, f64::max)
        };
        vec![
            ("p90_s", delays.p90_s),
            ("p50_s", delays.p50_s),
            ("mean_s", delays.mean_s),
            ("hit_ratio", self.mean(|outcome| 1.0 - outcome.miss_ratio)),
            ("cpu_busy", cpu),
            ("disk_busy", disk),
            ("network_busy", nic),
            ("back_busy", back),
            ("busiest_node", self.mean(most)),
            ("switch_busy", self.mean(|outcome| outcome.front_busy)),
            ("sessions_per_s", rate),
            ("period_s", period_s),
        ]
    }
}

const METRICS: [&str; 12] = [
    "p90_s",
    "p50_s",
    "mean_s",
    "hit_ratio",
    "cpu_busy",
    "disk_busy",
    "network_busy",
    "back_busy",
    "busiest_node",
    "switch_busy",
    "sessions_per_s",
    "period_s",
];

/// `cap-pages`: how long pages take, by policy.
///
/// Lines: `CAP`, `LARD`, `WRR`, `LARD by connections`, and `StaticPartitioning` where there are several classes. x: a page delay in seconds. Metrics: `within` (share of the pages
/// that take at most x), and, the same at every x, the 90th percentile `p90_s`, `p50_s`, `mean_s`, `hit_ratio`, shares of
/// the time that stations work (mean over the nodes; `busiest_node` is the busiest station of all), `sessions_per_s`, and
/// the period that suited the policy best.
#[derive(Debug)]
pub(super) struct Pages;

#[derive(Debug)]
struct PagesPlan {
    bench: Bench,
    /// Delays at which the share is read, in seconds.
    seconds: Vec<f64>,
}

const POLICIES: [(&str, PolicyKind); 5] = [
    ("CAP", PolicyKind::Cap),
    ("LARD", PolicyKind::LardUtil),
    ("WRR", PolicyKind::WrrNum),
    ("LARD by connections", PolicyKind::Lard),
    ("StaticPartitioning", PolicyKind::Static),
];

/// Reads a list of positive numbers and the bench that the other keys describe.
fn read(table: &toml::Table, list: &str) -> Result<(Bench, Vec<f64>), String> {
    let mut rest = table.clone();
    let values = rest.remove(list).ok_or_else(|| format!("'{list}' is missing"))?;
    let values: Vec<f64> =
        values.try_into().map_err(|_| format!("'{list}' must be a list of numbers with a point"))?;
    if values.is_empty()
        || values.len() > 1_000
        || !values.iter().all(|value| (0.001..=3_600.0).contains(value))
    {
        return Err(format!("'{list}' must be 1 to 1,000 numbers from 0.001 to 3,600"));
    }
    let bench: Bench = params(&rest)?;
    bench.check()?;
    Ok((bench, values))
}

impl Builtin for Pages {
    fn name(&self) -> &'static str {
        "cap-pages"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (bench, seconds) = read(table, "seconds")?;
        Ok(Box::new(PagesPlan { bench, seconds }))
    }
}

impl PagesPlan {
    /// Only sites with several classes have servers to dedicate.
    fn policies(&self) -> usize {
        let classes = self.bench.site.parse::<Site>().map_or([0; ServiceClass::COUNT], Site::classes);
        if classes.iter().filter(|share| **share > 0).count() > 1 {
            POLICIES.len()
        } else {
            POLICIES.len() - 1
        }
    }
}

impl Plan for PagesPlan {
    fn lines(&self) -> Vec<String> {
        POLICIES[..self.policies()].iter().map(|(name, _)| (*name).to_owned()).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        std::iter::once("within").chain(METRICS).collect()
    }

    fn jobs(&self) -> usize {
        self.policies()
    }

    fn key(&self, job: usize) -> String {
        format!("{} {} {:?}", POLICIES[job].0, self.bench.key(), self.seconds)
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (name, policy) = POLICIES[job];
        let rate = self.bench.rate()?;
        let period_s = match policy {
            PolicyKind::LardUtil | PolicyKind::WrrNum => self.bench.best(policy, rate)?,
            _ => 1.0,
        };
        let run = self.bench.run(policy, period_s, rate)?;
        let values = run.values(rate, period_s);
        let sample = |x: &f64| {
            let within = ("within", run.pages.share_within(*x));
            Sample::new(name, *x, std::iter::once(within).chain(values.iter().copied()))
        };
        Ok(self.seconds.iter().map(sample).collect())
    }
}

/// `cap-gather`: how WRR depends on its gather period and load measure, beside policies that gather nothing.
///
/// Lines: `WRR num`, `WRR time`, `LARD` (how often it is told the utilisation), `RR`, `RAN`, `LARD by connections`.
/// x: T_gat in seconds. Metrics as of `cap-pages` without `within`.
#[derive(Debug)]
pub(super) struct Gather;

#[derive(Debug)]
struct GatherPlan {
    bench: Bench,
    periods_s: Vec<f64>,
}

const GATHERING: [(&str, PolicyKind); 3] =
    [("WRR num", PolicyKind::WrrNum), ("WRR time", PolicyKind::WrrTime), ("LARD", PolicyKind::LardUtil)];
const BLIND: [(&str, PolicyKind); 3] =
    [("RR", PolicyKind::Rr), ("RAN", PolicyKind::Random), ("LARD by connections", PolicyKind::Lard)];

impl Builtin for Gather {
    fn name(&self) -> &'static str {
        "cap-gather"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let (bench, periods_s) = read(table, "t_gat_s")?;
        Ok(Box::new(GatherPlan { bench, periods_s }))
    }
}

impl GatherPlan {
    /// The job's line, policy and period; a blind policy has none.
    fn point(&self, job: usize) -> (&'static str, PolicyKind, Option<f64>) {
        let gathering = self.periods_s.len() * GATHERING.len();
        if job < gathering {
            let (name, policy) = GATHERING[job / self.periods_s.len()];
            (name, policy, Some(self.periods_s[job % self.periods_s.len()]))
        } else {
            let (name, policy) = BLIND[job - gathering];
            (name, policy, None)
        }
    }
}

impl Plan for GatherPlan {
    fn lines(&self) -> Vec<String> {
        GATHERING.iter().chain(&BLIND).map(|(name, _)| (*name).to_owned()).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        METRICS.to_vec()
    }

    fn jobs(&self) -> usize {
        self.periods_s.len() * GATHERING.len() + BLIND.len()
    }

    fn key(&self, job: usize) -> String {
        let (name, _, period) = self.point(job);
        // A line without a period is drawn at all of them.
        let at = period.map_or_else(|| format!("{:?}", self.periods_s), |period| period.to_string());
        format!("{name} {} at {at}", self.bench.key())
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (name, policy, period) = self.point(job);
        let rate = self.bench.rate()?;
        let run = self.bench.run(policy, period.unwrap_or(10.0), rate)?;
        let values = run.values(rate, period.unwrap_or(0.0));
        let xs = period.map_or_else(|| self.periods_s.clone(), |period| vec![period]);
        Ok(xs.into_iter().map(|x| Sample::new(name, x, values.iter().copied())).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(text: &str) -> Result<Bench, String> {
        let bench: Bench = params(&text.parse().expect("TOML"))?;
        bench.check().map(|()| bench)
    }

    #[test]
    fn the_load_is_what_the_rule_says() {
        let text = "site = 'transaction'\nnodes = 4\nload = 0.6\nseeds = 1\nwarm_s = 20.0\nuntil_s = 80.0";
        let bench = bench(text).expect("good parameters");
        let rate = bench.rate().expect("a rate");
        let run = bench.run(PolicyKind::Cap, 1.0, rate).expect("a run");
        let busiest = run.busy().into_iter().fold(0.0, f64::max);
        // A thousand queries: their demands' sum varies by 3 % from run to run, and utilisation with it.
        assert!((busiest - 0.6).abs() < 0.08, "{busiest} at {rate} sessions/s");
        assert!(run.pages.delays().count > 500);
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let error = |text: &str| bench(text).expect_err("out of range");
        assert!(error("site = 'shop'\nnodes = 4\nload = 0.6\nseeds = 1").contains("publishing-static"));
        assert!(error("site = 'transaction'\nnodes = 0\nload = 0.6\nseeds = 1").contains("'nodes'"));
        assert!(error("site = 'transaction'\nnodes = 4\nload = 1.0\nseeds = 1").contains("'load'"));
        assert!(
            error("site = 'transaction'\nnodes = 4\nload = 0.6\nseeds = 1\nwarm_s = 500.0")
                .contains("until_s")
        );
    }
}
