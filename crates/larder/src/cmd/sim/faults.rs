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

/// Test the protocols between nodes with simulated faults: lost, late, duplicated and reordered messages, crashes,
/// pauses and partitions.
///
/// The test checks that every request ends exactly once, and that all views of the cluster become exact after the
/// last fault. Six protocols are tested: PRESS, CARD (one node decides for all), WARD (every node has a routing
/// table), several switches, handoff between nodes, and handoff from a switch to nodes.
///
/// Each protocol runs in many worlds, each drawn from a seed. The first seed with a fault ends the command with
/// exit code 1, and its number is printed. `--only` runs this seed again and prints all its events.
///
/// For example: larder sim faults --seeds 1000 --protocol press
#[derive(Debug, Args)]
pub(crate) struct FaultsArgs {
    /// Number of worlds, 1 to 10 million.
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    seeds: u64,
    /// Test only this protocol: press, card, ward, switches, handoff or edge. Default: all; with `--only` and
    /// `--break` press.
    #[arg(long, value_parser = parse_protocol)]
    protocol: Option<Protocol>,
    /// First seed.
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// Run only this seed, and print its events.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "first"])]
    only: Option<u64>,
    /// Make the nodes break a rule, to test that the test finds it.
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
    let end = first.checked_add(seeds).ok_or_else(|| usage("--first is too large: seeds end at 2^64 - 1"))?;
    let single = args.only.is_some() || args.broken.is_some();
    let protocols = match args.protocol {
        Some(protocol) => vec![protocol],
        None if single => vec![Protocol::Press],
        None => Protocol::ALL.to_vec(),
    };
    let mut report = FaultsReport { schema: "larder/faults/2", first, seeds, protocols: Vec::new() };
    for protocol in protocols {
        let survived = run_worlds(args, protocol, first..end);
        let survived =
            survived.with_context(|| format!("{}: an invariant does not hold", protocol.name()))?;
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
    found.ok_or_else(|| {
        format!("unknown protocol: use one of {}", Protocol::ALL.map(Protocol::name).join(", "))
    })
}

fn parse_rule(name: &str) -> Result<BrokenRule, String> {
    let names = BrokenRule::ALL.map(BrokenRule::name).join(", ");
    BrokenRule::ALL
        .into_iter()
        .find(|broken| broken.name() == name)
        .ok_or(format!("unknown rule: use one of {names}"))
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
                "failed once    aborted within the reply {}, lost with their node {}",
                s.aborted, s.cut
            )?;
            writeln!(out, "messages       {} received, {} lost", s.heard, s.lost)?;
            writeln!(
                out,
                "faults         {} crashes, {} pauses, {} partitions",
                s.crashes, s.pauses, s.partitions
            )?;
            writeln!(out, "views exact    {} ms after the last fault at most", s.converged_ms)?;
        }
        writeln!(out, "all invariants held in every world")?;
    }
    out.flush()?;
    Ok(())
}
