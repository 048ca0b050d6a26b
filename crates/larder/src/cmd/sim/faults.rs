//! `larder sim faults`: checks the protocols between peers in simulated clusters with faults.

use core::ops::Range;
use std::io::{self, Write};

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder_sim::faults::{self, BrokenRule, FaultStats, Protocol, Violation};
use serde::Serialize;

use crate::outcome::usage;
use crate::report::counted;

/// Run nodes that cooperate through lost, late, repeated and reordered messages, crashes, pauses and partitions, and
/// check that every request ends once and that all views of the cluster become exact when the faults end.
///
/// Six protocols are run, each in so many worlds: PRESS, CARD (one node decides for all), WARD (every node has a routing
/// table), switches side by side, nodes that hand clients' connections over to each other, and a switch that hands clients'
/// connections off to nodes. Each world is drawn from a
/// seed. The first seed whose world shows a fault ends the command with exit code 1 and is named; `--only` runs it again and
/// tells all that happens.
#[derive(Debug, Args)]
pub(crate) struct FaultsArgs {
    /// Worlds, 1 to 10 million.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    seeds: u64,
    /// Only this protocol: press, card, ward, switches, handing or edge. All if not said; with `--only` and `--break` press.
    #[arg(long, value_parser = parse_protocol)]
    protocol: Option<Protocol>,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run this seed alone, and tell what happens, line by line.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    only: Option<u64>,
    /// Let the nodes break a rule, to see that the breach is found.
    #[arg(long = "break", value_name = "RULE", value_parser = parse_rule)]
    broken: Option<BrokenRule>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct FaultsReport {
    schema: &'static str,
    first: u64,
    seeds: u64,
    protocols: Vec<ProtocolResult>,
}

#[derive(Debug, Serialize)]
struct ProtocolResult {
    protocol: &'static str,
    /// Sums over all worlds; for times to converge, the maximum.
    survived: FaultStats,
}

pub(crate) fn run(args: &FaultsArgs) -> anyhow::Result<()> {
    let (first, seeds) = args.only.map_or((args.first, args.seeds), |only| (only, 1));
    let end = first.checked_add(seeds).ok_or_else(|| usage("--first: there are no seeds beyond 2^64 - 1"))?;
    let single = args.only.is_some() || args.broken.is_some();
    let protocols = match args.protocol {
        Some(protocol) => vec![protocol],
        None if single => vec![Protocol::Press],
        None => Protocol::ALL.to_vec(),
    };
    let mut report = FaultsReport { schema: "larder/faults/2", first, seeds, protocols: Vec::new() };
    for protocol in protocols {
        let survived = run_worlds(args, protocol, first..end);
        let survived = survived.with_context(|| format!("{}: what must hold does not", protocol.name()))?;
        report.protocols.push(ProtocolResult { protocol: protocol.name(), survived });
    }
    write(&report, args.json)
}

fn run_worlds(args: &FaultsArgs, protocol: Protocol, seeds: Range<u64>) -> Result<FaultStats, Violation> {
    if let Some(only) = args.only {
        let mut out = io::stderr().lock();
        // Messages to a closed stderr are dropped.
        return faults::run_world_with_log(protocol, only, args.broken, &mut |line| {
            drop(writeln!(out, "{line}"));
        });
    }
    let bar = ProgressBar::new(seeds.end - seeds.start);
    if let Ok(style) = ProgressStyle::with_template("{msg} [{bar:30}] {pos} of {len} worlds, {eta} left") {
        bar.set_style(style);
    }
    bar.set_message(protocol.name());
    let survived = faults::run_worlds(protocol, seeds, args.broken, &|| bar.inc(1));
    bar.finish_and_clear();
    survived
}

fn parse_protocol(name: &str) -> Result<Protocol, String> {
    let found = Protocol::ALL.into_iter().find(|protocol| protocol.name() == name);
    found.ok_or_else(|| format!("no such protocol: one of {}", Protocol::ALL.map(Protocol::name).join(", ")))
}

fn parse_rule(name: &str) -> Result<BrokenRule, String> {
    let names = BrokenRule::ALL.map(BrokenRule::name).join(", ");
    BrokenRule::ALL
        .into_iter()
        .find(|broken| broken.name() == name)
        .ok_or(format!("no such rule: one of {names}"))
}

fn write(report: &FaultsReport, json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        let last = report.first + report.seeds - 1;
        for ProtocolResult { protocol, survived: s } in &report.protocols {
            writeln!(out, "protocol       {protocol}")?;
            writeln!(
                out,
                "worlds         {} (seeds {} to {last}), {}",
                report.seeds,
                report.first,
                counted(s.nodes, "node")
            )?;
            writeln!(
                out,
                "requests       {}, forwarded {}, taken back {}",
                s.requests, s.forwarded, s.taken_back
            )?;
            writeln!(
                out,
                "failed once    aborted in mid-reply {}, cut off with their node {}",
                s.aborted, s.cut
            )?;
            writeln!(out, "messages       {} heard, {} lost", s.heard, s.lost)?;
            writeln!(
                out,
                "faults         {} crashes, {} pauses, {} partitions",
                s.crashes, s.pauses, s.partitions
            )?;
            writeln!(out, "views exact    {} ms after the last fault at most", s.converged_ms)?;
        }
        writeln!(out, "what must hold held in every world")?;
    }
    out.flush()?;
    Ok(())
}
