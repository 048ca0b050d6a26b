//! Results of `larder demo --prompts` as text.

use std::io::{self, Write};

use super::result::{PolicyOutcome, PromptsReport};
use crate::report::counted;

const HEAD: [&str; 10] = [
    "policy",
    "hits",
    "TTFT mean",
    "p50",
    "p99",
    "requests/s",
    "unfinished",
    "errors",
    "sim hits",
    "sim TTFT",
];

fn cells(row: &PolicyOutcome) -> [String; 10] {
    let (percent, seconds) =
        (|share: f64| format!("{:.1} %", share * 100.0), |s: f64| format!("{:.0} ms", s * 1e3));
    [
        row.policy.to_owned(),
        percent(row.hit_ratio),
        seconds(row.first_token_s_mean),
        seconds(row.first_token_s_p50),
        seconds(row.first_token_s_p99),
        format!("{:.1}", row.requests_per_s),
        row.unfinished.to_string(),
        row.errors.to_string(),
        percent(row.simulated_hit_ratio),
        seconds(row.simulated_first_token_s_mean),
    ]
}

/// Writes the table and what it means.
pub(crate) fn write(report: &PromptsReport, out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<[String; 10]> = report.policies.iter().map(cells).collect();
    let head = HEAD.map(str::to_owned);
    let all = || std::iter::once(&head).chain(&rows);
    for row in all() {
        let mut line = String::new();
        for (column, cell) in row.iter().enumerate() {
            let width = all().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let padding = " ".repeat(width - cell.chars().count());
            line += &if column == 0 { format!("{cell}{padding}") } else { format!("  {padding}{cell}") };
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out)?;
    writeln!(
        out,
        "load     {} of agents in {} s for each policy; {:.1} % of their tokens could be reused",
        counted(report.requests as u64, "request"),
        report.seconds,
        report.reuse_unlimited * 100.0
    )?;
    writeln!(
        out,
        "cluster  {}, each a model of {} in real time, behind one switch on this machine",
        counted(report.nodes, "server"),
        report.engine
    )?;
    writeln!(out, "hits     share of the prompts' tokens that a server had; TTFT: time to the first token")?;
    writeln!(out, "sim      the simulation of the same requests, to their end")?;
    for row in report.policies.iter().filter(|row| row.errors > 0) {
        writeln!(out, "{}: first error: {}", row.policy, row.error.as_deref().unwrap_or("unknown"))?;
    }
    Ok(())
}
