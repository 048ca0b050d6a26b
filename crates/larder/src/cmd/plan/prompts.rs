//! `larder plan prompts`: the policy and the number of inference servers that suit a trace of prompts.

use std::io::{self, Write};

use clap::Args;
use larder_sim::prompts::{
    FirstTokenGoal, PLAN_NODES_MAX, PromptPlan, PromptPlanOptions, PromptPlanRow, plan_prompts,
};
use larder_sim::text::{counted, number, per_s};

use super::ProgressDisplay;
use crate::cmd::prompt_source::PromptSource;
use crate::outcome::usage;

/// Recommend a policy and a number of inference servers for your prompts, and say whether routing by prefix pays.
///
/// The prompts pass a simulated cluster for every policy. The plan states the nodes that each policy needs for the goal, and
/// the rate that it can serve with equally many nodes. Engines are modelled by a roofline that was not calibrated, so
/// compare policies and do not rely on absolute times.
///
/// For example: larder plan prompts mooncake-conversation.jsonl --goal p90=10s
#[derive(Debug, Args)]
pub(crate) struct PlanPromptsArgs {
    #[command(flatten)]
    source: PromptSource,
    /// Goal of the cluster: p50=TIME, p90=TIME or p99=TIME to the first token. Default: p90, at 4 times that of idle
    /// engines that have nothing stored.
    #[arg(long)]
    goal: Option<FirstTokenGoal>,
    /// Number of nodes at which policies are compared, 1 to 256. Default: the least with which a policy meets the goal.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=i64::from(PLAN_NODES_MAX)))]
    nodes: Option<u16>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
}

/// The JSON document.
#[derive(serde::Serialize)]
struct Document<'a> {
    schema: &'static str,
    #[serde(flatten)]
    plan: &'a PromptPlan,
    /// The recommended policy; `null` if no policy meets the goal.
    best: Option<&'static str>,
    /// The best policy that does not look at prompts; `null` if none of them meets the goal or was simulated.
    best_without_prefixes: Option<&'static str>,
}

pub(super) fn run(args: &PlanPromptsArgs) -> anyhow::Result<()> {
    let options = PromptPlanOptions {
        policies: args.source.policies()?.to_vec(),
        engine: args.source.engine(),
        goal: args.goal,
        nodes: args.nodes,
    };
    let workload = args.source.workload()?;
    let bar = ProgressDisplay::new();
    let made = plan_prompts(&workload, &options, &|done, all| bar.set("policies", done as u64, all as u64));
    drop(bar);
    let plan = made.map_err(|error| usage(error.to_string()))?;
    let mut out = io::stdout().lock();
    if args.json {
        let name = |row: &PromptPlanRow| row.policy;
        let document = Document {
            schema: "larder/prompt-plan/1",
            best: plan.best().map(name),
            best_without_prefixes: plan.best_without_prefixes().map(name),
            plan: &plan,
        };
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        write(&plan, &mut out)?;
    }
    Ok(out.flush()?)
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn write(plan: &PromptPlan, out: &mut impl Write) -> io::Result<()> {
    writeln!(
        out,
        "{} at {}/s, with {} tokens of prompts and {} of replies on average",
        counted(plan.requests as u64, "request"),
        per_s(plan.requests_per_s),
        number(plan.prompt_tokens.round()),
        number(plan.reply_tokens.round())
    )?;
    writeln!(
        out,
        "engine: {} with {} tokens of KV memory; its times are modelled and not calibrated",
        plan.engine.name,
        number(plan.engine.kv_tokens as f64)
    )?;
    writeln!(out, "goal: {}; idle engines with nothing stored take {:.3} s", plan.goal, plan.idle_s)?;
    let reuses: Vec<String> = plan
        .reuse_by_nodes
        .iter()
        .map(|(nodes, reuse)| format!("{} {}", counted(*nodes, "node"), percent(reuse.tokens)))
        .collect();
    writeln!(
        out,
        "reuse: at most {} of the tokens; with one cache as large as all nodes:",
        percent(plan.reuse_unlimited.tokens)
    )?;
    writeln!(out, "  {}\n", reuses.join(", "))?;
    write_table(plan, out)?;
    writeln!(out, "\n{}", advice(plan))
}

fn write_table(plan: &PromptPlan, out: &mut impl Write) -> io::Result<()> {
    let with = plan.nodes.map(|nodes| format!(", with {}:", counted(nodes, "node"))).unwrap_or_default();
    writeln!(out, "{:<14}  {:>12}{with}", "policy", "nodes needed")?;
    let head = ["hits", "TTFT mean", "p50", "p90", "p99", "capacity"];
    write!(out, "{:<14}  {:>12}", "", "")?;
    head.iter().try_for_each(|cell| write!(out, "  {cell:>10}"))?;
    writeln!(out)?;
    for row in &plan.policies {
        let needed =
            row.nodes_needed.map_or_else(|| format!("> {PLAN_NODES_MAX}"), |nodes| nodes.to_string());
        write!(out, "{:<14}  {needed:>12}", row.policy)?;
        if let Some(outcome) = &row.outcome {
            let times = outcome.first_token_s;
            write!(out, "  {:>10}", percent(outcome.token_hit_ratio))?;
            for time in [times.mean, times.p50, times.p90, times.p99] {
                write!(out, "  {:>10}", format!("{time:.3} s"))?;
            }
            let capacity =
                row.capacity_per_s.map_or_else(|| "none".to_owned(), |rate| format!("{}/s", per_s(rate)));
            write!(out, "  {capacity:>10}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

/// Returns the recommendation, and whether routing by prefix pays.
fn advice(plan: &PromptPlan) -> String {
    let Some((best, nodes)) = plan.best().and_then(|best| Some((best, best.nodes_needed?))) else {
        return format!(
            "No policy meets the goal with up to {PLAN_NODES_MAX} nodes. Idle engines with nothing stored take {:.3} s: give a longer time with \
             --goal, or a faster engine.",
            plan.idle_s
        );
    };
    let memory = number((plan.engine.kv_tokens * u64::from(nodes)) as f64);
    let recommended = format!(
        "Recommended: {} on {} with {memory} tokens of KV memory.",
        best.policy,
        counted(nodes, "node")
    );
    let blind = plan.policies.iter().any(|row| !row.routes_by_prefix);
    let verdict = match plan.best_without_prefixes() {
        None if !blind => "Add least-load to --policies to see whether routing by prefix pays.".to_owned(),
        None => format!("Without routing by prefix, {PLAN_NODES_MAX} nodes do not suffice."),
        Some(other) => match other.nodes_needed {
            Some(needed) if needed > nodes => format!(
                "Routing by prefix pays: {} needs {}, {:.0} % more.",
                other.policy,
                counted(needed, "node"),
                (f64::from(needed) / f64::from(nodes) - 1.0) * 100.0
            ),
            _ => match (best.capacity_per_s, other.capacity_per_s) {
                (Some(best), Some(rate)) if best > rate * 1.05 => format!(
                    "Routing by prefix saves no node here, but the same nodes serve {:.0} % more than with {}.",
                    (best / rate - 1.0) * 100.0,
                    other.policy
                ),
                _ => format!("Routing by prefix does not pay here: {} needs no more nodes.", other.policy),
            },
        },
    };
    format!("{recommended}\n{verdict}")
}
