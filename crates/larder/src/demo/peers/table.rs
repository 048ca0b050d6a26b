//! Results of `larder demo --peers` as text.

use std::io::{self, Write};

use larder_core::Bytes;

use super::published::TABLE_3;
use super::result::{PeersClusterInfo, PeersFigures, PeersReport, Prediction, SweepPoint, SystemReport};
use crate::report::{counted, number};

/// Describes the initial state of memories.
const fn describe_start(warm: bool) -> &'static str {
    if warm {
        "nodes by themselves start with what the trace leaves in a memory, and PRESS's where that is enough for them to stay by \
         themselves; all others start with cold memories"
    } else {
        "every run starts with cold memories"
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
    Table { title: "What was served, and what a request took of the processors".to_owned(), rows }
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
        title: "Where requests were served and what nodes told one another, beside PRESS's table 3 (8 nodes of 1999): LHR and THR, hits of \
                what the node served that took it and of all; load and caching, broadcasts for each request; messages, those and all others, one for each receiver"
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
        title: "The analytic model of PRESS, fed with what requests and reads take here, in requests/s (the paper's: PRESS within 9 % on \
                average, trad within 38 %)"
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
            format!("the trace again and again{seconds}; each time, requests go to other nodes")
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
                "after the first {} requests, which warm the memories, {measured}; requests/s while every client had work; {} of the \
                 rest of the trace are the first for their target, which nobody can hit on",
                number(trace.warmup_requests as f64),
                number(trace.cold_misses as f64)
            ),
        ),
        (
            "cluster",
            format!(
                "{}, each a process of one thread ({}); {} and more are kept by nobody; {}",
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
                "closed loop, {}; requests go to the nodes in turn, or all to the switch; T {}, judging after {}",
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
                "with all in memory a request takes {} us of its node and {} us of the clients, {} us more of the nodes if forwarded \
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
        many => format!("{many} of each system, interleaved; figures of the run with the median throughput"),
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
