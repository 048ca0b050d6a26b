//! `larder load`: generates load for an HTTP/1.1 server.

mod dbench;
mod manifest;
mod source;
mod stage;
mod users;
mod warmup;
mod workload;

use std::io::{self, Write};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use larder_load::{Arrivals, LoadError, Method, Plan, Progress, Report, Reuse};

use self::source::RequestList;
use self::warmup::Warmup;
use crate::config::Span;
use crate::outcome::usage;

/// Default number of clients in a closed loop.
const CLIENTS: u32 = 64;

/// Load an HTTP server, and measure throughput and latency.
///
/// Closed loop (--closed): each client sends its next request when it has received the last reply. This finds the
/// highest throughput. Open loop (--rate, --open-trace): requests are due at fixed times, whatever the server does.
/// Latency then counts from the due time.
///
/// The requests are for the path of the URL, or for the targets of a trace in their order. The first third warms
/// the caches and is not measured. The result is a table on stdout; reasons to doubt the result are printed as
/// warnings.
///
/// The subcommands sessions, mix and dbench simulate users who fetch pages and pause. The subcommand manifest lists
/// the targets of these workloads, so that a node can serve them.
///
/// For example: larder load http://127.0.0.1:8080 --trace access.log --closed 64
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct LoadArgs {
    #[command(subcommand)]
    command: Option<LoadCommand>,
    /// URL that gets the requests: `http://HOST[:PORT][/PATH]`.
    #[arg(required_unless_present = "json_schema")]
    url: Option<String>,
    /// Replay the requests of this trace or access log, in their order. Any format `larder trace` reads.
    #[arg(long, value_name = "FILE", conflicts_with = "targets")]
    trace: Option<PathBuf>,
    /// Replay the targets in this file, one per line: PATH, or SIZE, tab and PATH.
    #[arg(long, value_name = "FILE")]
    targets: Option<PathBuf>,
    /// Closed loop with this many clients. Default, with 64 clients.
    #[arg(long, value_name = "CLIENTS", group = "model")]
    closed: Option<u32>,
    /// Open loop at this many requests per second.
    #[arg(long, value_name = "PER_SECOND", group = "model")]
    rate: Option<f64>,
    /// Open loop at the times of the trace.
    #[arg(long, group = "model", requires = "trace")]
    open_trace: bool,
    /// With --open-trace: speed relative to the recorded times.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, requires = "open_trace")]
    speedup: f64,
    /// With --open-trace: requests with the same time are spread over at most this span; 0s sends them together.
    #[arg(long, value_name = "TIME", default_value = "1s", requires = "open_trace")]
    resolution: Span,
    /// Number of requests; a shorter list is repeated. Default: once through the list; with --duration, as many as
    /// fit; for a single URL without --duration, 10000.
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,
    /// Duration of the run, such as 30s.
    #[arg(short, long, value_name = "TIME")]
    duration: Option<Span>,
    /// Warm-up that is not measured: a share of the run (0.25, 25%), a number of requests (1000), or a time (5s).
    /// Default: a third of the run.
    #[arg(long, value_name = "AMOUNT")]
    warmup: Option<Warmup>,
    /// Timeout of a request.
    #[arg(long, value_name = "TIME", default_value = "30s")]
    timeout: Span,
    /// Open loop: most connections at a time.
    #[arg(long, value_name = "N", default_value_t = 1024)]
    connections: u32,
    /// Open a new connection for each request.
    #[arg(long)]
    no_keep_alive: bool,
    /// Threads that run the clients. With 1, requests are sent exactly in order.
    #[arg(long, value_name = "N", default_value_t = 1)]
    threads: u32,
    /// Send HEAD instead of GET.
    #[arg(long)]
    head: bool,
    /// Additional request header, such as "Accept: text/html". May be repeated.
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    headers: Vec<String>,
    /// Host header. Default: from the URL.
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// Count a reply as failed if its size differs from the size in the trace or list.
    #[arg(long)]
    check_sizes: bool,
    /// Number of nodes that should answer. A node that never answers then shows in the imbalance.
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,
    /// Print JSON instead of the table.
    #[arg(long)]
    json: bool,
    /// Also write the JSON to this file.
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,
    /// Compare with the JSON report of an earlier run.
    #[arg(long, value_name = "FILE")]
    compare: Option<PathBuf>,
    /// Exit with code 1 if there is a reason to doubt the result.
    #[arg(long)]
    strict: bool,
    /// Do not show progress.
    #[arg(short, long)]
    quiet: bool,
    /// Print the JSON Schema of the report, and exit.
    #[arg(long)]
    json_schema: bool,
}

#[derive(Debug, Subcommand)]
enum LoadCommand {
    Sessions(Box<users::SessionsArgs>),
    Mix(Box<users::MixArgs>),
    Dbench(Box<dbench::DbenchArgs>),
    Manifest(Box<manifest::ManifestArgs>),
}

pub(crate) fn run(args: &LoadArgs) -> anyhow::Result<()> {
    match &args.command {
        Some(LoadCommand::Sessions(args)) => return args.run(),
        Some(LoadCommand::Mix(args)) => return args.run(),
        Some(LoadCommand::Dbench(args)) => return args.run(),
        Some(LoadCommand::Manifest(args)) => return args.run(),
        None => {}
    }
    if args.json_schema {
        return print_json(&schemars::schema_for!(Report));
    }
    // The baseline is read first, so that an unreadable file does not waste a run.
    let baseline = args.compare.as_deref().map(read_report).transpose()?;
    let plan = args.plan()?;
    let report = measure(plan, args.quiet)?;
    if let Some(path) = &args.output {
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(path, json + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    let comparison = baseline.as_ref().map(|baseline| report.compare(baseline));
    if args.json {
        match &comparison {
            None => print_json(&report)?,
            Some(comparison) => {
                print_json(&serde_json::json!({ "report": &report, "comparison": comparison }))?;
            }
        }
    } else {
        let mut out = io::stdout().lock();
        out.write_all(report.render().as_bytes())?;
        if let Some(comparison) = &comparison {
            write!(out, "\n{}", comparison.render())?;
        }
        out.flush()?;
    }
    if args.strict && !report.warnings.is_empty() {
        anyhow::bail!("{} reasons to doubt the result (--strict)", report.warnings.len());
    }
    Ok(())
}

impl LoadArgs {
    fn plan(&self) -> anyhow::Result<Plan> {
        let url = self.url.as_deref().unwrap_or_default();
        let uri = parse_url(url)?;
        let (address, host) = resolve_url(url, &uri)?;
        let source = self.source(&uri)?;
        let plan = Plan::new(address, self.host.as_deref().unwrap_or(&host), source.targets, source.order);
        let requests = match (self.requests, self.duration, source.single) {
            (None, None, true) => Some(10_000),
            (requests, ..) => requests,
        };
        let mut plan = Plan {
            requests,
            duration: self.duration.map(|span| span.0),
            arrivals: self.arrivals(source.times)?,
            timeout: self.timeout.0,
            expected_sizes: source.sizes.filter(|_| self.check_sizes),
            reuse: if self.no_keep_alive { Reuse::PerRequest } else { Reuse::KeepAlive },
            connections_max: self.connections,
            threads: self.threads,
            method: if self.head { Method::Head } else { Method::Get },
            headers: self.headers.iter().map(|header| split_header(header)).collect::<Result<_, _>>()?,
            nodes_expected: self.nodes,
            ..plan
        };
        if self.check_sizes && plan.expected_sizes.is_none() {
            return Err(usage("--check-sizes needs sizes: a --trace, or --targets with a size on each line"));
        }
        self.warmup.unwrap_or_default().apply(&mut plan);
        Ok(plan)
    }

    fn source(&self, uri: &http::Uri) -> anyhow::Result<RequestList> {
        if let Some(path) = &self.trace {
            return RequestList::trace(path, self.quiet);
        }
        if let Some(path) = &self.targets {
            return RequestList::list(path);
        }
        let target = uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        Ok(RequestList::single(target))
    }

    fn arrivals(&self, times: Option<std::sync::Arc<[Duration]>>) -> anyhow::Result<Arrivals> {
        if let Some(rate) = self.rate {
            return Ok(Arrivals::OpenConstant { rate });
        }
        if !self.open_trace {
            return Ok(Arrivals::Closed { clients: self.closed.unwrap_or(CLIENTS) });
        }
        let times = times.filter(|times| times.last() > times.first());
        let times = times.ok_or_else(|| usage("--open-trace: the trace has no times; use --rate"))?;
        Ok(Arrivals::OpenTrace { times, speedup: self.speedup, resolution: self.resolution.0 })
    }
}

fn parse_url(url: &str) -> anyhow::Result<http::Uri> {
    url.parse().map_err(|error| usage(format!("'{url}' is not a URL: {error}")))
}

/// Returns the socket address of a URL, and its `Host` header.
fn resolve_url(url: &str, uri: &http::Uri) -> anyhow::Result<(SocketAddr, String)> {
    if uri.scheme().is_some_and(|scheme| *scheme != http::uri::Scheme::HTTP) {
        return Err(usage(format!("'{url}': only http:// is supported")));
    }
    let authority = uri.authority().ok_or_else(|| usage(format!("'{url}' names no host")))?;
    if authority.as_str().contains('@') {
        return Err(usage(format!("'{url}': credentials in the URL are not supported; use --header")));
    }
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let port = authority.port_u16().unwrap_or(80);
    let mut addresses = (name, port).to_socket_addrs().with_context(|| format!("cannot resolve {name}"))?;
    let address = addresses.next().with_context(|| format!("{name} has no address"))?;
    Ok((address, authority.as_str().to_owned()))
}

fn split_header(header: &str) -> anyhow::Result<(String, String)> {
    let (name, value) =
        header.split_once(':').ok_or_else(|| usage(format!("--header '{header}' has no colon")))?;
    Ok((name.to_owned(), value.trim().to_owned()))
}

/// Runs the plan with a progress bar.
fn measure(plan: Plan, quiet: bool) -> anyhow::Result<Report> {
    let bar = progress_bar(&plan, quiet);
    let show = |progress: Progress| {
        bar.set_position(if progress.total.is_some() {
            progress.finished
        } else {
            u64::try_from(progress.elapsed.as_millis()).unwrap_or(u64::MAX)
        });
        let phase = if progress.measuring { "measuring" } else { "warming up" };
        let rate = progress.finished as f64 / progress.elapsed.as_secs_f64().max(0.001);
        let failed =
            if progress.failed > 0 { format!(", {} failed", progress.failed) } else { String::new() };
        bar.set_message(format!("{phase}, {rate:.0} requests/s{failed}"));
    };
    let stop = plan.stop.clone();
    let report = stage::block_on(&stop, larder_load::run(plan, &show));
    bar.finish_and_clear();
    report
}

/// Converts an error of the plan to a usage error, because the command line determines the plan.
fn convert_error(error: LoadError) -> anyhow::Error {
    match error {
        LoadError::Plan(error) => usage(error.to_string()),
        error => error.into(),
    }
}

fn progress_bar(plan: &Plan, quiet: bool) -> ProgressBar {
    if quiet {
        return ProgressBar::hidden();
    }
    let (length, template) = match (plan.requests, plan.duration) {
        (None, Some(duration)) => {
            (u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), "[{bar:30}] {percent:>3} %  {msg}")
        }
        (requests, _) => {
            (requests.unwrap_or(plan.order.len() as u64), "[{bar:30}] {percent:>3} %  {msg}  {eta} left")
        }
    };
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(length).with_style(style.progress_chars("=> "))
}

fn read_report(path: &Path) -> anyhow::Result<Report> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let report: Report = serde_json::from_str(&text)
        .map_err(|error| usage(format!("{} is not a report of larder load: {error}", path.display())))?;
    if report.schema != larder_load::SCHEMA {
        return Err(usage(format!(
            "{} has the schema '{}', not '{}'",
            path.display(),
            report.schema.chars().take(40).collect::<String>(),
            larder_load::SCHEMA
        )));
    }
    Ok(report)
}

fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests;
