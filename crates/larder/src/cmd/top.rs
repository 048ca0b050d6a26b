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
/// It asks the admin interfaces of switches, and of nodes without a front-end, and shows figures of the whole, the nodes, the
/// hottest targets with their servers, why nodes were chosen, and what other policies would have made of the requests. Keys:
/// q quits, s sorts the nodes otherwise, up and down choose one, d drains it and u takes it back, each after a question.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// Where an admin interface is: HOST:PORT, or a port of this machine; may be given several times.
    #[arg(short, long, value_name = "ADDRESS", default_value = "127.0.0.1:9900")]
    admin: Vec<String>,
    /// Time from one look to the next: 100ms to 1h.
    #[arg(short, long, value_name = "TIME", default_value = "1s")]
    interval: Span,
    /// Look twice, print what was seen, and end.
    #[arg(long)]
    once: bool,
    /// As JSON. Needs --once.
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
        anyhow::bail!("nobody answers");
    }
    Ok(())
}
