//! Results of `larder demo --peers` as text.

use std::io::{self, Write};

use larder_core::Bytes;

use super::published::TABLE_3;
use super::result::{PeersClusterInfo, PeersFigures, PeersReport, Prediction, SweepPoint, SystemReport};
use crate::report::{counted, number};

/// Describes the initial state of memories.
const fn describe_start(warm: bool) -> &'static str {
    if warm {
        "independent nodes start with the cache contents after the trace, and so do nodes of PRESS if they stay independent with them; all others \
         start with cold caches"
    } else {
        "every run starts with cold caches"
    }
}

/// A table: a title, and rows of which the first is the header.
pub(crate) struct Table {
    pub(crate) title: String,
    pub(crate) rows: Vec<Vec<String>>,
}

/// Returns all tables of a report.
pub(crate) fn tables(report: &PeersReport) -> Vec<Table> {
    let mut tables = vec![served_table(report), comparison_table(report)];
    let models: Vec<(&SweepPoint, &Prediction)> =
        report.points.iter().filter_map(|point| Some((point, point.model.as_ref()?))).collect();
    if !models.is_empty() {
        tables.push(model_table(report, &models));
    }
    tables
}

/// Number of left-aligned columns: setting and system.
const TEXT_COLUMNS: usize = 2;

/// Writes the tables, the notes and the method.
pub(crate) fn write(report: &PeersReport, out: &mut impl Write) -> io::Result<()> {
    for table in tables(report) {
        writeln!(out, "{}\n", table.title)?;
        let columns = table.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = table.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for (index, row) in table.rows.iter().enumerate() {
            let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
                if column < TEXT_COLUMNS { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            });
            writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
            if index == 0 {
                writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (columns - 1)))?;
            }
        }
        writeln!(out)?;
    }
    for note in &report.notes {
        writeln!(out, "- {note}.")?;
    }
    writeln!(out)?;
    let method = method(report);
    let widest = method.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    for (what, how) in &method {
        writeln!(out, "{what:<widest$}  {how}")?;
    }
    Ok(())
}

fn head<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

/// Formats a share in percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Returns the label of a setting. A demo without a sweep has only one.
fn setting(report: &PeersReport, point: &SweepPoint) -> String {
    match report.sweep {
        None => Bytes(point.memory_bytes).to_string(),
        Some(_) => report.setting(point),
    }
}

fn served_table(report: &PeersReport) -> Table {
    let mut rows = vec![head([
        "setting",
        "system",
        "requests/s",
        "vs trad",
        "p50 ms",
        "p99 ms",
        "imbalance",
        "nodes us",
        "switch us",
        "clients us",
        "disks busy",
        "cpu busy",
        "errors",
    ])];
    for (point, system) in systems(report) {
        let figures = &system.median;
        rows.push(vec![
            setting(report, point),
            system.system.clone(),
            number(figures.requests_per_s.round()),
            system.over_trad.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
            number(figures.latency_ms_p50),
            number(figures.latency_ms_p99),
            format!("{:.2}", figures.imbalance),
            number(figures.cpu_us_nodes),
            number(figures.cpu_us_switch),
            number(figures.cpu_us_clients),
            percent(figures.disk_busy),
            figures.cpu_busy.map_or_else(|| "-".to_owned(), percent),
            figures.errors.to_string(),
        ]);
    }
    Table { title: "Requests served, and CPU time per request".to_owned(), rows }
}

/// Builds the comparison with table 3 of the paper.
fn comparison_table(report: &PeersReport) -> Table {
    let mut rows = vec![head([
        "setting",
        "system",
        "LHR",
        "THR",
        "forwarded",
        "load",
        "caching",
        "messages",
        "taking part",
        "over trad",
    ])];
    for (point, system) in systems(report) {
        let mut row = vec![setting(report, point), system.system.clone()];
        row.extend(shares(&system.median, report.cluster.nodes));
        row.push(match system.over_trad {
            Some(ratio) if system.system != "trad" => format!("{:+.0} %", (ratio - 1.0) * 100.0),
            _ => "-".to_owned(),
        });
        rows.push(row);
    }
    for row in TABLE_3 {
        let percents = |shares: [f64; 5]| shares.map(|share| format!("{share:.1} %"));
        let [local, total, forwarded, load, cache] =
            percents([row.local, row.total, row.forwarded, row.load, row.cache]);
        let trad = format!("{:.1} %", row.trad);
        let none = || "-".to_owned();
        rows.push(
            [format!("paper, {}", row.trace), "trad".to_owned(), trad.clone(), trad]
                .into_iter()
                .chain(std::iter::repeat_with(none).take(6))
                .collect(),
        );
        rows.push(vec![
            format!("paper, {}", row.trace),
            "press".to_owned(),
            local,
            total,
            forwarded,
            load,
            cache,
            none(),
            none(),
            format!("{:+.0} %", row.gain),
        ]);
    }
    Table {
        title: "Places where requests were served, and messages of nodes, with table 3 of the PRESS paper (8 nodes of 1999). LHR: hit ratio of \
                requests served by the node that received them; THR: hit ratio of all requests; load and caching: broadcasts per request; messages: \
                these and all others per request, counted per receiver"
            .to_owned(),
        rows,
    }
}

fn shares(figures: &PeersFigures, nodes: usize) -> Vec<String> {
    let mut row = vec![percent(figures.hit_ratio_local), percent(figures.hit_ratio)];
    match &figures.peers {
        Some(peers) => row.extend([
            percent(figures.forwarded),
            percent(peers.load_broadcasts),
            percent(peers.cache_broadcasts),
            format!("{:.2}", peers.messages),
            format!("{} of {nodes}", peers.sharing),
        ]),
        None => row.extend(std::iter::repeat_with(|| "-".to_owned()).take(5)),
    }
    row
}

fn model_table(report: &PeersReport, models: &[(&SweepPoint, &Prediction)]) -> Table {
    let mut rows = vec![head([
        "setting",
        "system",
        "shares",
        "reads",
        "ms each",
        "forwarded",
        "model",
        "processors",
        "binds",
        "measured",
        "error",
    ])];
    for (point, model) in models {
        for row in &model.rows {
            rows.push(vec![
                setting(report, point),
                row.system.clone(),
                row.shares.to_owned(),
                percent(row.reads),
                number(row.read_ms),
                percent(row.forwarded),
                number(row.requests_per_s.round()),
                format!("{:.2}", row.processors),
                row.binds.to_owned(),
                number(row.measured.round()),
                format!("{:+.0} %", row.error * 100.0),
            ]);
        }
    }
    Table {
        title: "Analytic model of PRESS with the measured costs of requests and reads, in requests/s (in the paper, its error is 9 % on average for PRESS \
                and up to 38 % for trad)"
            .to_owned(),
        rows,
    }
}

fn systems(report: &PeersReport) -> impl Iterator<Item = (&SweepPoint, &SystemReport)> {
    report.points.iter().flat_map(|point| point.systems.iter().map(move |system| (point, system)))
}

/// Describes the measured part.
fn describe_measured(cluster: &PeersClusterInfo) -> String {
    match (cluster.warm, cluster.seconds) {
        (true, seconds) => {
            let seconds = seconds.map_or_else(String::new, |seconds| format!(" for {seconds} s"));
            format!("the trace repeatedly{seconds}; each time, requests go to other nodes")
        }
        (false, Some(seconds)) => format!("for {seconds} s, or to the end of the trace"),
        (false, None) => "to the end of the trace".to_owned(),
    }
}

/// Returns the rows on the method: pairs of a label and a text.
pub(crate) fn method(report: &PeersReport) -> Vec<(&'static str, String)> {
    let (trace, cluster) = (&report.trace, &report.cluster);
    let measured = describe_measured(cluster);
    let mut rows = vec![
        (
            "trace",
            format!(
                "{}: {} requests to {} targets, {} working set, {} mean reply, hottest target {:.1} %",
                trace.source,
                number(trace.requests as f64),
                number(trace.targets as f64),
                Bytes(trace.working_set_bytes),
                Bytes(trace.reply_bytes_mean as u64),
                trace.hottest_share * 100.0
            ),
        ),
        (
            "measured",
            format!(
                "after the first {} requests, which warm the caches, {measured}; requests/s while every client had work; {} of the other requests are \
                 the first for their target, so no system can hit",
                number(trace.warmup_requests as f64),
                number(trace.cold_misses as f64)
            ),
        ),
        (
            "cluster",
            format!(
                "{}, each a process of one thread ({}); no node stores objects of {} and more; {}",
                counted(cluster.nodes, "node"),
                cluster.cache_kind,
                Bytes(cluster.large_min_bytes).exact(),
                describe_start(cluster.warm)
            ),
        ),
        ("model", format!("modelled, not real: {}; processors are real", cluster.node_model)),
        (
            "load",
            format!(
                "closed loop, {}; requests go to the nodes in turn, or all to the switch; T {}, evaluated after {}",
                counted(cluster.clients, "client"),
                cluster.overload,
                counted(cluster.window, "request")
            ),
        ),
        ("processors", format!("{}, shared by nodes, switch and clients", cluster.cores)),
    ];
    if let Some(rates) = &report.rates {
        rows.push((
            "rates",
            format!(
                "with all targets in memory, a request costs {} us at its node and {} us at the clients; forwarding costs the nodes {} us more \
                 ({} requests, mean reply {})",
                number(rates.local_us),
                number(rates.client_us),
                number(rates.forward_us),
                number(rates.requests as f64),
                Bytes(rates.reply_bytes_mean as u64)
            ),
        ));
    }
    let runs = match cluster.runs {
        1 => "1 of each system".to_owned(),
        many => format!("{many} of each system, interleaved; results of the run with the median throughput"),
    };
    rows.push(("runs", format!("{runs}; seed {}", cluster.seed)));
    rows
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::sample;
    use super::*;

    #[test]
    fn the_papers_figures_follow_the_measured_ones() {
        let mut out = Vec::new();
        write(&sample(), &mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        for expected in [
            "1.50x",
            "72.0 %",
            "+50 %",
            "paper, Clarknet",
            "+57 %",
            "-10 %",
            "- a note.",
            "modelled, not real",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
    }
}
