//! Results of `larder demo` as text: the table and the method.

use std::io::{self, Write};

use larder_core::Bytes;

use super::result::{DemoReport, PolicyReport, TraceInfo};
use crate::report::{counted, number};

/// The columns.
pub(crate) const HEAD: [&str; 9] =
    ["policy", "requests/s", "vs wrr", "hit ratio", "p50 ms", "p99 ms", "imbalance", "idle", "errors"];

/// Returns the row of a policy, in the order of [`HEAD`].
pub(crate) fn cells(policy: &PolicyReport) -> [String; 9] {
    let figures = &policy.median;
    [
        policy.policy.clone(),
        number(figures.requests_per_s.round()),
        policy.ratio_to_wrr.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        format!("{:.1} %", figures.hit_ratio * 100.0),
        number(figures.latency_ms_p50),
        number(figures.latency_ms_p99),
        format!("{:.2}", figures.load_imbalance),
        format!("{:.1} %", figures.idle_fraction * 100.0),
        figures.errors.to_string(),
    ]
}

/// Writes the table and the method.
pub(crate) fn write(report: &DemoReport, out: &mut impl Write) -> io::Result<()> {
    let rows: Vec<[String; 9]> = report.policies.iter().map(cells).collect();
    let width = |column: usize| {
        let cells = rows.iter().map(|row| row[column].chars().count());
        cells.fold(HEAD[column].chars().count(), usize::max)
    };
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    let head = HEAD.map(str::to_owned);
    for (i, row) in std::iter::once(&head).chain(&rows).enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        if i == 0 {
            let total = widths.iter().sum::<usize>() + 2 * (widths.len() - 1);
            writeln!(out, "{}", "-".repeat(total))?;
        }
    }
    writeln!(out)?;
    let method = method(report);
    let widest = method.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    for (what, how) in &method {
        writeln!(out, "{what:<widest$}  {how}")?;
    }
    Ok(())
}

/// Returns the rows on the method: pairs of a label and a text.
pub(crate) fn method(report: &DemoReport) -> Vec<(&'static str, String)> {
    let cluster = &report.cluster;
    let load = format!(
        "closed loop, {}; T_low {}, T_high {}, K {} s (20 s of the paper, divided by the speed of the nodes)",
        counted(cluster.clients, "client"),
        cluster.t_low,
        cluster.t_high,
        number(cluster.replication_decay_s)
    );
    let members = format!(
        "{}, each a process with {} of cache ({}), behind one switch, all on this machine",
        counted(cluster.nodes, "node"),
        Bytes(cluster.cache_bytes).exact(),
        cluster.cache_kind
    );
    let imbalance = "largest time-averaged node load over the mean of all nodes; 1.00 is even; sampled while every client has work";
    let idle = format!(
        "share of time in which a node has fewer than {} active requests (40 % of T_low), mean over nodes",
        cluster.idle_below
    );
    let interleaved = match cluster.runs {
        1 => "",
        _ => ", interleaved; results of the run with the median throughput",
    };
    let runs = format!(
        "{} of each policy{interleaved}; every run starts a new cluster with cold caches",
        cluster.runs
    );
    let chance = format!("targets are hashed with {}, seed {}", cluster.hash_function, cluster.seed);
    let [trace, measured, cold] = describe_trace(&report.trace);
    vec![
        ("trace", trace),
        ("measured", measured),
        ("cold misses", cold),
        ("cluster", members),
        ("model", format!("modelled, not real: {}", cluster.node_model)),
        ("load", load),
        ("imbalance", imbalance.to_owned()),
        ("idle", idle),
        ("chance", chance),
        ("processors", describe_processors(report)),
        ("runs", runs),
    ]
}

/// Describes the demo's use of the processors, so that a limit of the machine is not taken for one of a
/// policy.
fn describe_processors(report: &DemoReport) -> String {
    let own = report.policies.iter().filter_map(|policy| policy.median.cpu_own);
    match own.reduce(f64::max) {
        Some(most) => {
            format!("clients, switch and nodes together used at most {:.0} % of all cores", most * 100.0)
        }
        None => "the use of the processors could not be read".to_owned(),
    }
}

/// Describes the trace, its measured part, and the requests on which no policy can hit.
fn describe_trace(trace: &TraceInfo) -> [String; 3] {
    let described = format!(
        "{}: {} requests to {} targets, {} working set, {} mean reply, hottest target {:.1} %",
        trace.source,
        number(trace.requests as f64),
        number(trace.targets as f64),
        Bytes(trace.working_set_bytes),
        Bytes(trace.reply_bytes_mean as u64),
        trace.hottest_share * 100.0
    );
    let measured = trace.requests - trace.warmup_requests;
    let counted = format!(
        "the last {} requests, to the last byte of the last one; the first {} warm the caches",
        number(measured as f64),
        number(trace.warmup_requests as f64)
    );
    let cold = format!(
        "{} of the measured requests ({:.1} %) are the first for their target, so no policy can hit",
        number(trace.cold_misses as f64),
        100.0 * trace.cold_misses as f64 / measured.max(1) as f64
    );
    [described, counted, cold]
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::sample;
    use super::*;

    #[test]
    fn columns_line_up_and_the_model_is_named() {
        let mut out = Vec::new();
        write(&sample(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].find("requests/s").map(|at| at + 10), lines[3].find("1,000").map(|at| at + 5));
        assert!(text.contains("modelled, not real"), "{text}");
        assert!(text.contains("XXH3-64"), "{text}");
        assert!(text.contains("2.00x"), "{text}");
    }
}
