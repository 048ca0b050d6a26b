//! Results as tables, in text and Markdown.

use std::io::{self, Write};

use super::bound::ThroughputAtP99;
use super::overhead::Overhead;
use super::runner::Row;
use larder::report::number;

/// A table: a head and rows with the same number of cells.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    pub(crate) fn new(head: &[&str]) -> Self {
        Self { head: head.iter().map(|cell| (*cell).to_owned()).collect(), rows: Vec::new() }
    }

    /// Writes the table in columns: the first two left-aligned, the others right-aligned.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let width = |column: usize| {
            let cells = self.rows.iter().map(|row| row[column].chars().count());
            cells.fold(self.head[column].chars().count(), usize::max)
        };
        let widths: Vec<usize> = (0..self.head.len()).map(width).collect();
        for (i, row) in std::iter::once(&self.head).chain(&self.rows).enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column < 2 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            if i == 0 {
                writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)))?;
            }
        }
        Ok(())
    }

    /// Formats the table as Markdown.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let rule: Vec<String> =
            (0..self.head.len()).map(|column| if column < 2 { "---" } else { "---:" }.to_owned()).collect();
        let rows: String = self.rows.iter().map(|row| line(row)).collect();
        format!("{}{}{rows}", line(&self.head), line(&rule))
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A table with a row for each run.
pub(crate) fn runs(rows: &[Row]) -> Table {
    let mut table = Table::new(&[
        "workload",
        "policy",
        "clients",
        "requests/s",
        "hits",
        "p50 ms",
        "p99 ms",
        "imbalance",
        "busy least",
        "busy most",
        "errors",
        "machine",
    ]);
    for row in rows {
        let figures = &row.figures;
        let (least, most) = figures.busy_range();
        table.rows.push(vec![
            row.scene.clone(),
            figures.policy.clone(),
            row.clients.to_string(),
            number(figures.requests_per_s),
            figures.hit_ratio.map_or_else(|| "-".to_owned(), percent),
            number(figures.p50_ms),
            number(figures.p99_ms),
            format!("{:.2}", figures.imbalance),
            percent(least),
            percent(most),
            figures.errors.to_string(),
            figures.cpu_busy.map_or_else(|| "?".to_owned(), percent),
        ]);
    }
    table
}

/// The utilisation of each node in each run.
pub(crate) fn nodes(rows: &[Row]) -> Table {
    let mut table =
        Table::new(&["workload", "policy", "clients", "node", "processor", "disk", "least", "greatest"]);
    for row in rows {
        for (at, busy) in row.figures.busy.iter().enumerate() {
            table.rows.push(vec![
                row.scene.clone(),
                row.figures.policy.clone(),
                row.clients.to_string(),
                (at + 1).to_string(),
                percent(busy.cpu),
                percent(busy.disk),
                percent(busy.least),
                percent(busy.greatest),
            ]);
        }
    }
    table
}

/// A figure by policy (rows) and workload (columns).
pub(crate) fn matrix(rows: &[Row], what: &str, of: &dyn Fn(&Row) -> String) -> Table {
    let mut scenes: Vec<&str> = Vec::new();
    let mut policies: Vec<&str> = Vec::new();
    for row in rows {
        if !scenes.contains(&row.scene.as_str()) {
            scenes.push(&row.scene);
        }
        if !policies.contains(&row.figures.policy.as_str()) {
            policies.push(&row.figures.policy);
        }
    }
    let head: Vec<&str> = [what, ""].into_iter().chain(scenes.iter().copied()).collect();
    let mut table = Table::new(&head);
    for policy in policies {
        let cell = |scene: &&str| {
            let found = rows.iter().find(|row| row.scene == **scene && row.figures.policy == policy);
            found.map_or_else(|| "-".to_owned(), of)
        };
        let cells = scenes.iter().map(cell);
        table.rows.push([policy.to_owned(), String::new()].into_iter().chain(cells).collect());
    }
    table
}

/// The gain of policy `of` over the policies `over` in requests per second, for each workload and number of clients.
pub(crate) fn gains(rows: &[Row], of: &str, over: &[&str]) -> Table {
    let mut table = Table::new(&["workload", "over", "clients", "gain", "mean latency"]);
    for row in rows.iter().filter(|row| row.figures.policy == of) {
        for over in over {
            let other = rows.iter().find(|other| {
                other.scene == row.scene && other.clients == row.clients && other.figures.policy == *over
            });
            let Some(other) = other else { continue };
            let change = |own: f64, other: f64| {
                format!("{:+.0} %", (own / other.max(f64::MIN_POSITIVE) - 1.0) * 100.0)
            };
            table.rows.push(vec![
                row.scene.clone(),
                (*over).to_owned(),
                row.clients.to_string(),
                change(row.figures.requests_per_s, other.figures.requests_per_s),
                change(row.figures.mean_ms, other.figures.mean_ms),
            ]);
        }
    }
    table
}

/// The latency that the switch adds, by reply size.
pub(crate) fn overhead(overhead: &Overhead) -> Table {
    let mut table = Table::new(&["reply", "", "direct us", "by the switch us", "added us", "slower"]);
    for point in &overhead.points {
        table.rows.push(vec![
            larder_core::Bytes(point.bytes).to_string(),
            String::new(),
            number(point.direct_us),
            number(point.switch_us),
            number(point.added_us()),
            percent(point.added_us() / point.direct_us),
        ]);
    }
    table
}

/// The throughput at equal p99.
pub(crate) fn bounds(rows: &[ThroughputAtP99]) -> Table {
    let mut table = Table::new(&["workload", "policy", "p99 ms", "requests/s"]);
    for row in rows {
        let rate = row.requests_per_s.map_or_else(|| "never below".to_owned(), |rate| number(rate.round()));
        let more = if row.open { " or more" } else { "" };
        table.rows.push(vec![
            row.scene.clone(),
            row.policy.clone(),
            number(row.p99_ms),
            format!("{rate}{more}"),
        ]);
    }
    table
}
