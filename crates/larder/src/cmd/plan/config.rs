//! A config for the recommended cluster.

use std::fmt::Write as _;

use larder_core::dispatch::Settings;
use larder_core::{Bytes, PolicyKind, ServiceClass};
use larder_sim::text::{cluster, printable};

use crate::config::{Size, Span};
use crate::report::plan::PlanReport;

/// Writes the config; `None` without a recommendation. `static_shares` are the shares of the policy `static`.
pub(super) fn text(
    report: &PlanReport,
    static_shares: [u32; ServiceClass::COUNT],
) -> Result<Option<String>, std::fmt::Error> {
    let Some(it) = &report.plan.recommendation else { return Ok(None) };
    let defaults = Settings::default();
    let (t_low, t_high) = report.plan.method.thresholds;
    let memory = Size(Bytes(it.memory_bytes));
    let mut text = String::new();
    writeln!(
        text,
        "# {} on {}, written by larder plan",
        it.policy,
        cluster(it.nodes, Bytes(it.memory_bytes))
    )?;
    for log in &report.logs {
        writeln!(text, "# {}", printable(&log.name))?;
    }
    writeln!(text, "#\n# Replace the addresses by your own, then run: larder check FILE\n")?;
    writeln!(text, "[switch]\nlisten = \"0.0.0.0:8080\"\npolicy = \"{}\"", it.policy)?;
    writeln!(text, "nodes = [")?;
    for node in 1..=it.nodes {
        writeln!(
            text,
            "  {{ address = \"node{node}.internal:9001\", name = \"node{node}\", cache = \"{memory}\" }},"
        )?;
    }
    writeln!(text, "]")?;
    let targets = report.plan.log.targets as usize;
    if targets > defaults.targets_max {
        writeln!(text, "\n[switch.policies]")?;
        writeln!(text, "# The log has {targets} targets; the limit has room for all.")?;
        writeln!(text, "targets_max = {}", targets.next_power_of_two())?;
    }
    writeln!(text, "\n[switch.policies.lard]\nt_low = {t_low}\nt_high = {t_high}")?;
    writeln!(text, "replication_decay = \"{}\"", Span(defaults.replication_decay))?;
    if it.policy == PolicyKind::Static.name() {
        let shares = ServiceClass::ALL.into_iter().zip(static_shares).filter(|(_, share)| *share > 0);
        let shares: Vec<String> = shares.map(|(class, share)| format!("{class} = {share}")).collect();
        writeln!(text, "\n[switch.policies.static]\nshares = {{ {} }}", shares.join(", "))?;
    }
    writeln!(text, "\n# Each node has its own file, and runs: larder node --config FILE")?;
    writeln!(text, "# [node]\n# listen = \"0.0.0.0:9001\"\n# root = \"/srv/www\"\n# [node.cache]")?;
    writeln!(text, "# kind = \"{}\"\n# size = \"{memory}\"", report.plan.method.cache)?;
    Ok(Some(text))
}
