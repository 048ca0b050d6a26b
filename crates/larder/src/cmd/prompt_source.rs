//! The prompts and the engine of `larder sim prompts` and `larder plan prompts`.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args;
use larder_core::chain::ChainPolicyKind;
use larder_sim::prompts::{EngineModel, PromptWorkload};
use larder_sim::text::counted;
use larder_trace::{Limits, Prompts, ReadEnd, ReadReport};

use crate::outcome::usage;

/// Time in which sessions of agents begin, in s.
const AGENTS_S: f64 = 1_800.0;

/// The prompts, the engine and the policies.
#[derive(Debug, Args)]
pub(crate) struct PromptSource {
    /// Log of requests of OpenAI's API, or trace in Mooncake's format (JSON lines), which may be compressed. Lines of a log have a
    /// time and the body of a request, and optionally `usage`.
    #[arg(required_unless_present = "agents", conflicts_with = "agents")]
    trace: Option<PathBuf>,
    /// Generate half an hour of agents instead of reading a trace. RATE sessions begin per second; they share 60 system
    /// prompts. Above 0, at most 100.
    #[arg(long, value_name = "RATE")]
    agents: Option<f64>,
    /// Seed of the agents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Policies. Default: all.
    #[arg(long, value_delimiter = ',', value_name = "NAME,...")]
    policies: Vec<ChainPolicyKind>,
    /// Model and devices of a node.
    #[arg(long, value_name = "NAME", default_value = EngineModel::LLAMA3_8B.name)]
    engine: EngineModel,
    /// KV memory of a node in tokens. Default: that of the engine.
    #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u64).range(1..))]
    memory: Option<u64>,
    /// Replay only the first requests.
    #[arg(long, value_name = "REQUESTS")]
    limit: Option<usize>,
}

/// Reports the lines that were left out.
fn warn(report: &ReadReport) {
    if let Some(first) = report.first_malformed.first() {
        let lines = counted(report.malformed, "line");
        // Messages to a closed stderr are dropped.
        let _ = writeln!(io::stderr(), "{lines} left out; the first: {first}");
    }
    if report.ended == ReadEnd::RequestsMax {
        let prompts = counted(report.records, "prompt");
        let _ = writeln!(io::stderr(), "trace cut after {prompts}, at the limit of blocks");
    }
}

impl PromptSource {
    /// Reads or generates the prompts.
    pub(crate) fn workload(&self) -> anyhow::Result<PromptWorkload> {
        let mut workload = match (&self.trace, self.agents) {
            (Some(path), _) => {
                let (trace, report) = Prompts::load(path, &Limits::default())
                    .with_context(|| format!("cannot read {}", path.display()))?;
                warn(&report);
                PromptWorkload::new(&trace)
            }
            (None, Some(rate)) if rate > 0.0 && rate <= 100.0 => {
                PromptWorkload::agents(self.seed, AGENTS_S, rate)
            }
            (None, rate) => {
                let rate = rate.unwrap_or_default();
                return Err(usage(format!(
                    "--agents {rate} is out of range: it must be above 0 and at most 100"
                )));
            }
        };
        workload.truncate(self.limit.unwrap_or(usize::MAX));
        Ok(workload)
    }

    /// Returns the policies, each once.
    pub(crate) fn policies(&self) -> anyhow::Result<&[ChainPolicyKind]> {
        let repeated =
            self.policies.iter().enumerate().find(|(at, kind)| self.policies[..*at].contains(kind));
        match repeated {
            Some((_, kind)) => Err(usage(format!("--policies names '{kind}' twice"))),
            None if self.policies.is_empty() => Ok(&ChainPolicyKind::ALL),
            None => Ok(&self.policies),
        }
    }

    /// Returns the engine with its memory.
    pub(crate) fn engine(&self) -> EngineModel {
        EngineModel { kv_tokens: self.memory.unwrap_or(self.engine.kv_tokens), ..self.engine }
    }
}
