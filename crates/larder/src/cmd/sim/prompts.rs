//! `larder sim prompts`: replays prompts of language models through the policies of chains.

use std::io::{self, Write};

use clap::Args;
use larder_sim::prompts::{
    DEFAULT_OBJECTIVE_S, EngineModel, NODES_MAX, PromptCluster, PromptOutcome, Reuse, SWITCHES_MAX,
    simulate_prompts, table,
};
use larder_sim::text::{counted, number};

use crate::cmd::prompt_source::PromptSource;
use crate::outcome::usage;

/// Compare policies that place prompts at inference servers: hits, time to the first token, throughput.
///
/// The trace, or generated agents, pass a simulated cluster of engines for every policy. Engines are modelled by a roofline,
/// whose iterations take 39 % less to 54 % more time than measured ones: compare policies. Policies: rr, least-load, prequal, chwbl, dualmap, smg,
/// dynamo, prefix-product, lard-prefix. The objective of dualmap is 5 s to the first token. Engines: llama3-8b-a100,
/// llama2-70b-8xa800.
///
/// For example: larder sim prompts mooncake-conversation.jsonl --nodes 8,32 --speed 2
#[derive(Debug, Args)]
pub(crate) struct PromptsArgs {
    #[command(flatten)]
    source: PromptSource,
    /// Numbers of nodes, 1 to 1024 each.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "8",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(NODES_MAX)))]
    nodes: Vec<u16>,
    /// Speed of the clock: 2 doubles the rate of requests. Above 0, at most 1000.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    speed: f64,
    /// Number of switches, 1 to 64. Each places a share of the requests, and tells the others every 20 ms.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=i64::from(SWITCHES_MAX)))]
    switches: u16,
    /// The switches tell each other nothing.
    #[arg(long)]
    isolated: bool,
    /// Print JSON instead of the tables.
    #[arg(long)]
    json: bool,
}

/// The JSON document.
#[derive(serde::Serialize)]
struct Document<'a> {
    schema: &'static str,
    comparisons: &'a [Comparison],
}

/// The comparison of policies for one number of nodes.
#[derive(serde::Serialize)]
struct Comparison {
    nodes: u16,
    requests: usize,
    prompt_tokens: u64,
    speed: f64,
    switches: u16,
    /// Whether the switches tell each other nothing.
    isolated: bool,
    engine: EngineModel,
    /// Hits of a cache without a limit.
    reuse_unlimited: Reuse,
    /// Hits of one cache with the memory of all nodes.
    reuse_one_memory: Reuse,
    policies: Vec<PromptOutcome>,
}

pub(crate) fn run(args: &PromptsArgs) -> anyhow::Result<()> {
    if !(args.speed > 0.0 && args.speed <= 1_000.0) {
        return Err(usage(format!(
            "--speed {} is out of range: it must be above 0 and at most 1000",
            args.speed
        )));
    }
    let comparisons = args.compare()?;
    let mut out = io::stdout().lock();
    if args.json {
        let document = Document { schema: "larder/prompts/1", comparisons: &comparisons };
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        for comparison in &comparisons {
            comparison.write(&mut out)?;
        }
    }
    Ok(out.flush()?)
}

impl PromptsArgs {
    fn compare(&self) -> anyhow::Result<Vec<Comparison>> {
        let (policies, engine) = (self.source.policies()?, self.source.engine());
        let workload = self.source.workload()?.at_speed(self.speed);
        let runs: Vec<PromptCluster> = self
            .nodes
            .iter()
            .flat_map(|nodes| {
                policies.iter().map(|policy| PromptCluster {
                    nodes: *nodes,
                    engine,
                    policy: *policy,
                    objective_s: DEFAULT_OBJECTIVE_S,
                    switches: self.switches,
                    isolated: self.isolated,
                })
            })
            .collect();
        let outcomes = larder_sim::sweep(runs.len(), |at| simulate_prompts(&workload, &runs[at]));
        let outcomes =
            outcomes.into_iter().collect::<Result<Vec<_>, _>>().map_err(|error| usage(error.to_string()))?;
        let reuse_unlimited = workload.reuse(u64::MAX);
        let comparison = |(nodes, outcomes): (&u16, &[PromptOutcome])| Comparison {
            nodes: *nodes,
            requests: workload.len(),
            prompt_tokens: workload.prompt_tokens(),
            speed: self.speed,
            switches: self.switches,
            isolated: self.isolated,
            engine,
            reuse_unlimited,
            reuse_one_memory: workload.reuse(engine.kv_tokens.saturating_mul(u64::from(*nodes))),
            policies: outcomes.to_vec(),
        };
        Ok(self.nodes.iter().zip(outcomes.chunks(policies.len())).map(comparison).collect())
    }
}

impl Comparison {
    fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let percent = |share: f64| format!("{:.1} %", share * 100.0);
        writeln!(
            out,
            "{} of {} with {} tokens of KV memory each; {}, {} tokens of prompts, speed {}",
            counted(self.nodes, "node"),
            self.engine.name,
            number(self.engine.kv_tokens as f64),
            counted(self.requests as u64, "request"),
            number(self.prompt_tokens as f64),
            self.speed
        )?;
        if self.switches > 1 {
            let told = if self.isolated { "that know nothing of each other" } else { "that know each other" };
            writeln!(out, "{} switches {told}", self.switches)?;
        }
        let Reuse { blocks, tokens } = self.reuse_unlimited;
        writeln!(
            out,
            "hits without a limit of memory: {} of the tokens, {} of the blocks",
            percent(tokens),
            percent(blocks)
        )?;
        writeln!(
            out,
            "hits of one cache as large as all nodes: {} of the tokens\n",
            percent(self.reuse_one_memory.tokens)
        )?;
        writeln!(out, "{}", table(&self.policies))?;
        let (refused, preempted) = self
            .policies
            .iter()
            .fold((0, 0), |(r, p), policy| (r.max(policy.refused), p.max(policy.preemptions)));
        if refused > 0 {
            writeln!(
                out,
                "{} refused: they need more memory than a node has\n",
                counted(refused, "request")
            )?;
        }
        if preempted > 0 {
            writeln!(out, "up to {} preempted for lack of memory\n", counted(preempted, "sequence"))?;
        }
        Ok(())
    }
}
