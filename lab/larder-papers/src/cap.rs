//! The CAP paper's experiments (Casalicchio and Colajanni, WWW 2001): page delays at sites of mixed services
//! (figures 4 to 6), and the influence of WRR's gather period (figure 3). Figure 2 is [`super::cap_vector`].
//!
//! # The load
//! The paper gives 100 to 300 sessions per second and 2 to 32 servers, but not the values of each figure.
//! An experiment states either the session rate (`sessions_per_s`) or a rule for it (`load`). The figures of
//! the paper use one rate. The rule serves as a control. Under CAP, the busiest kind of station (processor, disk,
//! network interface, back-end) has a given utilisation, as the mean over the nodes. The session rate is
//! found by a run with few sessions, because utilisation is proportional to the rate: the demand of a request
//! does not depend on it. CAP's hit ratio does depend on it, because memories are cold in a run with few
//! sessions. A second run at the first result's rate corrects this.
//!
//! # The assumptions
//! The paper leaves five properties of the workload open ([`Assumptions`]). The figures share one set, and
//! `cap-sweep` varies each.
//!
//! # The policies
//! CAP, LARD and static partitioning dispatch each request (layer 7). WRR, RR and RAN dispatch each
//! connection, which is a page (layer 4). WRR is "always able to choose the best parameters". Here it uses
//! the number of processes. The period is given (`period_s`), or it is the best of 0.1, 0.5, 1, 2, 5 and 10 s.
//! The best period has the lowest 90th percentile in a run whose seed is not measured. LARD's utilisation is
//! reported with the same period, or with the best one by the same rule. If the best period is chosen,
//! additional lines have fixed periods of 2 and 5 s. Utilisation is that of the busiest of
//! processor, disk, network interface and back-end. One line is not in the paper: LARD as its authors
//! published it, which uses the switch's own connection counts and needs no reports.

use std::sync::OnceLock;
use std::time::Duration;

use larder_core::class::ServiceClass;
use larder_core::dispatch::{Admission, Settings};
use larder_core::policy::PolicyKind;
use larder_core::policy::{LardUtilSettings, PolicySettings, StaticSettings};
use larder_core::{Bytes, Time};
use larder_trace::synth::sessions::Site;
use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use crate::users::{PageLog, SessionUsers, site_workload};
use larder_sim::cost::{Cap01, Costs, SwitchLayer};
use larder_sim::{CacheChoice, Outcome, Scenario, SimNode, simulate_with};

mod assumptions;
mod sensitivity;
mod tuning;

use assumptions::Assumptions;
pub(super) use sensitivity::Sensitivity;
pub(super) use tuning::{GatherPeriods, Thresholds};

/// The periods to choose from, in seconds.
const PERIODS_S: [f64; 6] = [0.1, 0.5, 1.0, 2.0, 5.0, 10.0];
/// Sessions per second and node of the probe run that the load is computed from: too few to saturate any
/// station.
const PROBE_PER_NODE_S: f64 = 3.0;
/// The seed of the runs that choose a period; it is not measured.
const CHOOSING_SEED: u64 = 1_000;
/// A node's memory as a share of the document tree (section 4.2).
const MEMORY_SHARE: f64 = 0.15;

const fn warm_s() -> f64 {
    40.0
}

const fn until_s() -> f64 {
    140.0
}

/// A cluster and a site.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CapBench {
    site: String,
    /// The number of servers.
    nodes: u16,
    /// The utilisation of the busiest kind of station under CAP, above 0 and below 1. Either this or
    /// `sessions_per_s` is given.
    load: Option<f64>,
    /// The number of sessions that begin per second, above 0 and at most 1,000.
    sessions_per_s: Option<f64>,
    /// The period of load reports in seconds, 0.001 to 3,600; the best one if absent.
    period_s: Option<f64>,
    /// The values that the paper does not give.
    #[serde(default)]
    assume: Assumptions,
    /// The number of seeds, from 1. Their pages are combined.
    seeds: u64,
    /// The time before which pages that begin are not measured, in seconds.
    #[serde(default = "warm_s")]
    warm_s: f64,
    /// The time after which no page begins, in seconds.
    #[serde(default = "until_s")]
    until_s: f64,
    #[serde(skip)]
    rate: OnceLock<Result<f64, PaperError>>,
}

/// A policy with its parameters.
#[derive(Clone, Copy, Debug)]
struct PolicySetup {
    policy: PolicyKind,
    /// The period of load reports, in seconds.
    period_s: f64,
    /// LARD's thresholds, in thousandths.
    low: u16,
    high: u16,
}

impl PolicySetup {
    /// Creates the parameters with the paper's thresholds.
    const fn new(policy: PolicyKind, period_s: f64) -> Self {
        Self { policy, period_s, low: 300, high: 700 }
    }
}

/// The results of a policy.
#[derive(Default)]
struct CapRun {
    pages: PageLog,
    outcomes: Vec<Outcome>,
}

impl CapBench {
    fn check(&self) -> Result<(), String> {
        let site = self.site.parse::<Site>().map_err(|error| error.to_string())?;
        let good = (1..=1_024).contains(&self.nodes) && (1..=100).contains(&self.seeds);
        if !good {
            return Err("'nodes' must be 1 to 1,024 and 'seeds' 1 to 100".to_owned());
        }
        match (self.load, self.sessions_per_s) {
            (Some(load), None) if load > 0.0 && load < 1.0 => {}
            (None, Some(rate)) if rate > 0.0 && rate <= 1_000.0 => {}
            (Some(_), None) => return Err("'load' must be above 0 and below 1".to_owned()),
            (None, Some(_)) => return Err("'sessions_per_s' must be above 0 and at most 1,000".to_owned()),
            _ => return Err("give either 'load' or 'sessions_per_s'".to_owned()),
        }
        if self.period_s.is_some_and(|period| !(0.001..=3_600.0).contains(&period)) {
            return Err("'period_s' must be 0.001 to 3,600".to_owned());
        }
        self.assume.check()?;
        if !(self.warm_s >= 0.0 && self.until_s > self.warm_s && self.until_s <= 10_000.0) {
            return Err(format!("{site}: 'until_s' must be above 'warm_s' and at most 10,000"));
        }
        Ok(())
    }

    fn key(&self) -> String {
        let Self { site, nodes, load, sessions_per_s, period_s, assume, seeds, warm_s, until_s, .. } = self;
        let costs = Cap01::default();
        format!(
            "{site} on {nodes} at {load:?} {sessions_per_s:?}, {period_s:?}, {assume:?}, seeds {seeds}, \
             {warm_s} to {until_s} s, {PERIODS_S:?}, {costs:?}"
        )
    }

    /// Returns the session rate, given or by the rule, in sessions per second.
    fn rate(&self) -> Result<f64, PaperError> {
        let Some(load) = self.load else {
            let missing =
                || PaperError::Builtin("give exactly one of 'load' and 'sessions_per_s'".to_owned());
            return self.sessions_per_s.ok_or_else(missing);
        };
        let found = self.rate.get_or_init(|| {
            let mut rate = PROBE_PER_NODE_S * f64::from(self.nodes);
            for _ in 0..2 {
                let probe = self.run(PolicySetup::new(PolicyKind::Cap, 1.0), rate)?;
                let busiest = probe.busy().into_iter().fold(0.0, f64::max);
                rate *= load / busiest;
            }
            // The rate is rounded to tenths, so that it can be quoted.
            Ok((rate * 10.0).round() / 10.0)
        });
        found.clone()
    }

    fn site(&self) -> Result<Site, PaperError> {
        self.site.parse().map_err(|error| PaperError::Workload(format!("{error}")))
    }

    /// Runs all seeds.
    fn run(&self, setup: PolicySetup, rate: f64) -> Result<CapRun, PaperError> {
        let mut run = CapRun::default();
        for seed in 1..=self.seeds {
            self.run_seed(setup, rate, seed, &mut run)?;
        }
        Ok(run)
    }

    fn run_seed(&self, setup: PolicySetup, rate: f64, seed: u64, run: &mut CapRun) -> Result<(), PaperError> {
        let PolicySetup { policy, period_s, low, high } = setup;
        let site = self.site()?;
        let recipe = self.assume.recipe(site, rate, self.until_s);
        let mut sessions = recipe.sessions(seed).map_err(|error| PaperError::Workload(error.to_string()))?;
        let is_layer4 =
            matches!(policy, PolicyKind::Random | PolicyKind::Rr | PolicyKind::WrrNum | PolicyKind::WrrTime);
        let costs = Cap01 {
            switch: if is_layer4 { SwitchLayer::Layer4 } else { SwitchLayer::Layer7 },
            ..Cap01::default()
        };
        let memory = Bytes((sessions.tree_bytes() as f64 * MEMORY_SHARE) as u64);
        self.assume.draw_cacheability(&mut sessions, seed);
        let settings = Settings {
            policy,
            seed,
            admission: Admission::Unlimited,
            t_gat: Duration::from_secs_f64(period_s),
            policies: PolicySettings {
                // The paper says "proportionally to the percentage arrival of requests for each class". The
                // shares count pages, because a user's request is for a page.
                static_partition: StaticSettings { shares: site.classes().map(u32::from) },
                lard_util: LardUtilSettings {
                    low_permille: low,
                    high_permille: high,
                    ..LardUtilSettings::default()
                },
                ..PolicySettings::default()
            },
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
        let workload = site_workload(&sessions.items, self.assume.access_ns(&costs));
        let window = Time::ZERO + Duration::from_secs_f64(self.warm_s)
            ..Time::ZERO + Duration::from_secs_f64(self.until_s);
        let users = SessionUsers::new(&sessions, window, &mut run.pages).with_keys(self.assume.keys);
        let users = if is_layer4 { users.bind_connections(policy)? } else { users };
        run.outcomes.push(simulate_with(&workload, &scenario, Box::new(users))?);
        Ok(())
    }

    /// Returns the period of reports for a policy: the given or the best one; 1 s for policies without reports.
    fn find_period(&self, policy: PolicyKind, rate: f64) -> Result<f64, PaperError> {
        match (self.period_s, policy) {
            (Some(period_s), _) => Ok(period_s),
            (None, PolicyKind::LardUtil | PolicyKind::WrrNum) => self.find_best_period(policy, rate),
            _ => Ok(1.0),
        }
    }

    /// Returns the best period for a policy: the one with the lowest 90th percentile under a separate seed.
    fn find_best_period(&self, policy: PolicyKind, rate: f64) -> Result<f64, PaperError> {
        let mut best = (f64::INFINITY, PERIODS_S[0]);
        for period_s in PERIODS_S {
            let mut run = CapRun::default();
            self.run_seed(PolicySetup::new(policy, period_s), rate, CHOOSING_SEED, &mut run)?;
            let p90_s = run.pages.all.delays().p90_s;
            if p90_s < best.0 {
                best = (p90_s, period_s);
            }
        }
        Ok(best.1)
    }
}

impl CapRun {
    fn mean(&self, of: impl Fn(&Outcome) -> f64) -> f64 {
        self.outcomes.iter().map(of).sum::<f64>() / self.outcomes.len().max(1) as f64
    }

    /// Returns the utilisation of processors, disks, network interfaces and back-ends, as the mean over the
    /// nodes.
    fn busy(&self) -> [f64; 4] {
        let of = |part: fn(&larder_sim::NodeOutcome) -> f64| {
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
        let (delays, [cpu, disk, nic, back]) = (self.pages.all.delays(), self.busy());
        let class_n = self.pages.of_class[ServiceClass::N.index()].delays();
        let most = |outcome: &Outcome| {
            let busy = |node: &larder_sim::NodeOutcome| node.cpu_busy.max(node.disk_busy).max(node.back_busy);
            outcome.nodes.iter().map(busy).fold(0.0, f64::max)
        };
        vec![
            ("p90_s", delays.p90_s),
            ("p50_s", delays.p50_s),
            ("mean_s", delays.mean_s),
            ("n_p90_s", class_n.p90_s),
            ("n_p50_s", class_n.p50_s),
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

const METRICS: [&str; 14] = [
    "p90_s",
    "p50_s",
    "mean_s",
    "n_p90_s",
    "n_p50_s",
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

/// `cap-pages`: page delays by policy.
///
/// Lines: `CAP`, `LARD`, `WRR`, `LARD by connections`, `StaticPartitioning` (if there are several classes),
/// and without `period_s` lines with a fixed period such as `WRR at 2 s`. With a second site S (`beside`) also
/// `CAP on S`, `LARD on S` and `WRR on S`: at the same session rate, or with `load` at the load that the rule
/// gives for S. With `load` also `CAP on S, same rate` and so on, at this site's session rate. x: a page delay in seconds. Metric by x: `within` (share of the pages that take at
/// most x). Metrics that are equal at every x: the 90th percentile `p90_s`, `p50_s`, `mean_s`, `n_p90_s` and
/// `n_p50_s` (pages of class N only), `hit_ratio`, the utilisation of stations (mean over the nodes;
/// `busiest_node` is the busiest station of all), `sessions_per_s`, and the best period of the policy.
#[derive(Debug)]
pub(super) struct Pages;

/// The site and rate of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SiteChoice {
    Here,
    Beside,
    BesideSameRate,
}

/// A line of `cap-pages`.
#[derive(Clone, Debug)]
struct PagesLine {
    name: String,
    policy: PolicyKind,
    /// The period; the best one if `None` and the policy needs one.
    period_s: Option<f64>,
    place: SiteChoice,
}

#[derive(Debug)]
struct PagesPlan {
    bench: CapBench,
    beside: Option<CapBench>,
    lines: Vec<PagesLine>,
    /// The delays at which the share is read, in seconds.
    seconds: Vec<f64>,
}

const POLICIES: [(&str, PolicyKind); 5] = [
    ("CAP", PolicyKind::Cap),
    ("LARD", PolicyKind::LardUtil),
    ("WRR", PolicyKind::WrrNum),
    ("LARD by connections", PolicyKind::Lard),
    ("StaticPartitioning", PolicyKind::Static),
];
const FIXED: [(&str, PolicyKind, f64); 4] = [
    ("LARD at 2 s", PolicyKind::LardUtil, 2.0),
    ("LARD at 5 s", PolicyKind::LardUtil, 5.0),
    ("WRR at 2 s", PolicyKind::WrrNum, 2.0),
    ("WRR at 5 s", PolicyKind::WrrNum, 5.0),
];

/// Reads a list of positive numbers, and the bench that the other keys describe.
fn read(table: &toml::Table, list: &str) -> Result<(CapBench, Vec<f64>), String> {
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
    let bench: CapBench = params(&rest)?;
    bench.check()?;
    Ok((bench, values))
}

/// Returns the lines. Only sites with several classes have servers to dedicate.
fn pages_lines(bench: &CapBench, beside: Option<&str>) -> Vec<PagesLine> {
    let classes = bench.site.parse::<Site>().map_or([0; ServiceClass::COUNT], Site::classes);
    let several = classes.iter().filter(|share| **share > 0).count() > 1;
    let policies = &POLICIES[..if several { POLICIES.len() } else { POLICIES.len() - 1 }];
    let line = |name: String, policy, period_s, place| PagesLine { name, policy, period_s, place };
    let mut lines: Vec<PagesLine> = policies
        .iter()
        .map(|(name, policy)| line((*name).to_owned(), *policy, None, SiteChoice::Here))
        .collect();
    let fixed = if bench.period_s.is_some() { &[][..] } else { &FIXED };
    lines.extend(
        fixed.iter().map(|(name, policy, s)| line((*name).to_owned(), *policy, Some(*s), SiteChoice::Here)),
    );
    if let Some(other) = beside {
        for (name, policy) in &POLICIES[..3] {
            lines.push(line(format!("{name} on {other}"), *policy, None, SiteChoice::Beside));
            if bench.load.is_some() {
                let name = format!("{name} on {other}, same rate");
                lines.push(line(name, *policy, None, SiteChoice::BesideSameRate));
            }
        }
    }
    lines
}

impl Builtin for Pages {
    fn name(&self) -> &'static str {
        "cap-pages"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let mut table = table.clone();
        let other = table.remove("beside");
        let (bench, seconds) = read(&table, "seconds")?;
        let beside = other.map(|site| {
            table.insert("site".to_owned(), site);
            read(&table, "seconds").map(|(bench, _)| bench)
        });
        let beside = beside.transpose()?;
        let lines = pages_lines(&bench, beside.as_ref().map(|bench| bench.site.as_str()));
        Ok(Box::new(PagesPlan { bench, beside, lines, seconds }))
    }
}

impl Plan for PagesPlan {
    fn lines(&self) -> Vec<String> {
        self.lines.iter().map(|line| line.name.clone()).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        std::iter::once("within").chain(METRICS).collect()
    }

    fn jobs(&self) -> usize {
        self.lines.len()
    }

    fn key(&self, job: usize) -> String {
        format!("{} {} {:?}", self.lines[job].name, self.bench.key(), self.seconds)
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let line = &self.lines[job];
        let bench = match (&self.beside, line.place) {
            (Some(beside), SiteChoice::Beside | SiteChoice::BesideSameRate) => beside,
            _ => &self.bench,
        };
        let rate =
            if line.place == SiteChoice::BesideSameRate { self.bench.rate()? } else { bench.rate()? };
        let period_s = line.period_s.map_or_else(|| bench.find_period(line.policy, rate), Ok)?;
        let run = bench.run(PolicySetup::new(line.policy, period_s), rate)?;
        let values = run.values(rate, period_s);
        let sample = |x: &f64| {
            let within = ("within", run.pages.all.share_within(*x));
            Sample::new(&line.name, *x, std::iter::once(within).chain(values.iter().copied()))
        };
        Ok(self.seconds.iter().map(sample).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bench(text: &str) -> Result<CapBench, String> {
        let bench: CapBench = params(&text.parse().expect("TOML"))?;
        bench.check().map(|()| bench)
    }

    #[test]
    fn the_load_follows_the_rule() {
        let text = "site = 'transaction'\nnodes = 4\nload = 0.6\nseeds = 1\nwarm_s = 20.0\nuntil_s = 80.0";
        let bench = bench(text).expect("good parameters");
        let rate = bench.rate().expect("a rate");
        let run = bench.run(PolicySetup::new(PolicyKind::Cap, 1.0), rate).expect("a run");
        let busiest = run.busy().into_iter().fold(0.0, f64::max);
        // The sum of the demands of a thousand queries varies by 3 % from run to run, and utilisation with
        // it.
        assert!((busiest - 0.6).abs() < 0.08, "{busiest} at {rate} sessions/s");
        assert!(run.pages.all.delays().count > 500);
    }

    #[test]
    fn parameters_out_of_range_are_named() {
        let error = |text: &str| bench(text).expect_err("out of range");
        assert!(error("site = 'shop'\nnodes = 4\nload = 0.6\nseeds = 1").contains("publishing-static"));
        assert!(error("site = 'transaction'\nnodes = 0\nload = 0.6\nseeds = 1").contains("'nodes'"));
        assert!(error("site = 'transaction'\nnodes = 4\nload = 1.0\nseeds = 1").contains("'load'"));
        assert!(error("site = 'transaction'\nnodes = 4\nseeds = 1").contains("either 'load'"));
        let keys = "site = 'transaction'\nnodes = 4\nload = 0.5\nseeds = 1\nassume = { exponent = -1.0 }";
        assert!(error(keys).contains("'exponent'"));
        assert!(
            error("site = 'transaction'\nnodes = 4\nload = 0.6\nseeds = 1\nwarm_s = 500.0")
                .contains("until_s")
        );
    }
}
