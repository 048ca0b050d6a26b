//! Arguments and output of all loads of users.

use std::io::{self, Write};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use larder_load::{ConnectionLifetime, StopHandle, UserProgress, UserSettings};
use serde::Serialize;

use super::{convert_error, parse_url, print_json, resolve_url, split_header};
use crate::cmd::serve::StopSignals;
use crate::config::Span;
use crate::outcome::usage;

/// Options of a stage: its target, and the way in which pages are fetched.
#[derive(Debug, Args)]
pub(super) struct StageArgs {
    /// URL of the site: `http://HOST[:PORT]`. The workload sets the paths.
    #[arg(required_unless_present = "json_schema")]
    url: Option<String>,
    /// Most connections of one user at a time, 1 to 64. The base of a page is fetched first, then its embedded
    /// objects over these connections. Default: 2; for dbench 1.
    #[arg(long, value_name = "N")]
    parallel: Option<u32>,
    /// Lifetime of a user's connection: a request, a page or a visit. Default: a page; for mix and dbench a
    /// request.
    #[arg(long, value_name = "SPAN")]
    keep: Option<ConnectionLifetime>,
    /// Timeout of a request.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: Span,
    /// Factor on the pauses of users, 0 to 1000; 0.1 makes pauses ten times shorter.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    time_scale: f64,
    /// Threads that run the users.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Accept documents of any size. By default, a reply fails if its size differs from that of the workload; see
    /// `larder load manifest`.
    #[arg(long)]
    any_size: bool,
    /// Additional request header, such as "Accept: text/html". May be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Host header. Default: from the URL.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Number of nodes that should answer. A node that never answers then shows in the imbalance.
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
}

/// Options of the output.
#[derive(Debug, Args)]
pub(super) struct OutputArgs {
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file.
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Exit with code 1 if there is a reason to doubt the result.
    #[arg(long)]
    strict: bool,
    /// Do not show progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print the JSON Schema of the report, and exit.
    #[arg(long)]
    pub(super) json_schema: bool,
}

impl StageArgs {
    /// Returns the users' settings, with defaults for `keep` and `parallel`.
    pub(super) fn settings(
        &self,
        default_keep: ConnectionLifetime,
        default_parallel: u32,
    ) -> anyhow::Result<UserSettings> {
        let url = self.url.as_deref().unwrap_or_default();
        let uri = parse_url(url)?;
        let (address, host) = resolve_url(url, &uri)?;
        if uri.path_and_query().is_some_and(|path| path.as_str() != "/") {
            return Err(usage(format!(
                "'{url}': the URL must have no path, because the workload sets the paths (--path)"
            )));
        }
        if !(0.0..=larder_load::TIME_SCALE_MAX).contains(&self.time_scale) {
            return Err(usage("--time-scale must be from 0 to 1000; 1 keeps the pauses of the workload"));
        }
        Ok(UserSettings {
            headers: self.headers.iter().map(|header| split_header(header)).collect::<Result<_, _>>()?,
            parallel: self.parallel.unwrap_or(default_parallel),
            keep: self.keep.unwrap_or(default_keep),
            timeout: self.timeout.0,
            time_scale: self.time_scale,
            threads: self.threads,
            check_sizes: !self.any_size,
            nodes_expected: self.nodes,
            ..UserSettings::new(address, self.host.as_deref().unwrap_or(&host))
        })
    }
}

/// A progress bar that is updated during a run.
pub(super) struct LoadProgress {
    bar: ProgressBar,
    length: Option<Duration>,
}

impl LoadProgress {
    /// Creates the bar of a run. `length` is `None` if the length is unknown.
    pub(super) fn new(quiet: bool, length: Option<Duration>) -> Self {
        let bar = if quiet {
            ProgressBar::hidden()
        } else {
            let millis = length.map_or(0, |length| u64::try_from(length.as_millis()).unwrap_or(u64::MAX));
            let template = if length.is_some() { "[{bar:30}] {percent:>3} %  {msg}" } else { "{msg}" };
            let style =
                ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(millis).with_style(style.progress_chars("=> "))
        };
        Self { bar, length }
    }

    /// Updates the bar. The message begins with `prefix`.
    pub(super) fn update(&self, prefix: &str, at: UserProgress) {
        if self.length.is_some() {
            self.bar.set_position(u64::try_from(at.elapsed.as_millis()).unwrap_or(u64::MAX));
        }
        let failed = if at.failed > 0 { format!(", {} failed", at.failed) } else { String::new() };
        let phase = if at.measuring { "measuring" } else { "warming up" };
        let (elapsed_s, users) = (at.elapsed.as_secs_f64(), at.users);
        let rate = at.finished as f64 / elapsed_s.max(0.001);
        self.bar.set_message(format!(
            "{prefix}{phase}, {elapsed_s:.0} s, {users} users, {rate:.0} requests/s{failed}"
        ));
    }
}

impl Drop for LoadProgress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Runs the load to its end. The first SIGINT or SIGTERM ends the run with a report, and the second without one.
pub(super) fn block_on<R>(
    stop: &StopHandle,
    run: impl Future<Output = Result<R, larder_load::LoadError>>,
) -> anyhow::Result<R> {
    let runtime = crate::cmd::serve::runtime(1)?;
    runtime.block_on(async {
        let signals = StopSignals::watch()?;
        tokio::select! {
            report = run => report.map_err(convert_error),
            () = stop_on_signals(signals, stop) => Err(anyhow::anyhow!("interrupted")),
        }
    })
}

/// Ends the run at the first signal, and returns after the second.
async fn stop_on_signals(mut signals: StopSignals, stop: &StopHandle) {
    for _ in 0..2 {
        signals.next().await;
        stop.stop();
    }
}

impl OutputArgs {
    pub(super) fn quiet(&self) -> bool {
        self.quiet
    }

    /// Prints and writes a report.
    pub(super) fn emit(&self, report: &impl Serialize, text: &str, doubtful: bool) -> anyhow::Result<()> {
        if let Some(path) = &self.output {
            let json = serde_json::to_string_pretty(report)?;
            std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
        }
        if self.json {
            print_json(report)?;
        } else {
            let mut out = io::stdout().lock();
            out.write_all(text.as_bytes())?;
            out.flush()?;
        }
        if self.strict && doubtful {
            anyhow::bail!("there are reasons to doubt the result (--strict)");
        }
        Ok(())
    }
}
