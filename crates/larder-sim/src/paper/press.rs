//! The analytic model of PRESS as experiments: its peaks (figures 3 and 4) and its curves for the traces measured
//! (figures 6 to 9).

use serde::Deserialize;

use super::PaperError;
use super::builtin::{Builtin, Plan, params};
use super::report::Sample;
use super::traces::Traces;
use crate::press::{Network, Press, Reading, Server, peak};

/// `press-peaks`: the largest gain of one server over another over all file sizes and hit rates, against nodes.
///
/// Lines: `fast` and `slow`, and `fast, M0` and `slow, M0` for the model by the letter. Metrics: `gain` (a factor),
/// `file_kb` and `hit_rate` of the peak.
#[derive(Debug)]
pub(super) struct Peaks;

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct PeakPlan {
    /// The server that gains.
    of: Server,
    /// Over which.
    over: Server,
    /// Numbers of nodes.
    nodes: Vec<u32>,
}

const LINES: [(&str, Network, Reading); 4] = [
    ("fast", Network::Fast, Reading::M1),
    ("slow", Network::Slow, Reading::M1),
    ("fast, M0", Network::Fast, Reading::M0),
    ("slow, M0", Network::Slow, Reading::M0),
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
        let peak = peak(&base, self.of, self.over)?;
        let values = [("gain", peak.ratio), ("file_kb", peak.file_kb), ("hit_rate", peak.hit_rate)];
        Ok(vec![Sample::new(line, f64::from(base.nodes), values)])
    }
}

/// `press-model`: the servers' throughput against nodes for one working set.
///
/// Lines: `non-port m`, `port m` and `trad m`, as in the paper's figures. Metrics: `throughput`, `hit_rate` (of the
/// server's memory), `forwarded` (share of the requests). `[params]`: the fields of [`Press`], and `over_nodes`.
#[derive(Debug)]
pub(super) struct Model;

#[derive(Clone, Debug)]
struct ModelPlan {
    press: Press,
    over_nodes: Vec<u32>,
}

impl Builtin for Model {
    fn name(&self) -> &'static str {
        "press-model"
    }

    fn plan(&self, table: &toml::Table) -> Result<Box<dyn Plan>, String> {
        #[derive(Deserialize)]
        struct Over {
            over_nodes: Vec<u32>,
        }
        let Over { over_nodes } = params(table)?;
        check_nodes(&over_nodes)?;
        let mut rest = table.clone();
        rest.remove("over_nodes");
        let press: Press = params(&rest)?;
        press.solve().map_err(|error| error.to_string())?;
        Ok(Box::new(ModelPlan { press, over_nodes }))
    }
}

impl Plan for ModelPlan {
    fn lines(&self) -> Vec<String> {
        Server::ALL.map(|server| format!("{} m", server.name())).to_vec()
    }

    fn metrics(&self) -> Vec<&'static str> {
        vec!["throughput", "hit_rate", "forwarded"]
    }

    fn jobs(&self) -> usize {
        1
    }

    fn key(&self, _job: usize) -> String {
        format!("{self:?}")
    }

    fn run(&self, _job: usize, _traces: &Traces) -> Result<Vec<Sample>, PaperError> {
        let mut samples = Vec::new();
        for &nodes in &self.over_nodes {
            let solution = Press { nodes, ..self.press }.solve()?;
            for answer in solution.servers {
                let alone = answer.server == Server::Trad;
                let values = [
                    ("throughput", answer.throughput),
                    ("hit_rate", if alone { self.press.hit_rate } else { solution.hit_rate_cluster }),
                    ("forwarded", if alone { 0.0 } else { solution.forwarded }),
                ];
                samples.push(Sample::new(&format!("{} m", answer.server.name()), f64::from(nodes), values));
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
