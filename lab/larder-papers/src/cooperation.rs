//! Simulated clusters without a front-end, with the analytic model of PRESS beside them, or as in the WARD
//! paper.
//!
//! The two builtins `press-cluster` and `ward-cluster` have the same `[params]`. They differ in the default
//! cluster: the PRESS paper's, or the WARD paper's ([`WARD`]). `[params]` has the fields of [`Point`] and
//! these keys:
//!
//! * `servers`: names of [`ServerKind`]; each is a line, one for each variant;
//! * `variants`: tables with a `name` and fields of [`Point`]; the line is then `SERVER, NAME`. Without a
//!   name the line is the server's. The default is one variant without fields. A variant may have its own
//!   `servers`;
//! * `over` and `values`: a field with numbers as values, which is x; or `over_traces`: tables with fields of
//!   [`Point`], x is their number, from 1;
//! * `modelled`: whether the model is also solved at each x: lines `trad m`, `port m`, `non-port m`.
//!
//! Metrics: see [`metrics`].

mod days;
mod metrics;
mod point;

pub(super) use days::WardDays;

use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use larder_sim::cooperation::{ServerKind, cooperate};
use larder_sim::press;
use point::Point;

/// The default cluster of the WARD paper (HPL-2001-2, sections 3.1 and 3.2). `connections` is the number of a
/// node's own outstanding requests, as chosen for `ward-clusters`.
const WARD: &str =
    "costs = 'ward'\nrecipe = 'hp-hours-like'\nmemory_share = 0.05\nspread = 'dealt'\nconnections = 1024";

/// `press-cluster` or `ward-cluster`.
#[derive(Debug)]
pub(super) struct CooperativeClusters {
    name: &'static str,
    /// The defaults that differ from [`Point::default`], in TOML.
    usual: &'static str,
}

/// The cluster of the PRESS paper.
pub(super) const PRESS_CLUSTER: CooperativeClusters =
    CooperativeClusters { name: "press-cluster", usual: "" };
/// The cluster of the WARD paper.
pub(super) const WARD_CLUSTER: CooperativeClusters =
    CooperativeClusters { name: "ward-cluster", usual: WARD };

/// Merges a table into the defaults.
fn merge_defaults(usual: &str, table: &toml::Table) -> toml::Table {
    let usual: Result<toml::Table, _> = usual.parse();
    let mut all = usual.unwrap_or_else(|error| unreachable!("what is usual is TOML: {error}"));
    all.extend(table.clone());
    all
}

/// A line of the experiment.
#[derive(Clone, Debug)]
struct ClusterLine {
    name: String,
    server: ServerKind,
    /// The points by x.
    points: Vec<Point>,
}

#[derive(Clone, Debug)]
struct ClusterPlan {
    xs: Vec<f64>,
    lines: Vec<ClusterLine>,
    modelled: bool,
}

#[derive(Deserialize)]
struct SweepParams {
    servers: Vec<ServerKind>,
    #[serde(default)]
    variants: Vec<toml::Table>,
    over: Option<String>,
    values: Option<Vec<f64>>,
    over_traces: Option<Vec<toml::Table>>,
    #[serde(default)]
    modelled: bool,
}

/// The largest number of x values, of servers, and of variants.
const LIST_MAX: usize = 32;

impl Builtin for CooperativeClusters {
    fn name(&self) -> &'static str {
        self.name
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let over: SweepParams = params(table)?;
        let mut rest = merge_defaults(self.usual, table);
        for key in ["servers", "variants", "over", "values", "over_traces", "modelled"] {
            rest.remove(key);
        }
        let (xs, tables) = read_x_values(&over)?;
        let variants =
            if over.variants.is_empty() { vec![toml::Table::new()] } else { over.variants.clone() };
        let fits = |count: usize| (1..=LIST_MAX).contains(&count);
        if !(fits(xs.len()) && fits(variants.len()) && fits(over.servers.len())) {
            return Err(format!("servers, variants and x must be 1 to {LIST_MAX} each"));
        }
        let mut lines: Vec<ClusterLine> = Vec::new();
        for variant in variants {
            let mut fields = variant;
            let own = fields.remove("servers").map(|names| read_servers(&names)).transpose()?;
            let named = fields.remove("name").map(|name| name.as_str().unwrap_or_default().to_owned());
            let points = tables.iter().map(|table| {
                let mut all = rest.clone();
                all.extend(table.clone());
                all.extend(fields.clone());
                let point: Point = params(&all)?;
                point.check().map(|()| point)
            });
            let points = points.collect::<Result<Vec<_>, _>>()?;
            for server in own.as_ref().unwrap_or(&over.servers) {
                let name = match &named {
                    Some(name) => format!("{}, {name}", server.name()),
                    None => server.name().to_owned(),
                };
                if lines.iter().any(|line| line.name == name) {
                    return Err(format!("there are two lines '{name}': name the variants"));
                }
                lines.push(ClusterLine { name, server: *server, points: points.clone() });
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

fn read_servers(names: &toml::Value) -> Result<Vec<ServerKind>, String> {
    let wrong = |error: toml::de::Error| format!("servers: {}", error.message());
    let servers: Vec<ServerKind> = names.clone().try_into().map_err(wrong)?;
    if servers.is_empty() || servers.len() > LIST_MAX {
        return Err(format!("servers: must be 1 to {LIST_MAX}"));
    }
    Ok(servers)
}

/// Returns the x values, and the fields that each of them sets.
fn read_x_values(over: &SweepParams) -> Result<(Vec<f64>, Vec<toml::Table>), String> {
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

const fn model_server(server: ServerKind) -> press::Server {
    match server {
        ServerKind::Trad | ServerKind::Rr => press::Server::Trad,
        ServerKind::Press => press::Server::Portable,
        _ => press::Server::NonPortable,
    }
}

fn model_line(server: press::Server) -> String {
    format!("{} m", server.name())
}

impl ClusterPlan {
    fn simulated_jobs(&self) -> usize {
        self.lines.len() * self.xs.len()
    }

    fn simulate(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let line = &self.lines[job % self.lines.len()];
        let at = job / self.lines.len();
        let point = &line.points[at];
        let workload = traces.workload(&point.workload()?)?;
        let cluster = point.cluster(line.server, &workload, point.warmup_requests());
        let outcome = cooperate(&workload, &cluster)?;
        let mut values = metrics::values(&outcome, f64::from(point.nodes));
        if self.modelled {
            let modelled = point.model().solve()?.throughput(model_server(line.server));
            values.push((metrics::MODEL_ERROR, (modelled / outcome.throughput - 1.0).abs()));
        }
        Ok(vec![Sample::new(&line.name, self.xs[at], values)])
    }

    /// Solves the model at all x.
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

impl Plan for ClusterPlan {
    fn lines(&self) -> Vec<String> {
        let simulated = self.lines.iter().map(|line| line.name.clone());
        let modelled = press::Server::ALL.into_iter().filter(|_| self.modelled).map(model_line);
        simulated.chain(modelled).collect()
    }

    fn metrics(&self) -> Vec<&'static str> {
        metrics::names()
    }

    fn jobs(&self) -> usize {
        self.simulated_jobs() + usize::from(self.modelled)
    }

    fn key(&self, job: usize) -> String {
        if job == self.simulated_jobs() {
            return format!("model {:?} {:?}", self.xs, self.lines[0].points);
        }
        let line = &self.lines[job % self.lines.len()];
        let at = job / self.lines.len();
        // The workload comes first, so that jobs that share it are neighbours.
        format!("{:?} {} {} {}", line.points[at], line.name, self.xs[at], self.modelled)
    }

    fn run(&self, job: usize, traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        if job == self.simulated_jobs() { self.model() } else { self.simulate(job, traces) }
    }
}

#[cfg(test)]
mod tests;
