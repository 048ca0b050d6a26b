//! Tables of the plan, for the terminal and for the page.

use std::io::{self, Write};

use larder_core::Bytes;
use larder_sim::plan::{Cell, Estimate, LoadDelays, Plan, Recommendation};
use larder_sim::text::per_s;

use crate::report::{counted, number};

/// Largest number of node counts in one table, so that it fits a terminal and a page.
const COUNTS_MAX: usize = 8;
/// Mark before recommended rows and cells.
const MARK: &str = "> ";

/// A table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grid {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<GridRow>,
}

/// A row of a table: the policy's name and its values.
#[derive(Clone, Debug)]
pub(crate) struct GridRow {
    pub(crate) name: String,
    /// Whether the row is recommended.
    pub(crate) recommended: bool,
    pub(crate) values: Vec<GridValue>,
}

/// Text of a table cell.
#[derive(Clone, Debug, Default)]
pub(crate) struct GridValue {
    pub(crate) first: String,
    /// The second value; empty if there is only one.
    pub(crate) second: String,
    pub(crate) recommended: bool,
}

impl From<String> for GridValue {
    fn from(first: String) -> Self {
        Self { first, ..Self::default() }
    }
}

/// Builds tables of policies by number of nodes, for the recommended or the largest memory.
pub(crate) fn grids(plan: &Plan) -> Vec<Grid> {
    let mut counts: Vec<u16> = plan.cells.iter().map(|cell| cell.nodes).collect();
    counts.sort_unstable();
    counts.dedup();
    counts.chunks(COUNTS_MAX).map(|counts| grid(plan, counts)).collect()
}

fn grid(plan: &Plan, counts: &[u16]) -> Grid {
    let it = plan.recommendation.as_ref();
    let largest = plan.cells.iter().map(|cell| cell.memory_bytes).max().unwrap_or(0);
    let memory = it.map_or(largest, |it| it.memory_bytes);
    let head = format!("requests/s, no read with {}", Bytes(memory).exact());
    let head = std::iter::once(head).chain(counts.iter().map(|count| counted(*count, "node"))).collect();
    let value = |speed: f64, hits: f64| GridValue {
        first: per_s(speed),
        second: format!("{:.1} %", hits * 100.0),
        recommended: false,
    };
    let row = |name: String, values: Vec<GridValue>| GridRow { name, recommended: false, values };
    let mut policies: Vec<&str> = Vec::new();
    for cell in &plan.cells {
        if !policies.contains(&cell.policy.as_str()) {
            policies.push(&cell.policy);
        }
    }
    let of_policy = |policy: &str| {
        let at = |count: &u16| {
            let recommended = it.is_some_and(|it| it.policy == policy && it.nodes == *count);
            let cell = plan.cell(policy, *count, memory);
            cell.map_or_else(GridValue::default, |cell| GridValue {
                recommended,
                ..value(cell.throughput.value, cell.hit_ratio.value)
            })
        };
        row(policy.to_owned(), counts.iter().map(at).collect())
    };
    let mut rows: Vec<GridRow> = policies.into_iter().map(of_policy).collect();
    let bound = |count: &u16| {
        let bound = plan.bound(*count, memory);
        bound.map_or_else(GridValue::default, |bound| value(bound.throughput, bound.hit_ratio))
    };
    rows.push(row("(upper bound)".to_owned(), counts.iter().map(bound).collect()));
    Grid { head, rows }
}

/// Builds the table of all policies on the recommended cluster.
pub(crate) fn cluster(plan: &Plan, it: &Recommendation) -> Grid {
    let mut head = vec![
        "policy",
        "requests/s",
        "+-",
        "vs rr",
        "of bound",
        "no read",
        "+-",
        "origin/request",
        "imbalance",
        "cpu",
    ];
    head.extend(["p50 ms", "p99 ms", "refused"]);
    let base = plan.cell("rr", it.nodes, it.memory_bytes).map(|cell| cell.throughput.value);
    let bound = plan.bound(it.nodes, it.memory_bytes).map(|bound| bound.throughput);
    let same = |cell: &&Cell| (cell.nodes, cell.memory_bytes) == (it.nodes, it.memory_bytes);
    let row = |cell: &Cell| GridRow {
        name: cell.policy.clone(),
        recommended: cell.policy == it.policy,
        values: values(cell, base, bound).into_iter().map(GridValue::from).collect(),
    };
    Grid {
        head: head.into_iter().map(str::to_owned).collect(),
        rows: plan.cells.iter().filter(same).map(row).collect(),
    }
}

fn values(cell: &Cell, base: Option<f64>, bound: Option<f64>) -> Vec<String> {
    let error = |estimate: Estimate, scale: f64, unit: &str| match estimate.error {
        0.0 => "0".to_owned(),
        error => format!("{}{unit}", figure(error * scale, unit)),
    };
    let over = |other: Option<f64>, text: fn(f64) -> String| {
        let ratio = other.map(|other| cell.throughput.value / other.max(f64::MIN_POSITIVE));
        ratio.map_or_else(|| "-".to_owned(), text)
    };
    let at = |of: fn(&LoadDelays) -> String| cell.at_load.as_ref().map_or_else(|| "-".to_owned(), of);
    vec![
        per_s(cell.throughput.value),
        error(cell.throughput, 1.0, ""),
        over(base, |ratio| format!("{ratio:.2}x")),
        over(bound, |ratio| format!("{:.1} %", ratio * 100.0)),
        format!("{:.1} %", cell.hit_ratio.value * 100.0),
        error(cell.hit_ratio, 100.0, " %"),
        Bytes(cell.origin_bytes.value as u64).to_string(),
        format!("{:.2}", cell.imbalance.value),
        format!("{:.0} %", cell.cpu_busy * 100.0),
        at(|at| number(at.p50_s.value * 1e3)),
        at(|at| number(at.p99_s.value * 1e3)),
        at(|at| format!("{:.1} %", at.refused_share * 100.0)),
    ]
}

/// Writes a table as aligned columns.
pub(super) fn write(grid: &Grid, out: &mut impl Write) -> io::Result<()> {
    let text = |value: &GridValue| {
        let mark = if value.recommended { MARK } else { "" };
        if value.second.is_empty() {
            format!("{mark}{}", value.first)
        } else {
            format!("{mark}{} {:>7}", value.first, value.second)
        }
    };
    let line = |row: &GridRow| -> Vec<String> {
        let name = format!("{}{}", if row.recommended { MARK } else { "" }, row.name);
        std::iter::once(name).chain(row.values.iter().map(text)).collect()
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(grid.head.clone()).chain(grid.rows.iter().map(line)).collect();
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..grid.head.len()).map(width).collect();
    for (at, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        if at == 0 {
            writeln!(
                out,
                "{}",
                "-".repeat(widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1))
            )?;
        }
    }
    Ok(())
}

/// Formats a value with the number of digits that fits its unit.
pub(super) fn figure(value: f64, unit: &str) -> String {
    if unit == " %" { format!("{value:.1}") } else { number(value) }
}
