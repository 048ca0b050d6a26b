//! `larder sim replay`: decides a recorded live run again.

use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use larder_sim::replay::{LogLine, Replay, Summary};

/// Replay the recorded decisions of a live switch, and compare.
///
/// A switch with --record FILE records the inputs of its dispatcher. This command feeds them to the dispatcher of
/// the simulator and prints the decision log, one line per decision or change: generation, lane, place, time in ns,
/// target, node (by its slot), reason. Exit code 1: a line differs from the live decision, or the record cannot be
/// replayed.
///
/// For example: larder switch --record run.rec ... && larder sim replay run.rec > decisions.log
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// Record file.
    record: PathBuf,
    /// Also compare with this decision log (--record-log of the switch), byte for byte, instead of printing.
    #[arg(long, value_name = "LOG")]
    check: Option<PathBuf>,
    /// Print only the summary.
    #[arg(short, long)]
    quiet: bool,
    /// Print only the summary, as JSON.
    #[arg(long)]
    json: bool,
}

/// Most differing lines that are printed.
const DIFFERENCES_PRINTED_MAX: u64 = 5;

pub(crate) fn run(args: &ReplayArgs) -> anyhow::Result<()> {
    let name = args.record.display();
    let file = File::open(&args.record).with_context(|| format!("{name} cannot be opened"))?;
    let mut replay =
        Replay::open(BufReader::with_capacity(1 << 18, file)).with_context(|| name.to_string())?;
    let mut comparison = args.check.as_deref().map(LogComparison::open).transpose()?;
    let mut out = BufWriter::new(io::stdout().lock());
    let prints = comparison.is_none() && !args.quiet && !args.json;
    let mut differing = 0;
    for row in &mut replay {
        let row = row.with_context(|| name.to_string())?;
        if prints {
            out.write_all(row.replayed.as_bytes())?;
        }
        if let Some(comparison) = &mut comparison {
            comparison.compare(&row)?;
        }
        differing += u64::from(!row.agrees());
        if !row.agrees() && differing <= DIFFERENCES_PRINTED_MAX {
            write!(
                io::stderr(),
                "record {}:\n  live     {}  replayed {}",
                row.frame,
                row.live,
                row.replayed
            )?;
        }
    }
    let summary = replay.summary();
    if args.json {
        serde_json::to_writer_pretty(&mut out, summary)?;
        writeln!(out)?;
    }
    out.flush()?;
    print_summary(summary)?;
    if let Some(comparison) = comparison {
        comparison.end(summary)?;
    }
    match summary.differing {
        0 => Ok(()),
        differing => bail!("{name}: {differing} lines differ between the live switch and the replay"),
    }
}

/// Prints the summary.
fn print_summary(summary: &Summary) -> io::Result<()> {
    let Summary { policy, decisions, changes, differing, left_out, .. } = summary;
    let mut err = io::stderr();
    writeln!(err, "{policy}: {decisions} decisions and {changes} changes replayed, {differing} differ")?;
    if let Some(end) = summary.end.filter(|end| *end != "complete") {
        writeln!(err, "the recording ended early ({end}); {left_out} records after the gap are omitted")?;
    }
    Ok(())
}

/// A decision log that is compared with the replay line by line.
#[derive(Debug)]
struct LogComparison {
    name: String,
    lines: BufReader<File>,
    line: Vec<u8>,
    number: u64,
}

impl LogComparison {
    fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.display().to_string();
        let file = File::open(path).with_context(|| format!("{name} cannot be opened"))?;
        Ok(Self { name, lines: BufReader::new(file), line: Vec::new(), number: 0 })
    }

    fn compare(&mut self, row: &LogLine) -> anyhow::Result<()> {
        self.line.clear();
        self.number += 1;
        // The read is limited, because a line that is longer than the replayed line differs in any case.
        let most = row.replayed.len() as u64 + 1;
        (&mut self.lines).take(most).read_until(b'\n', &mut self.line)?;
        if self.line != row.replayed.as_bytes() {
            let found = String::from_utf8_lossy(&self.line);
            bail!(
                "{}: line {} differs from record {}:\n  log      {}\n  replayed {}",
                self.name,
                self.number,
                row.frame,
                found.trim_end(),
                row.replayed.trim_end()
            );
        }
        Ok(())
    }

    /// Checks that the log ends here. After a recording that ended early, the log may continue.
    fn end(mut self, summary: &Summary) -> anyhow::Result<()> {
        if summary.left_out == 0 && !self.lines.fill_buf()?.is_empty() {
            bail!("{}: the log has more lines than the record, from line {}", self.name, self.number);
        }
        Ok(())
    }
}
