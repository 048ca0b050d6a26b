//! Results of `larder demo --handoff` as text.

use std::io::{self, Write};

use super::packets::PacketTrace;
use super::result::{HandoffReport, HandoffRow};
use crate::report::{counted, number};

const HEAD: [&str; 11] = [
    "mechanism",
    "server",
    "handed off",
    "requests/s",
    "front us",
    "vs relay",
    "all us",
    "p50 ms",
    "p99 ms",
    "hit ratio",
    "errors",
];

/// Number of text columns, which are left-aligned.
const TEXT_COLUMNS: usize = 2;

fn cells(row: &HandoffRow, relay: Option<&HandoffRow>) -> [String; 11] {
    let ratio = relay.filter(|relay| relay.front_us > 0.0).map(|relay| row.front_us / relay.front_us);
    [
        row.setting.clone(),
        row.server.clone(),
        format!("{:.1} %", row.handoff_share() * 100.0),
        number(row.requests_per_s.round()),
        number(row.front_us),
        ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x")),
        number(row.total_us),
        number(row.p50_ms),
        number(row.p99_ms),
        row.hit_ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{:.1} %", ratio * 100.0)),
        row.errors.to_string(),
    ]
}

/// Writes the table, the shares of mechanisms, the captured connections, and the methods.
pub(crate) fn write(report: &HandoffReport, out: &mut impl Write) -> io::Result<()> {
    let relay_of =
        |row: &HandoffRow| report.rows.iter().find(|r| r.setting == "relay" && r.server == row.server);
    let rows: Vec<[String; 11]> = report.rows.iter().map(|row| cells(row, relay_of(row))).collect();
    let head = HEAD.map(str::to_owned);
    let width =
        |column: usize| rows.iter().chain([&head]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEAD.len()).map(width).collect();
    for (index, row) in std::iter::once(&head).chain(&rows).enumerate() {
        let cells = row.iter().zip(&widths).enumerate().map(|(column, (cell, width))| {
            if column < TEXT_COLUMNS { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(out, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
        if index == 0 {
            writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)))?;
        }
    }
    writeln!(out, "\nhow connections were delivered, by mechanism and reason:")?;
    for row in &report.rows {
        let mut shares: Vec<(&String, &f64)> = row.delivered.iter().collect();
        shares.sort_by(|one, other| other.1.total_cmp(one.1));
        let shares = shares.iter().map(|(name, share)| format!("{name} {:.1} %", **share * 100.0));
        let shares = shares.collect::<Vec<_>>().join(", ");
        writeln!(
            out,
            "  {:<w0$}  {:<w1$}  {shares}",
            row.setting,
            row.server,
            w0 = widths[0],
            w1 = widths[1]
        )?;
    }
    for row in traced(report) {
        writeln!(out, "\none connection with {}, as captured on the wire:", row.setting)?;
        write_connection(&row.trace, out)?;
    }
    writeln!(out)?;
    writeln!(out, "workload  {}", report.workload)?;
    writeln!(
        out,
        "cluster   {}, {}, each with one request on a connection of its own; policy lard-r",
        counted(report.nodes, "node"),
        counted(report.clients, "client")
    )?;
    writeln!(out, "counted   {}", report.counted)?;
    for what in &report.left_out {
        writeln!(out, "left out  {what}")?;
    }
    Ok(())
}

/// Returns the rows whose connections are printed: the best mechanism, and relay for comparison.
fn traced(report: &HandoffReport) -> impl Iterator<Item = &HandoffRow> {
    let of = |setting: &str| report.rows.iter().find(|row| row.setting == setting && row.trace.packets > 0);
    of("relay").into_iter().chain(of("cookie").or_else(|| of("repair")))
}

fn write_connection(trace: &PacketTrace, out: &mut impl Write) -> io::Result<()> {
    let widest = |of: fn(&super::packets::PacketLine) -> &str| {
        trace.lines.iter().map(|line| of(line).chars().count()).max().unwrap_or(0)
    };
    let (from, to, what) = (widest(|l| &l.from), widest(|l| &l.to), widest(|l| &l.what));
    for (index, line) in trace.lines.iter().enumerate() {
        if trace.left_out > 0 && index == trace.left_out_after {
            writeln!(out, "          .. {} more", trace.left_out)?;
        }
        let text = format!(
            "  {:>6.0} us  {:<from$} -> {:<to$}  {:<what$}  {}",
            line.us, line.from, line.to, line.what, line.note
        );
        writeln!(out, "{}", text.trim_end())?;
    }
    writeln!(
        out,
        "  {} packets; the switch sent {} bytes, nodes sent {} bytes directly to the client",
        trace.packets, trace.front_bytes, trace.direct_bytes
    )
}

#[cfg(test)]
mod tests {
    use super::super::packets::PacketLine;
    use super::*;

    #[test]
    fn the_table_shows_the_gain_of_handoff() {
        let row = |setting: &str, front_us, delivered: &str| HandoffRow {
            setting: setting.to_owned(),
            server: "larder".to_owned(),
            requests_per_s: 4_000.0,
            front_us,
            front_receive_us: Some(1.0),
            total_us: 200.0,
            p50_ms: 1.0,
            p99_ms: 2.0,
            hit_ratio: Some(0.9),
            delivered: [(delivered.to_owned(), 1.0)].into(),
            errors: 0,
            trace: PacketTrace {
                lines: vec![PacketLine {
                    us: 0.0,
                    from: "client".into(),
                    to: "switch".into(),
                    what: "SYN".into(),
                    note: String::new(),
                }],
                packets: 1,
                ..PacketTrace::default()
            },
        };
        let report = HandoffReport {
            schema: super::super::result::SCHEMA,
            version: "0",
            workload: "a workload".into(),
            nodes: 2,
            clients: 4,
            cache_bytes: 1,
            counted: "so".into(),
            rows: vec![row("relay", 80.0, "relay/configured"), row("cookie", 20.0, "cookie/fast")],
            left_out: vec!["nginx: not installed".into()],
        };
        let mut out = Vec::new();
        write(&report, &mut out).expect("written");
        let text = String::from_utf8(out).expect("text");
        for expected in [
            "0.25x",
            "90.0 %",
            "cookie/fast 100.0 %",
            "client -> switch  SYN",
            "left out  nginx: not installed",
        ] {
            assert!(text.contains(expected), "{expected} in\n{text}");
        }
        assert!((report.rows[1].handoff_share() - 1.0).abs() < 1e-9 && report.rows[0].handoff_share() == 0.0);
    }
}
