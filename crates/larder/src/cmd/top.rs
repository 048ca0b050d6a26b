//! `larder top`: shows a running cluster in a terminal.

use std::io::Write as _;
use std::time::Duration;

use clap::Args;

use super::serve;
use crate::config::Span;
use crate::outcome::usage;
use crate::top::{self, Sources, overview_text};

/// Watch switches and nodes in the terminal.
///
/// For example: larder top, or: larder top --admin 10.0.0.1:9900 --admin 10.0.0.2:9900
///
/// The command reads the admin interfaces of switches, or of nodes without a switch. It shows totals, nodes, the
/// hottest targets with their servers, the reasons of decisions, and the results of other policies (shadow mode).
/// Keys: q quits, s changes the order of nodes, up and down select a node, d drains it and u undrains it, both
/// after confirmation.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Address of an admin interface: HOST:PORT, or a port of this machine; may be repeated.
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9900")]
    admin: Vec<String>,
    /// Interval between updates: 100ms to 1h.
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// Read the values twice, print them, and exit.
    #[arg(long)]
    once: bool,
    /// Print JSON. Needs --once.
    #[arg(long, requires = "once")]
    json: bool,
}

pub(crate) fn run(args: &TopArgs) -> anyhow::Result<()> {
    let interval = args.interval.0;
    if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&interval) {
        return Err(usage(format!("--interval {} is out of range: 100ms to 1h", args.interval)));
    }
    let sources = Sources::new(&args.admin).map_err(|error| usage(format!("--admin: {error:#}")))?;
    if !args.once {
        return top::run(sources, interval);
    }
    let overview = serve::runtime(1)?.block_on(top::poll_twice(sources, interval));
    let text =
        if args.json { serde_json::to_string_pretty(&overview)? + "\n" } else { overview_text(&overview) };
    write!(std::io::stdout(), "{text}")?;
    if overview.sources.iter().all(|source| source.error.is_some()) {
        anyhow::bail!("no admin interface answers");
    }
    Ok(())
}
