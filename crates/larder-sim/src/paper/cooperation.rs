//! `press-cluster`: servers without a front-end, simulated, with the analytic model beside them.
//!
//! `[params]`: the fields of [`Point`], and
//!
//! * `servers`: of `trad`, `press`, `distributed`, `dispatcher`; each is a line, for each variant one;
//! * `variants`: tables with a `name` and fields of [`Point`]; the line is then `SERVER, NAME`. Without a name the line is the
//!   server's. By default one without anything;
//! * `over` and `values`: a field with numbers as values, which is x; or `over_traces`: tables with fields of [`Point`], x is
//!   their number, from 1;
//! * `modelled`: whether the model is solved at each x too: lines `trad m`, `port m`, `non-port m`.
//!
//! Metrics: see [`METRICS`].

use core::time::Duration;

use larder_core::Bytes;
use larder_core::peers::{PressSettings, SharingSettings};
use larder_trace::synth::Recipe;
use serde::{Deserialize, Serialize};

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::{Traces, WorkloadSpec};
use crate::cooperation::{Cooperation, Costs, Outcome, Server, cooperate};
use crate::press::{self, Network, Press};

/// What is measured.
///
/// | metric | meaning |
/// |---|---|
/// | `throughput`, `throughput_node` | requests per simulated second, of the cluster, of a node |
/// | `hit_rate`, `hit_rate_local`, `miss_rate` | THR, LHR and 1 - THR, 0 to 1 |
/// | `forwarded` | share of the requests |
/// | `load_broadcasts`, `cache_broadcasts`, `cache_changes`, `messages`, `message_bytes`, `relayed_bytes`, `disk_reads` | per request |
/// | `message_bytes_node_s` | bytes of messages that a node receives in a second |
/// | `sharing` | share of the nodes' time during which they took part |
/// | `imbalance` | requests of the node that served most, over the mean |
/// | `cpu_busy`, `disk_busy`, `external_busy`, `internal_busy`, `dispatcher_busy` | 0 to 1 |
/// | `state_bytes`, `targets_known` | of a node, at the end |
/// | `delay_mean_s`, `delay_p99_s` | delay of requests |
/// | `why_...` | share of the decisions with that reason |
/// | `model_error` | how far the model lies from the simulated throughput, share of the latter |
const METRICS: [&str; 34] = [
    "throughput",
    "throughput_node",
    "hit_rate",
    "hit_rate_local",
    "miss_rate",
    "forwarded",
    "load_broadcasts",
    "cache_broadcasts",
    "cache_changes",
    "messages",
    "message_bytes",
    "message_bytes_node_s",
    "relayed_bytes",
    "disk_reads",
    "sharing",
    "imbalance",
    "cpu_busy",
    "disk_busy",
    "external_busy",
    "internal_busy",
    "dispatcher_busy",
    "state_bytes",
    "targets_known",
    "delay_mean_s",
    "delay_p99_s",
    "why_alone",
    "why_large",
    "why_here",
    "why_first",
    "why_peer",
    "why_relief",
    "why_spread",
    "why_crowded",
    "model_error",
];

/// The builtin.
#[derive(Debug)]
pub(super) struct PressCluster;

/// A cluster and what is asked of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Point {
    /// A recipe; its files' sizes and popularity count.
    recipe: String,
    seed: u64,
    /// Files instead of the recipe's, of the same mean size; 0: the recipe's.
    files: u32,
    requests: u32,
    /// Share of the requests that come first and are not measured.
    warmup: f64,
    nodes: u32,
    /// Memory of a node in MB of 1,024 KB.
    memory_mb: f64,
    /// Clients' connections for each node.
    connections: u32,
    network: Network,
    /// Telling takes no processor.
    telling_free: bool,
    /// T.
    overload: u32,
    load_step: u32,
    gather_ms: f64,
    /// Requests after which a node judges whether to take part, and above and below how many of 1,000 misses.
    window: u32,
    on_permille: u32,
    off_permille: u32,
    /// Of the model: mean size of a reply in KB, hit rate of one node, exponent.
    file_kb: f64,
    hit_rate: f64,
    alpha: f64,
}

impl Default for Point {
    fn default() -> Self {
        let Press { file_kb, hit_rate, alpha, memory_mb, nodes, .. } = Press::default();
        let protocol = PressSettings::default();
        Self {
            recipe: "clarknet-like".to_owned(),
            seed: 1,
            files: 0,
            requests: 100_000,
            warmup: 1.0 / 3.0,
            nodes,
            memory_mb,
            connections: 40,
            network: Network::Fast,
            telling_free: false,
            overload: protocol.overload,
            load_step: protocol.load_step,
            gather_ms: protocol.gather.as_secs_f64() * 1e3,
            window: protocol.sharing.window,
            on_permille: protocol.sharing.on_permille,
            off_permille: protocol.sharing.off_permille,
            file_kb,
            hit_rate,
            alpha,
        }
    }
}

impl Point {
    fn check(&self) -> Result<(), String> {
        let recipe = Recipe::by_name(&self.recipe).map_err(|error| format!("recipe: {error}"))?;
        let checks = [
            (self.files <= recipe.targets, "files", "at most the recipe's"),
            ((1_000..=20_000_000).contains(&self.requests), "requests", "1,000 to 20,000,000"),
            ((0.0..1.0).contains(&self.warmup), "warmup", "from 0 to below 1"),
            ((1..=10_000).contains(&self.nodes), "nodes", "1 to 10,000"),
            (self.memory_mb > 0.0 && self.memory_mb <= 1e6, "memory_mb", "above 0 and at most 1,000,000"),
            ((1..=10_000).contains(&self.connections), "connections", "1 to 10,000"),
            ((1..=1_000_000).contains(&self.overload), "overload", "1 to 1,000,000"),
            (self.load_step >= 1, "load_step", "at least 1"),
            ((0.0..=1e6).contains(&self.gather_ms), "gather_ms", "0 to 1,000,000"),
            (self.window >= 1, "window", "at least 1"),
            (self.on_permille <= 1_000, "on_permille", "0 to 1,000"),
            (self.off_permille <= self.on_permille, "off_permille", "at most on_permille"),
        ];
        match checks.into_iter().find(|(good, _, _)| !good) {
            Some((_, key, range)) => Err(format!("{key}: must be {range}")),
            None => Ok(()),
        }
    }

    fn workload(&self) -> Result<WorkloadSpec, PaperError> {
        let recipe =
            Recipe::by_name(&self.recipe).map_err(|error| PaperError::Workload(error.to_string()))?;
        let files = if self.files == 0 { recipe.targets } else { self.files };
        let scale = f64::from(files) / f64::from(recipe.targets);
        Ok(WorkloadSpec::Synthetic {
            recipe: self.recipe.clone(),
            seed: self.seed,
            scale,
            // The scale takes its part of them.
            requests: Some((f64::from(self.requests) / scale).round() as u64),
            hot: None,
        })
    }

    fn cluster(&self, server: Server) -> Cooperation {
        let memory = Bytes((self.memory_mb * 1_048_576.0) as u64);
        let costs = Costs::of(self.network);
        let sharing = SharingSettings {
            on_permille: self.on_permille,
            off_permille: self.off_permille,
            window: self.window,
        };
        Cooperation {
            connections: self.connections,
            warmup: Some((f64::from(self.requests) * self.warmup) as usize),
            costs: if self.telling_free { costs.telling_free() } else { costs },
            protocol: PressSettings {
                overload: self.overload,
                load_step: self.load_step,
                gather: Duration::from_secs_f64(self.gather_ms / 1e3),
                sharing,
                ..PressSettings::default()
            },
            ..Cooperation::new(server, self.nodes as u16, memory)
        }
    }

    fn model(&self) -> Press {
        Press {
            nodes: self.nodes,
            hit_rate: self.hit_rate,
            file_kb: self.file_kb,
            memory_mb: self.memory_mb,
            alpha: self.alpha,
            network: self.network,
            ..Press::default()
        }
    }
}

#[derive(Clone, Debug)]
struct Line {
    name: String,
    server: Server,
    /// By x.
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct ClusterPlan {
    xs: Vec<f64>,
    lines: Vec<Line>,
    modelled: bool,
}

#[derive(Deserialize)]
struct Over {
    servers: Vec<Server>,
    #[serde(default)]
    variants: Vec<toml::Table>,
    over: Option<String>,
    values: Option<Vec<f64>>,
    over_traces: Option<Vec<toml::Table>>,
    #[serde(default)]
    modelled: bool,
}

/// Most values of x, servers and variants, each.
const LIST_MAX: usize = 32;

impl Builtin for PressCluster {
    fn name(&self) -> &'static str {
        "press-cluster"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let over: Over = params(table)?;
        let mut rest = table.clone();
        for key in ["servers", "variants", "over", "values", "over_traces", "modelled"] {
            rest.remove(key);
        }
        let (xs, tables) = xs(&over)?;
        let variants =
            if over.variants.is_empty() { vec![toml::Table::new()] } else { over.variants.clone() };
        let fits = |count: usize| (1..=LIST_MAX).contains(&count);
        if !(fits(xs.len()) && fits(variants.len()) && fits(over.servers.len())) {
            return Err(format!("servers, variants and x must be 1 to {LIST_MAX} each"));
        }
        let mut lines: Vec<Line> = Vec::new();
        for variant in variants {
            let mut fields = variant;
            let named = fields.remove("name").map(|name| name.as_str().unwrap_or_default().to_owned());
            let points = tables.iter().map(|table| {
                let mut all = rest.clone();
                all.extend(table.clone());
                all.extend(fields.clone());
                let point: Point = params(&all)?;
                point.check().map(|()| point)
            });
            let points = points.collect::<Result<Vec<_>, _>>()?;
            for server in &over.servers {
                let name = match &named {
                    Some(name) => format!("{}, {name}", server.name()),
                    None => server.name().to_owned(),
                };
                if lines.iter().any(|line| line.name == name) {
                    return Err(format!("there are two lines '{name}': name the variants"));
                }
                lines.push(Line { name, server: *server, points: points.clone() });
            }
        }
        let plan = ClusterPlan { xs, lines, modelled: over.modelled };
        if plan.modelled {
            for point in &plan.lines[0].points {
                point.model().solve().map_err(|error| error.to_string())?;
            }
        }
        Ok(Box::new(plan))
    }
}

/// The x, and the fields that each sets.
fn xs(over: &Over) -> Result<(Vec<f64>, Vec<toml::Table>), String> {
    match (&over.over, &over.values, &over.over_traces) {
        (Some(key), Some(values), None) => {
            let table = |x: &f64| {
                let whole =
                    x.fract() == 0.0 && x.abs() < 1e9 && !key.ends_with("_mb") && !key.ends_with("_ms");
                let value = if whole { toml::Value::Integer(*x as i64) } else { toml::Value::Float(*x) };
                toml::Table::from_iter([(key.clone(), value)])
            };
            if !values.is_sorted() {
                return Err("values: must rise".to_owned());
            }
            Ok((values.clone(), values.iter().map(table).collect()))
        }
        (None, None, Some(traces)) => Ok(((1..=traces.len()).map(|x| x as f64).collect(), traces.clone())),
        _ => Err("'params' needs over and values, or over_traces".to_owned()),
    }
}

const fn modelled_as(server: Server) -> press::Server {
    match server {
        Server::Trad => press::Server::Trad,
        Server::Press => press::Server::Portable,
        Server::Distributed | Server::Dispatcher => press::Server::NonPortable,
    }
}

fn model_line(server: press::Server) -> String {
    format!("{} m", server.name())
}

impl ClusterPlan {
    fn simulated(&self) -> usize {
        self.lines.len() * self.xs.len()
    }

    fn simulate(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let line = &self.lines[job % self.lines.len()];
        let at = job / self.lines.len();
        let point = &line.points[at];
        let workload = traces.workload(&point.workload()?)?;
        let outcome = cooperate(&workload, &point.cluster(line.server))?;
        let mut values = values(&outcome, f64::from(point.nodes));
        if self.modelled {
            let modelled = point.model().solve()?.throughput(modelled_as(line.server));
            values.push(("model_error", (modelled / outcome.throughput - 1.0).abs()));
        }
        Ok(vec![Sample::new(&line.name, self.xs[at], values)])
    }

    /// The model at all x.
    fn model(&self) -> Result<Vec<Sample>, PaperError> {
        let mut samples = Vec::new();
        for (x, point) in self.xs.iter().zip(&self.lines[0].points) {
            let solution = point.model().solve()?;
            for answer in solution.servers {
                let alone = answer.server == press::Server::Trad;
                let hit_rate = if alone { point.hit_rate } else { solution.hit_rate_cluster };
                let values = [
                    ("throughput", answer.throughput),
                    ("throughput_node", answer.throughput / f64::from(point.nodes)),
                    ("hit_rate", hit_rate),
                    ("miss_rate", 1.0 - hit_rate),
                    ("forwarded", if alone { 0.0 } else { solution.forwarded }),
                ];
                samples.push(Sample::new(&model_line(answer.server), *x, values));
            }
        }
        Ok(samples)
    }
}

fn values(outcome: &Outcome, nodes: f64) -> Vec<(&'static str, f64)> {
    let busy = outcome.busy;
    let why = |name| outcome.reason_share(name);
    vec![
        ("throughput", outcome.throughput),
        ("throughput_node", outcome.throughput / nodes),
        ("hit_rate", outcome.hit_rate),
        ("hit_rate_local", outcome.hit_rate_local),
        ("miss_rate", 1.0 - outcome.hit_rate),
        ("forwarded", outcome.forwarded_share),
        ("load_broadcasts", outcome.load_broadcasts),
        ("cache_broadcasts", outcome.cache_broadcasts),
        ("cache_changes", outcome.cache_changes),
        ("messages", outcome.messages),
        ("message_bytes", outcome.message_bytes),
        ("message_bytes_node_s", outcome.message_bytes * outcome.throughput / nodes),
        ("relayed_bytes", outcome.relayed_bytes),
        ("disk_reads", outcome.disk_reads),
        ("sharing", outcome.sharing),
        ("imbalance", outcome.imbalance),
        ("cpu_busy", busy.cpu),
        ("disk_busy", busy.disk),
        ("external_busy", busy.external),
        ("internal_busy", busy.internal),
        ("dispatcher_busy", busy.dispatcher),
        ("state_bytes", outcome.state_bytes),
        ("targets_known", outcome.targets_known),
        ("delay_mean_s", outcome.delay.mean_s),
        ("delay_p99_s", outcome.delay.p99_s),
        ("why_alone", why("alone")),
        ("why_large", why("large")),
        ("why_here", why("here")),
        ("why_first", why("first")),
        ("why_peer", why("peer")),
        ("why_relief", why("relief")),
        ("why_spread", why("spread")),
        ("why_crowded", why("crowded")),
    ]
}

impl Plan for ClusterPlan {
    fn lines(&self) -> Vec<String> {
        let simulated = self.lines.iter().map(|line| line.name.clone());
        let modelled = press::Server::ALL.into_iter().filter(|_| self.modelled).map(model_line);
        simulated.chain(modelled).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        METRICS.to_vec()
    }

    fn jobs(&self) -> usize {
        self.simulated() + usize::from(self.modelled)
    }

    fn key(&self, job: usize) -> String {
        if job == self.simulated() {
            return format!("model {:?} {:?}", self.xs, self.lines[0].points);
        }
        let line = &self.lines[job % self.lines.len()];
        let at = job / self.lines.len();
        // The workload first, so that those who share it are neighbours.
        format!("{:?} {} {} {}", line.points[at], line.name, self.xs[at], self.modelled)
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        if job == self.simulated() { self.model() } else { self.simulate(job, traces) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const PARAMS: &str = "recipe = 'forth-like'\nfiles = 2000\nrequests = 6000\nmemory_mb = 8\nwindow = 20\n\
                          servers = ['trad', 'press']\nover = 'nodes'\nvalues = [1, 3]\nmodelled = true";

    fn plan(text: &str) -> Result<Box<dyn Plan>, String> {
        PressCluster.plan(&text.parse().unwrap())
    }

    #[test]
    fn each_line_has_a_sample_at_each_x_with_every_metric() {
        let plan = plan(PARAMS).unwrap();
        let traces = Traces::new(Path::new("nowhere"));
        let samples: Vec<Sample> = (0..plan.jobs()).flat_map(|job| plan.run(job, &traces).unwrap()).collect();
        assert_eq!(plan.lines(), ["trad", "press", "non-port m", "port m", "trad m"]);
        for line in plan.lines() {
            let of = samples.iter().filter(|sample| sample.line == line);
            assert_eq!(of.map(|sample| sample.x).collect::<Vec<_>>(), [1.0, 3.0], "{line}");
        }
        let press = samples.iter().find(|sample| sample.line == "press" && sample.x == 3.0).unwrap();
        let metrics: Vec<&str> = press.values.keys().map(String::as_str).collect();
        let mut known = METRICS.to_vec();
        known.sort_unstable();
        assert_eq!(metrics, known);
        assert!(press.values["forwarded"] > 0.2);
    }

    #[test]
    fn variants_are_lines() {
        let plan =
            plan(&format!("{PARAMS}\nvariants = [{{}}, {{ name = 'slow', network = 'slow' }}]")).unwrap();
        assert_eq!(plan.lines()[..4], ["trad", "press", "trad, slow", "press, slow"]);
        let keys: std::collections::BTreeSet<String> = (0..plan.jobs()).map(|job| plan.key(job)).collect();
        assert_eq!(keys.len(), plan.jobs());
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (from, to, complaint) in [
            ("'press'", "'pres'", "servers"),
            ("files = 2000", "files = 200000", "files: must be at most"),
            ("memory_mb = 8", "memory_mb = 0", "memory_mb: must be above 0"),
            ("window = 20", "window = 0", "window: must be"),
            ("window = 20", "windows = 1", "windows"),
            ("values = [1, 3]", "values = [3, 1]", "values: must rise"),
            ("over = 'nodes'", "", "needs over and values"),
            ("modelled = true", "variants = [{}, {}]", "two lines 'trad'"),
        ] {
            let error = plan(&PARAMS.replace(from, to)).err().unwrap_or_default();
            assert!(error.contains(complaint), "{to}: {error}");
        }
    }
}
