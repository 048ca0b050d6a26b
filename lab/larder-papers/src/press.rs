//! Experiments with the analytic model of PRESS: its peaks (figures 3 and 4), and its curves for the measured
//! traces (figures 6 to 9).

use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use larder_sim::press::zipf::HarmonicNumbers;
use larder_sim::press::{Network, Press, PressVariant, Server, find_peak};

/// `press-peaks`: the largest gain of one server over another over all file sizes and hit rates, against
/// nodes.
///
/// Lines: `fast` and `slow`, and `fast, M0` and `slow, M0` for the model as printed. Metrics: `gain` (a
/// factor), `file_kb` and `hit_rate` of the peak.
#[derive(Debug)]
pub(super) struct Peaks;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeakPlan {
    /// The server that gains.
    of: Server,
    /// The server that it is compared with.
    over: Server,
    /// The numbers of nodes.
    nodes: Vec<u32>,
}

const LINES: [(&str, Network, PressVariant); 4] = [
    ("fast", Network::Fast, PressVariant::M1),
    ("slow", Network::Slow, PressVariant::M1),
    ("fast, M0", Network::Fast, PressVariant::M0),
    ("slow, M0", Network::Slow, PressVariant::M0),
];

impl Builtin for Peaks {
    fn name(&self) -> &'static str {
        "press-peaks"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        let plan: PeakPlan = params(table)?;
        check_nodes(&plan.nodes)?;
        Ok(Box::new(plan))
    }
}

impl PeakPlan {
    fn point(&self, job: usize) -> (&'static str, Press) {
        let (line, network, reading) = LINES[job % LINES.len()];
        (line, Press { nodes: self.nodes[job / LINES.len()], network, reading, ..Press::default() })
    }
}

impl Plan for PeakPlan {
    fn lines(&self) -> Vec<String> {
        LINES.map(|(name, ..)| name.to_owned()).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["gain", "file_kb", "hit_rate"]
    }

    fn jobs(&self) -> usize {
        self.nodes.len() * LINES.len()
    }

    fn key(&self, job: usize) -> String {
        format!("{:?} over {:?} {:?}", self.of, self.over, self.point(job))
    }

    fn run(&self, job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let (line, base) = self.point(job);
        let peak = find_peak(&base, self.of, self.over)?;
        let values = [("gain", peak.ratio), ("file_kb", peak.file_kb), ("hit_rate", peak.hit_rate)];
        Ok(vec![Sample::new(line, f64::from(base.nodes), values)])
    }
}

/// `press-model`: the throughput of the servers for one working set, against nodes or a node's memory, or for
/// several traces.
///
/// Lines: `non-port m`, `port m` and `trad m`, as in the paper's figures. Metrics: `throughput`, `hit_rate`
/// and `miss_rate` (of the server's memory), `forwarded` (share of the requests), `transfer_s` (processor
/// time to send a file of mean size between nodes, at one end; 0 for the traditional server). `[params]`: the
/// fields of [`Press`] and one of these keys:
///
/// * `over_nodes`: x is the number of nodes;
/// * `over_memory_mb`: x is the memory of a node; the working set is the one that `hit_rate` gives at
///   `memory_mb`;
/// * `over_traces`: tables with fields of [`Press`]; x is their number, from 1.
#[derive(Debug)]
pub(super) struct Model;

#[derive(Clone, Debug)]
struct ModelPlan {
    /// The x values with their models.
    points: Vec<(f64, Press)>,
}

/// The largest number of points of a model.
const POINTS_MAX: usize = 100;

impl Builtin for Model {
    fn name(&self) -> &'static str {
        "press-model"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        #[derive(Deserialize)]
        struct Over {
            over_nodes: Option<Vec<u32>>,
            over_memory_mb: Option<Vec<f64>>,
            over_traces: Option<Vec<toml::Table>>,
        }
        let over: Over = params(table)?;
        let mut rest = table.clone();
        for key in ["over_nodes", "over_memory_mb", "over_traces"] {
            rest.remove(key);
        }
        let press: Press = params(&rest)?;
        let points = match (over.over_nodes, over.over_memory_mb, over.over_traces) {
            (Some(nodes), None, None) => {
                check_nodes(&nodes)?;
                nodes.into_iter().map(|nodes| (f64::from(nodes), Press { nodes, ..press })).collect()
            }
            (None, Some(memories), None) => with_memories(&press, &memories)?,
            (None, None, Some(traces)) => with_traces(&rest, traces)?,
            _ => return Err("'params' needs one of over_nodes, over_memory_mb and over_traces".to_owned()),
        };
        if points.is_empty() || points.len() > POINTS_MAX {
            return Err(format!("what the model goes over must be 1 to {POINTS_MAX} values"));
        }
        for (_, press) in &points {
            press.solve().map_err(|error| error.to_string())?;
        }
        Ok(Box::new(ModelPlan { points }))
    }
}

/// Returns the models with the same working set and other memories.
fn with_memories(press: &Press, memories: &[f64]) -> Result<Vec<(f64, Press)>, String> {
    let files = press.solve().map_err(|error| error.to_string())?.files;
    let zipf = HarmonicNumbers::new(press.alpha);
    let point = |memory_mb: &f64| {
        let held = *memory_mb * 1_024.0 / press.file_kb;
        (*memory_mb, Press { memory_mb: *memory_mb, hit_rate: zipf.share(held, files), ..*press })
    };
    if memories.iter().any(|memory| !(*memory > 0.0 && memory.is_finite())) {
        return Err("'over_memory_mb' must hold numbers above 0".to_owned());
    }
    Ok(memories.iter().map(point).collect())
}

/// Returns the models with each trace's fields over the common ones.
fn with_traces(common: &toml::Table, traces: Vec<toml::Table>) -> Result<Vec<(f64, Press)>, String> {
    let point = |(trace, x): (toml::Table, u32)| {
        let mut fields = common.clone();
        fields.extend(trace);
        Ok((f64::from(x), params(&fields)?))
    };
    traces.into_iter().zip(1..).map(point).collect()
}

impl Plan for ModelPlan {
    fn lines(&self) -> Vec<String> {
        Server::ALL.map(|server| format!("{} m", server.name())).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "hit_rate", "miss_rate", "forwarded", "transfer_s"]
    }

    fn jobs(&self) -> usize {
        1
    }

    fn key(&self, _job: usize) -> String {
        format!("{self:?}")
    }

    fn run(&self, _job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let mut samples = Vec::new();
        for (x, press) in &self.points {
            let solution = press.solve()?;
            for answer in solution.servers {
                let alone = answer.server == Server::Trad;
                let hit_rate = if alone { press.hit_rate } else { solution.hit_rate_cluster };
                let values = [
                    ("throughput", answer.throughput),
                    ("hit_rate", hit_rate),
                    ("miss_rate", 1.0 - hit_rate),
                    ("forwarded", if alone { 0.0 } else { solution.forwarded }),
                    ("transfer_s", if alone { 0.0 } else { press.relaying_s() }),
                ];
                samples.push(Sample::new(&format!("{} m", answer.server.name()), *x, values));
            }
        }
        Ok(samples)
    }
}

fn check_nodes(nodes: &[u32]) -> Result<(), String> {
    let good =
        !nodes.is_empty() && nodes.len() <= 100 && nodes.iter().all(|count| (1..=65_534).contains(count));
    if good {
        Ok(())
    } else {
        Err("the numbers of nodes must be 1 to 100 numbers from 1 to 65534".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn samples(text: &str) -> Result<Vec<Sample>, String> {
        let plan = Model.plan(&text.parse().unwrap())?;
        Ok(plan.run(0, &Traces::new(Path::new("nowhere"))).unwrap())
    }

    #[test]
    fn the_working_set_stays_when_memory_grows() {
        let samples = samples("hit_rate = 0.75\nmemory_mb = 128\nover_memory_mb = [64, 128, 4000]").unwrap();
        let trad: Vec<f64> =
            samples.iter().filter(|s| s.line == "trad m").map(|s| s.values["hit_rate"]).collect();
        assert!(trad[0] < 0.75 && (trad[1] - 0.75).abs() < 1e-6 && trad[2] == 1.0, "{trad:?}");
    }

    #[test]
    fn traces_lie_over_what_they_share() {
        let samples = samples("nodes = 4\nover_traces = [{ hit_rate = 0.5 }, { nodes = 2 }]").unwrap();
        let alone = |x: f64| samples.iter().find(|s| s.line == "trad m" && s.x == x).unwrap().values.clone();
        assert_eq!((alone(1.0)["hit_rate"], alone(2.0)["hit_rate"]), (0.5, 0.75));
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (text, complaint) in [
            ("hit_rate = 0.5", "one of over_nodes"),
            ("over_nodes = [1]\nover_memory_mb = [1]", "one of over_nodes"),
            ("over_memory_mb = [0]", "numbers above 0"),
            ("over_memory_mb = []", "1 to 100 values"),
            ("over_nodes = [0]", "numbers from 1 to 65534"),
            ("over_traces = [{ hitrate = 1 }]", "unknown field `hitrate`"),
        ] {
            let error = samples(text).unwrap_err();
            assert!(error.contains(complaint), "{text}: {error}");
        }
    }
}
