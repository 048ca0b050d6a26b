//! `larder-oracle`: sends random requests to a built larder and judges the replies by a model of RFC 9111. See
//! docs/understand/laboratory.md.

use anyhow::{Context, ensure};
use clap::Parser;
use larder_oracle::case::Case;
use larder_oracle::model::judge;
use larder_oracle::origin::{self, CaseRegistry};
use larder_oracle::run::{self, Outcome, Plan};
use larder_oracle::runner::CaseRunner;
use larder_oracle::topology::{self, Topology};
use larder_oracle::{report, transcript};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

/// Sends random pairs and triples of requests to a built larder and checks by a model of RFC 9111 that no client
/// gets a reply that it may not get. Exits with 1 if one does, or if no reply was ever shared.
#[derive(Debug, Parser)]
struct Args {
    /// Cases in total: 60 % for the node and 10 % for each other system if all run, otherwise equal parts.
    #[arg(long, default_value_t = 20_000)]
    cases: u64,
    /// Seed of all cases.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Systems under test; by default all.
    #[arg(long, value_enum, value_delimiter = ',')]
    topology: Vec<Topology>,
    /// Runs one case instead, SEED:NUMBER as a transcript names it, and shows its transcript.
    #[arg(long, value_name = "SEED:NUMBER")]
    case: Option<String>,
    /// The binary under test; by default `larder` beside this program.
    #[arg(long, value_name = "FILE")]
    larder: Option<PathBuf>,
    /// Concurrent cases. 1 to 10,000.
    #[arg(long = "lanes", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    runners: u16,
    /// How long the origin holds a reply, in ms, once a concurrent request is written but not seen by the origin.
    #[arg(long, default_value_t = 15)]
    grace_ms: u64,
    /// Failing cases that are shown for each broken rule.
    #[arg(long, default_value_t = 2)]
    show: usize,
    /// Writes the JSON report to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> ExitCode {
    match Args::parse().run().await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("larder-oracle: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl Args {
    /// Returns true if all replies are right.
    async fn run(&self) -> anyhow::Result<bool> {
        let larder = topology::binary(self.larder.as_deref())?;
        let registry = Arc::new(CaseRegistry::new(usize::from(self.runners)));
        let origin = origin::start(Arc::clone(&registry)).await.context("cannot start the origin")?;
        let all = self.topology.is_empty();
        let topologies = if all { &Topology::ALL[..] } else { &self.topology };
        if let Some(name) = &self.case {
            return self.replay(name, &larder, (topologies[0], origin, &registry)).await;
        }
        let runs = Arc::new(AtomicU64::new(0));
        let mut outcomes = Vec::new();
        let mut first = 0;
        for topology in topologies {
            let count = if all {
                self.cases * topology.percent() / 100
            } else {
                self.cases / topologies.len() as u64
            };
            let plan = Plan {
                seed: self.seed,
                numbers: first..first + count,
                runners: usize::from(self.runners),
                grace: Duration::from_millis(self.grace_ms),
                shown_max: self.show,
            };
            first += count;
            eprintln!("{}: {count} cases with seed {}", topology.name(), self.seed);
            let system = topology.start(&larder, origin).await?;
            let outcome = run::run(&system.target, &registry, &runs, &plan).await;
            show_failures(&outcome);
            outcomes.push(outcome);
        }
        print!("{}", report::table(&outcomes));
        if let Some(path) = &self.json {
            let text = serde_json::to_string_pretty(&report::json(self.seed, &outcomes))?;
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))?;
        }
        for (name, unused) in outcomes.iter().filter_map(|outcome| Some((outcome.topology, outcome.idle()?)))
        {
            eprintln!("{name}: {unused}, so the run proves too little");
        }
        Ok(outcomes.iter().all(Outcome::passes))
    }

    /// Runs one case and prints its transcript.
    async fn replay(
        &self,
        name: &str,
        larder: &Path,
        (topology, origin, registry): (Topology, std::net::SocketAddr, &Arc<CaseRegistry>),
    ) -> anyhow::Result<bool> {
        let (seed, number) = name.split_once(':').context("a case is SEED:NUMBER, such as 1:4711")?;
        let (seed, number) = (seed.parse()?, number.parse()?);
        ensure!(self.topology.len() < 2, "a case is replayed against one system");
        let system = topology.start(larder, origin).await?;
        let grace = Duration::from_millis(self.grace_ms);
        let mut runner = CaseRunner::new(0, Arc::clone(&system.target), Arc::clone(registry), grace);
        let record = runner.run(&Arc::new(Case::draw(seed, number)), 0).await;
        let verdict = judge(&record);
        print!("{}", transcript::transcript(topology.name(), &record, &verdict));
        if verdict.violations.is_empty() {
            println!("every reply is right");
        }
        Ok(verdict.violations.is_empty())
    }
}

fn show_failures(outcome: &Outcome) {
    for failure in &outcome.failures {
        println!("{}", transcript::transcript(outcome.topology, &failure.record, &failure.verdict));
    }
}
