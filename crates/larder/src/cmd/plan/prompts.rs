//! `larder plan prompts`: the policy and the number of inference servers that suit a trace of prompts.

use std::io::{self, Write};

use clap::Args;
use larder_sim::prompts::{
    Capacity, FirstTokenGoal, PLAN_NODES_MAX, PromptPlan, PromptPlanOptions, PromptPlanRow, plan_prompts,
};
use larder_sim::text::{counted, number, per_s};

use super::ProgressDisplay;
use crate::cmd::prompt_source::PromptSource;
use crate::outcome::usage;

/// Recommend a policy and a number of inference servers for your prompts, and say whether routing by prefix pays.
///
/// The prompts pass a simulated cluster for every policy. The plan states the nodes that each policy needs for the goal, and
/// the rate that it can serve with the same number of nodes. The goal is also the objective of dualmap. Engines are
/// modelled by a roofline, whose iterations take 39 % less to 54 % more time than measured ones: compare policies.
///
/// For example: larder plan prompts mooncake-conversation.jsonl --goal p90=10s
#[derive(Debug, Args)]
pub(crate) struct PlanPromptsArgs {
    #[command(flatten)]
    source: PromptSource,
    /// Goal of the cluster: p50=TIME, p90=TIME or p99=TIME to the first token. Default: p90, at 4 times that of idle
    /// engines with an empty KV cache.
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
        "engine: {} with {} tokens of KV memory; its times are modelled",
        plan.engine.name,
        number(plan.engine.kv_tokens as f64)
    )?;
    writeln!(out, "goal: {}; idle engines with an empty KV cache take {:.3} s", plan.goal, plan.idle_s)?;
    let reuses: Vec<String> = plan
        .reuse_by_nodes
        .iter()
        .map(|(nodes, reuse)| format!("{} {}", counted(*nodes, "node"), percent(reuse.tokens)))
        .collect();
    let most = percent(plan.reuse_unlimited.tokens);
    writeln!(out, "reuse: at most {most} of the tokens; with one shared cache of this many nodes' memory:")?;
    writeln!(out, "  {}\n", reuses.join(", "))?;
    write_table(plan, out)?;
    writeln!(out, "\n{}", advice(plan))?;
    if plan.is_short {
        let warning = "the trace is shorter than 10 times the goal's time, so queues may not have grown";
        writeln!(out, "Warning: {warning}. Use a longer trace or a shorter time.")?;
    }
    Ok(())
}

fn write_table(plan: &PromptPlan, out: &mut impl Write) -> io::Result<()> {
    if let Some(nodes) = plan.nodes {
        writeln!(out, "{:<14}  {:>12}  with {}:", "", "", counted(nodes, "node"))?;
    }
    write!(out, "{:<14}  {:>12}", "policy", "nodes needed")?;
    let head = ["hits", "TTFT mean", "p50", "p90", "p99", "capacity"];
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
            let capacity = row.capacity.map_or_else(|| "none".to_owned(), capacity);
            write!(out, "  {capacity:>10}")?;
        }
        writeln!(out)?;
    }
    Ok(())
}

fn capacity(capacity: Capacity) -> String {
    let least = if capacity.is_lower_bound { ">= " } else { "" };
    format!("{least}{}/s", per_s(capacity.per_s))
}

/// Returns the recommendation, and whether routing by prefix pays.
fn advice(plan: &PromptPlan) -> String {
    let Some((best, nodes)) = plan.best().and_then(|best| Some((best, best.nodes_needed?))) else {
        return no_advice(plan);
    };
    let memory = number(plan.engine.kv_tokens.saturating_mul(nodes.into()) as f64);
    let recommended = format!(
        "Recommended: {} on {} with {memory} tokens of KV memory.",
        best.policy,
        counted(nodes, "node")
    );
    format!("{recommended}\n{}", verdict(plan, best, nodes))
}

fn no_advice(plan: &PromptPlan) -> String {
    let remedy = if plan.too_large > 0 {
        format!(
            "Prompts that need more memory than a node has: {}. Give more with --memory.",
            number(plan.too_large as f64)
        )
    } else if plan.idle_s > plan.goal.seconds {
        format!(
            "Idle engines with an empty KV cache take {:.3} s: give a longer time with --goal, or a faster engine.",
            plan.idle_s
        )
    } else {
        "Give a longer time with --goal, a faster engine, or a trace with fewer requests per second."
            .to_owned()
    };
    format!("No policy meets the goal with up to {PLAN_NODES_MAX} nodes. {remedy}")
}

/// Returns whether routing by prefix pays.
fn verdict(plan: &PromptPlan, best: &PromptPlanRow, nodes: u16) -> String {
    let has = |by_prefix| plan.policies.iter().any(|row| row.routes_by_prefix == by_prefix);
    for (by_prefix, name) in [(true, "lard-prefix"), (false, "least-load")] {
        if !has(by_prefix) {
            return format!("Add {name} to --policies to see whether routing by prefix pays.");
        }
    }
    let Some((other, needed)) =
        plan.best_without_prefixes().and_then(|other| Some((other, other.nodes_needed?)))
    else {
        return format!("Routing by prefix pays: without it, {PLAN_NODES_MAX} nodes do not suffice.");
    };
    if needed > nodes {
        let more = (f64::from(needed) / f64::from(nodes) - 1.0) * 100.0;
        return format!(
            "Routing by prefix pays: {} needs {}, {more:.0} % more.",
            other.policy,
            counted(needed, "node")
        );
    }
    let compared = counted(plan.nodes.unwrap_or(nodes), "node");
    match (best.capacity, other.capacity) {
        (Some(best), Some(rate)) if best.is_lower_bound && rate.is_lower_bound => format!(
            "Routing by prefix saves no node. The trace is too short to compare capacities with {compared}."
        ),
        (Some(capacity), Some(rate)) if capacity.per_s > rate.per_s * 1.05 => format!(
            "Routing by prefix saves no node, but with {compared}, {} serves {:.0} % more than {}.",
            best.policy,
            (capacity.per_s / rate.per_s - 1.0) * 100.0,
            other.policy
        ),
        _ => format!("Routing by prefix does not pay here: {} needs no more nodes.", other.policy),
    }
}
