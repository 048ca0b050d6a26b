//! Comparisons and calibrations as text tables and as Markdown for the documentation.

use std::io::{self, Write};

use larder_core::Bytes;

use super::calibration::{Calibration, FittedCost, SizeCost};
use super::comparison::{CPU_MAX, Comparison, HIT_POINTS_MAX, RATE_ERROR_MAX};
use larder::report::{counted, number};

/// Columns of the comparison table.
const HEAD: [&str; 15] = [
    "trace",
    "nodes",
    "policy",
    "speed",
    "hits live",
    "sim",
    "points",
    "req/s live",
    "sim",
    "error",
    "p50 ms live",
    "sim",
    "p99 ms live",
    "sim",
    "CPU",
];

/// Name of the last column.
const VERDICT: &str = "verdict";

fn cells(row: &Comparison) -> Vec<String> {
    let percent = |value: f64| format!("{:.2} %", value * 100.0);
    let (live, simulated) = (&row.live, &row.simulated);
    vec![
        row.trace.clone(),
        row.nodes.to_string(),
        row.policy.clone(),
        number(row.speed),
        percent(live.hit_ratio),
        percent(simulated.hit_ratio),
        format!("{:+.2}", row.hit_points),
        number(live.requests_per_s.round()),
        number(simulated.requests_per_s.round()),
        format!("{:+.1} %", row.rate_error * 100.0),
        number(live.latency_ms_p50),
        number(simulated.latency_ms_p50),
        number(live.latency_ms_p99),
        number(simulated.latency_ms_p99),
        live.cpu_busy.map_or_else(|| "?".to_owned(), |busy| format!("{:.0} %", busy * 100.0)),
        verdict(row).to_owned(),
    ]
}

fn verdict(row: &Comparison) -> &'static str {
    match (row.invalid.is_empty(), row.holds) {
        (false, _) => "invalid",
        (true, true) => "holds",
        (true, false) => "off",
    }
}

/// Numbers of rows that hold, are off, and are invalid.
pub(crate) fn verdict_counts(rows: &[Comparison]) -> [usize; 3] {
    ["holds", "off", "invalid"].map(|word| rows.iter().filter(|row| verdict(row) == word).count())
}

fn summary(rows: &[Comparison]) -> String {
    let [holds, off, invalid] = verdict_counts(rows);
    format!(
        "{} rows: {holds} hold (hit ratio within {HIT_POINTS_MAX} points, throughput within {:.0} %), {off} are off, \
         {invalid} are invalid (processors {:.0} % busy or more, failed requests, doubts of the load generator)",
        rows.len(),
        RATE_ERROR_MAX * 100.0,
        CPU_MAX * 100.0
    )
}

/// Writes a table with the first column left-aligned and the others right-aligned.
fn write_table(head: &[&str], rows: &[Vec<String>], out: &mut impl Write) -> io::Result<()> {
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    let all: Vec<&Vec<String>> = std::iter::once(&head).chain(rows).collect();
    let width = |column: usize| all.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..head.len()).map(width).collect();
    for (at, row) in all.iter().enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| match column {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        if at == 0 {
            writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)))?;
        }
    }
    Ok(())
}

/// Writes the comparisons as a text table.
pub(crate) fn write_rows(rows: &[Comparison], out: &mut impl Write) -> io::Result<()> {
    let head: Vec<&str> = HEAD.into_iter().chain([VERDICT]).collect();
    write_table(&head, &rows.iter().map(cells).collect::<Vec<_>>(), out)?;
    writeln!(out)?;
    for row in rows.iter().filter(|row| !row.invalid.is_empty()) {
        writeln!(
            out,
            "invalid: {}, {}, {}: {}",
            row.trace,
            counted(row.nodes, "node"),
            row.policy,
            row.invalid.join("; ")
        )?;
    }
    writeln!(out, "{}", summary(rows))
}

/// Formats the comparisons as a page of the documentation.
pub(crate) fn markdown(rows: &[Comparison], command: &str) -> String {
    let mut text = String::from(
        "# Live against simulated\n\nThe same requests through a live cluster on loopback (switch and nodes as processes, \
         a modelled store, as `larder demo` runs them) and through the simulator with the cost model `modelled`. Same \
         order, clients, cache, thresholds and seed; processor costs measured on the machine just before. The last two \
         thirds of the requests count. How it is done, and what the model leaves out: \
         [laboratory](../understand/laboratory.md#live-against-simulated).\n\n",
    );
    text.push_str(&format!("Made by `{command}`.\n\n"));
    let head: Vec<&str> = HEAD.into_iter().chain([VERDICT]).collect();
    text.push_str(&format!("| {} |\n", head.join(" | ")));
    text.push_str(&format!("|---|---:|---|{}---|\n", "---:|".repeat(head.len() - 4)));
    for row in rows {
        text.push_str(&format!("| {} |\n", cells(row).join(" | ")));
    }
    text.push_str(&format!("\n{}.\n", summary(rows)));
    for row in rows.iter().filter(|row| !row.invalid.is_empty()) {
        let (trace, nodes, policy) = (&row.trace, counted(row.nodes, "node"), &row.policy);
        text.push_str(&format!("\nInvalid: {trace}, {nodes}, {policy}: {}.\n", row.invalid.join("; ")));
    }
    let settings = rows.iter().map(|row| {
        format!(
            "{}, {}: {} of memory each, {}",
            row.trace,
            counted(row.nodes, "node"),
            Bytes(row.cache_bytes),
            counted(row.clients, "client")
        )
    });
    let mut settings: Vec<String> = settings.collect();
    settings.dedup();
    text.push_str(&format!("\n{}.\n", settings.join("; ")));
    text
}

/// Writes a calibration as a text table.
pub(crate) fn write_calibration(calibration: &Calibration, out: &mut impl Write) -> io::Result<()> {
    let head = ["reply", "requests", "node us", "fit", "switch us", "fit", "client us", "fit"];
    let row = |point: &SizeCost| {
        let kib = point.bytes as f64 / 1_024.0;
        let pair = |us: f64, fitted: &FittedCost| {
            let fit = fitted.cost.request_us + fitted.cost.kib_us * kib;
            [format!("{us:.1}"), format!("{:+.1} %", (fit / us - 1.0) * 100.0)]
        };
        let mut cells = vec![Bytes(point.bytes).to_string(), number(point.requests as f64)];
        cells.extend(pair(point.node_us, &calibration.node));
        cells.extend(pair(point.switch_us, &calibration.switch));
        cells.extend(pair(point.client_us, &calibration.client));
        cells
    };
    write_table(&head, &calibration.points.iter().map(row).collect::<Vec<_>>(), out)?;
    writeln!(out)?;
    let fitted = [("node", calibration.node), ("switch", calibration.switch), ("client", calibration.client)];
    for (name, FittedCost { cost, residual_max }) in fitted {
        writeln!(
            out,
            "{name:<7} {:>7.1} us a request + {:.3} us a KiB; {:.0} % off at worst",
            cost.request_us,
            cost.kib_us,
            residual_max * 100.0
        )?;
    }
    writeln!(out, "timers  {:>7.0} us late on average", calibration.timer_late_us)?;
    if let Some(others) = calibration.others {
        writeln!(out, "other programs used {:.0} % of the {} cores", others * 100.0, calibration.cores)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::comparison::RunFigures;
    use super::*;

    fn row(policy: &str, hit_points: f64, invalid: &[&str]) -> Comparison {
        let side = |hit_ratio| RunFigures {
            hit_ratio,
            requests_per_s: 1_000.0,
            latency_ms_p50: 12.5,
            latency_ms_p99: 480.0,
            cpu_busy: Some(0.4),
        };
        Comparison {
            trace: "a.log".into(),
            nodes: 4,
            policy: policy.into(),
            cache_bytes: 16_000_000,
            clients: 219,
            speed: 8.5,
            requests: 20_000,
            seconds: 15.0,
            live: side(0.8),
            simulated: side(0.8 + hit_points / 100.0),
            disk_busy: 0.9,
            hit_points,
            rate_error: 0.0,
            invalid: invalid.iter().map(|reason| (*reason).to_owned()).collect(),
            holds: hit_points.abs() <= HIT_POINTS_MAX,
        }
    }

    #[test]
    fn every_row_has_a_verdict_and_a_reason() {
        let rows = [
            row("wrr", 0.3, &[]),
            row("hash", -1.7, &[]),
            row("lard-r", 0.1, &["the processors were 80 % busy"]),
        ];
        assert_eq!(verdict_counts(&rows), [1, 1, 1]);
        let mut out = Vec::new();
        write_rows(&rows, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("invalid: a.log, 4 nodes, lard-r: the processors were 80 % busy"), "{text}");
        assert!(
            text.contains("3 rows: 1 hold (hit ratio within 1.5 points, throughput within 15 %), 1 are off"),
            "{text}"
        );
        let published = markdown(&rows, "larder-lab validate");
        let table: Vec<&str> = published.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(table.len(), 5);
        assert!(table.iter().all(|line| line.matches('|').count() == table[0].matches('|').count()));
        assert!(table[3].contains("| -1.70 |") && table[3].ends_with("| off |"), "{published}");
    }
}
