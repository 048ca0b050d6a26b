//! `larder sim press`: the analytic model of PRESS.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use larder_sim::press::{Network, Press, PressVariant, Solution};

use crate::outcome::usage;
use crate::report::number;

/// Network between the nodes.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum NetworkArg {
    /// User-level communication over a separate network.
    Fast,
    /// Kernel TCP over the network of the clients.
    Slow,
}

/// Interpretation of the model in the paper.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum ReadingArg {
    /// As printed in the paper.
    M0,
    /// The service node also parses forwarded requests.
    M1,
}

/// Solve the analytic model of PRESS: the largest gain of locality and the largest cost of portability.
///
/// The result is the throughput for each number of nodes of three servers: traditional (trad: independent nodes),
/// portable (port: nodes relay replies) and non-portable (non-port: nodes hand off connections). The hit rate of a
/// single node determines the size of the working set. Defaults are those of the paper (Carrera and Bianchini,
/// PPoPP 2001, table 1); KB are 1,024 bytes.
///
/// For example: larder sim press --json
#[derive(Debug, Args)]
pub(crate) struct PressArgs {
    /// Numbers of nodes, 1 to 65534.
    #[arg(long, value_delimiter = ',', value_name = "N,...", default_value = "1,2,4,8,16,32,64,96")]
    nodes: Vec<u32>,
    /// Hit rate of a single node, above 0 and at most 1.
    #[arg(long, default_value_t = Press::default().hit_rate)]
    hit_rate: f64,
    /// Mean file size in KB.
    #[arg(long, default_value_t = Press::default().file_kb)]
    file_kb: f64,
    /// Memory of a node in MB (1,024 KB).
    #[arg(long, default_value_t = Press::default().memory_mb)]
    memory_mb: f64,
    /// Share of the memory with the same files on every node, 0 to 1.
    #[arg(long, default_value_t = Press::default().replicated)]
    replicated: f64,
    /// Zipf exponent of popularity, 0 to 5.
    #[arg(long, default_value_t = Press::default().alpha)]
    alpha: f64,
    /// Network between the nodes.
    #[arg(long, value_enum, default_value = "fast")]
    network: NetworkArg,
    /// Interpretation of the model in the paper.
    #[arg(long, value_enum, default_value = "m1")]
    reading: ReadingArg,
    /// Requests that a processor reads and parses per second.
    #[arg(long, default_value_t = Press::default().parse_per_s)]
    parse_per_s: f64,
    /// Time before the first byte of a reply to a client, in s.
    #[arg(long, default_value_t = Press::default().reply_s)]
    reply_s: f64,
    /// Rate of replies to clients, in KB/s.
    #[arg(long, default_value_t = Press::default().reply_kb_per_s)]
    reply_kb_per_s: f64,
    /// Disk time before the first byte, in s.
    #[arg(long, default_value_t = Press::default().disk_s)]
    disk_s: f64,
    /// Rate of disk reads, in KB/s.
    #[arg(long, default_value_t = Press::default().disk_kb_per_s)]
    disk_kb_per_s: f64,
    /// Requests that a portable server forwards per second. Default: 60000 fast, 7000 slow.
    #[arg(long)]
    forward_per_s: Option<f64>,
    /// Connections that a non-portable server hands off per second. Default: 55000 fast, 6900 slow.
    #[arg(long)]
    handoff_per_s: Option<f64>,
    /// Time before the first byte of a reply between nodes, in s. Default: 0.00001 fast, 0.0001 slow.
    #[arg(long)]
    relay_s: Option<f64>,
    /// Rate of replies between nodes, in KB/s. Default: 80000 fast, 11500 slow.
    #[arg(long)]
    relay_kb_per_s: Option<f64>,
    /// Time of a message at the client interface, in s.
    #[arg(long, default_value_t = Press::default().external_s)]
    external_s: f64,
    /// Rate at the client interface, in KB/s.
    #[arg(long, default_value_t = Press::default().external_kb_per_s)]
    external_kb_per_s: f64,
    /// Time of a message at the interface between nodes of a fast cluster, in s.
    #[arg(long, default_value_t = Press::default().internal_s)]
    internal_s: f64,
    /// Rate at the interface between nodes of a fast cluster, in KB/s.
    #[arg(long, default_value_t = Press::default().internal_kb_per_s)]
    internal_kb_per_s: f64,
    /// Size of a request in KB.
    #[arg(long, default_value_t = Press::default().request_kb)]
    request_kb: f64,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
}

#[derive(serde::Serialize)]
struct SolutionRow {
    parameters: Press,
    #[serde(flatten)]
    solution: Solution,
}

pub(crate) fn run(args: &PressArgs) -> anyhow::Result<()> {
    let solve = |nodes: &u32| {
        let parameters = Press { nodes: *nodes, ..args.press() };
        let solution = parameters.solve().map_err(|error| usage(error.to_string()))?;
        Ok(SolutionRow { parameters, solution })
    };
    let rows = args.nodes.iter().map(solve).collect::<anyhow::Result<Vec<_>>>()?;
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &rows)?;
        writeln!(out)?;
    } else {
        write_table(&rows, &mut out)?;
    }
    Ok(out.flush()?)
}

impl PressArgs {
    /// Returns the parameters for one node; the caller sets the number of nodes.
    fn press(&self) -> Press {
        Press {
            nodes: 1,
            hit_rate: self.hit_rate,
            file_kb: self.file_kb,
            memory_mb: self.memory_mb,
            replicated: self.replicated,
            alpha: self.alpha,
            network: match self.network {
                NetworkArg::Fast => Network::Fast,
                NetworkArg::Slow => Network::Slow,
            },
            reading: match self.reading {
                ReadingArg::M0 => PressVariant::M0,
                ReadingArg::M1 => PressVariant::M1,
            },
            parse_per_s: self.parse_per_s,
            reply_s: self.reply_s,
            reply_kb_per_s: self.reply_kb_per_s,
            disk_s: self.disk_s,
            disk_kb_per_s: self.disk_kb_per_s,
            forward_per_s: self.forward_per_s,
            handoff_per_s: self.handoff_per_s,
            relay_s: self.relay_s,
            relay_kb_per_s: self.relay_kb_per_s,
            external_s: self.external_s,
            external_kb_per_s: self.external_kb_per_s,
            internal_s: self.internal_s,
            internal_kb_per_s: self.internal_kb_per_s,
            request_kb: self.request_kb,
        }
    }
}

/// Writes the throughput of each server with its bottleneck, and the ratios of figures 3 and 4 of the paper.
fn write_table(rows: &[SolutionRow], out: &mut impl Write) -> io::Result<()> {
    const HEAD: [&str; 9] = [
        "nodes",
        "hit rate",
        "forwarded",
        "non-port/s",
        "port/s",
        "trad/s",
        "port/trad",
        "np/port",
        "bound by",
    ];
    let widths = HEAD.map(|name| name.len().max(10));
    let line = |cells: [String; 9]| {
        let padded = cells.iter().zip(widths).map(|(cell, width)| format!("{cell:>width$}"));
        padded.collect::<Vec<_>>().join("  ")
    };
    writeln!(out, "{}", line(HEAD.map(str::to_owned)))?;
    writeln!(out, "{}", "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1)))?;
    for SolutionRow { parameters, solution } in rows {
        let [handoff, relaying, alone] = solution.servers;
        let cells = [
            parameters.nodes.to_string(),
            format!("{:.1} %", solution.hit_rate_cluster * 100.0),
            format!("{:.1} %", solution.forwarded * 100.0),
            number(handoff.throughput.round()),
            number(relaying.throughput.round()),
            number(alone.throughput.round()),
            format!("{:.2}x", relaying.throughput / alone.throughput),
            format!("{:.3}x", handoff.throughput / relaying.throughput),
            format!("{}/{}/{}", handoff.binds.name(), relaying.binds.name(), alone.binds.name()),
        ];
        writeln!(out, "{}", line(cells).trim_end())?;
    }
    if let Some(SolutionRow { solution, .. }) = rows.first() {
        writeln!(out, "\nworking set: {} files", number(solution.files.round()))?;
    }
    Ok(())
}
