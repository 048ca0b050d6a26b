//! The rows as a table of text and as a page of Markdown.

use std::fmt::Write as _;

use larder_core::Bytes;

use super::{Churn, ChurnRow};
use crate::text::{cluster, counted};

/// The headings of the first nine columns.
const HEAD: [&str; 9] =
    ["policy", "event", "moved", "anyway", "while gone", "hits before", "lowest", "after", "hits lost"];

/// The heading of the last column.
const SETTLED: &str = "settled after";

/// Formats a table with a heading and aligned columns.
pub fn table(churn: &Churn) -> String {
    let mut rows: Vec<Vec<String>> =
        vec![HEAD.iter().chain([&SETTLED]).map(|&name| name.to_owned()).collect()];
    rows.extend(churn.rows.iter().map(cells));
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..=HEAD.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        text += cells.collect::<Vec<_>>().join("  ").trim_end();
        text.push('\n');
    }
    for line in describe_run(churn) {
        text += "\n";
        text += &line;
    }
    text.push('\n');
    text
}

/// Formats a page that names the command that made it.
pub fn markdown(churn: &Churn, command: &str) -> String {
    let mut text = format!(
        "# Keys moved and hits lost when nodes come and go\n\nSimulated; made by\n\n```sh\n{command}\n```\n\n"
    );
    for line in describe_run(churn) {
        text += &line;
        text += "\n";
    }
    let head: Vec<&str> = HEAD.into_iter().chain([SETTLED]).collect();
    // Writing to a string does not fail.
    let _ = writeln!(text, "\n| {} |\n|{}", head.join(" | "), "---|".repeat(head.len()));
    for row in &churn.rows {
        let _ = writeln!(text, "| {} |", cells(row).join(" | "));
    }
    text
}

fn cells(row: &ChurnRow) -> Vec<String> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    vec![
        row.policy.clone(),
        row.event.name().to_owned(),
        percent(row.moved),
        percent(row.moved_anyway),
        row.moved_meanwhile.map_or_else(|| "-".to_owned(), percent),
        percent(row.hit_before),
        percent(row.hit_lowest),
        format!("{} ({})", percent(row.hit_after), percent(row.hit_anyway)),
        row.hits_lost.to_string(),
        row.settled_after.map_or_else(|| "not yet".to_owned(), |requests| requests.to_string()),
    ]
}

fn describe_run(churn: &Churn) -> Vec<String> {
    vec![
        format!(
            "{}: {} to {} of {}. {} ({}), cost model {}, {} outstanding. Nodes \
             report every {} s; ward and part get a new table every {} s of simulated time.",
            churn.workload,
            counted(churn.requests, "request"),
            counted(churn.targets, "target"),
            Bytes(churn.working_set_bytes),
            cluster(churn.nodes, Bytes(churn.memory_bytes)),
            churn.cache,
            churn.costs,
            counted(churn.clients, "request"),
            churn.report_every_s,
            churn.refresh_every_s
        ),
        "The event happens after half the requests; a node that flaps or restarts is back after 2 % more, with its memory \
         (flap) or without (restart)."
            .to_owned(),
        "moved: targets whose next request after the event (after the return) went to another node than their last one \
         before; anyway: the same where nothing happens; while gone: the same up to the return."
            .to_owned(),
        "hits: share of requests found in memory; lowest: of a window of 2 % of the requests; after: at the end of the run, \
         in brackets where nothing happens. hits lost: against the run where nothing happens. settled after: requests \
         until the loss stays within a point of what it is at the end."
            .to_owned(),
    ]
}
