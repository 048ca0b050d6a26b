//! `larder plan`: finds the policy, the number of nodes and the memory that suit a log.

mod classifier;
mod config;
mod input;
mod output;
mod prompts;
mod proxy;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::Context as _;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use larder_core::Bytes;
use larder_core::cache::CacheKind;
use larder_core::dispatch::Settings;
use larder_sim::Costs;
use larder_sim::plan::{self, Goal, Options, PlanError, Prices, Sampling};

use super::policies::{PolicySelection, expand_selection};
use super::trace::FormatArgs;
use crate::config::Size;
use crate::outcome::usage;
use crate::proxy::Proxy;
use crate::report::plan::{PlanReport, page, write};

use classifier::RequestClassifier;
use output::OutputFile;
use proxy::ProxyCluster;

/// Recommend a policy, a number of nodes and a memory size for your access log.
///
/// The requests of the log pass a simulated cluster for every policy, number of nodes and memory size. Dispatcher,
/// policies and caches are those of the live switch and node. The result is a recommendation with a table;
/// optionally also JSON, an HTML report, and a config that `larder check` accepts. Nothing is started.
///
/// For example: larder plan access.log --nodes 2,4,8 --html plan.html
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    disable_help_subcommand = true
)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    subject: Option<PlanSubject>,
    /// Access logs, merged by time; --format lists the formats. gzip, zstd, xz and bzip2 are decompressed. `-`
    /// reads stdin. Write `./prompts` for a log of that name.
    #[arg(required = true, value_name = "LOG")]
    logs: Vec<PathBuf>,
    #[command(flatten)]
    format: FormatArgs,
    /// Size of a reply in formats without sizes.
    #[arg(long, value_name = "SIZE", default_value = "10KB")]
    unsized_bytes: Size,
    /// Policies to compare; `all` for every policy, which samples more or takes longer. They get the signals that
    /// they need: load reports and cache events of the simulated nodes, and a routing table computed from the first
    /// part of the log.
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "NAME,...",
        default_value = "rr,least-conn,wrr,hash,lard,lard-r"
    )]
    policies: Vec<PolicySelection>,
    /// Numbers of nodes to simulate, 1 to 1024 each. Default: 1,2,4,8,16; with --envoy or --nginx the
    /// hosts of the cluster.
    #[arg(long, value_delimiter = ',', value_name = "N,...")]
    nodes: Vec<u16>,
    /// Memory sizes of a node for contents. Default: four sizes from a sixteenth of the working set to all of it.
    #[arg(long, value_delimiter = ',', value_name = "SIZE,...")]
    memory: Vec<Size>,
    /// Goal of the cluster: throughput=N/s, p99=TIME, hit=P%, origin=BYTES/s, or cost. Default: the knee, which is
    /// the least total memory with a hit ratio within 2 points of the best.
    #[arg(long)]
    goal: Option<Goal>,
    /// Requests per second for p99, origin bytes and delays. Default: for a goal, the busiest minute of the log;
    /// for the delays shown, 70 % of the throughput of the recommended cluster.
    #[arg(long, value_name = "N")]
    load: Option<f64>,
    /// Price of a node per hour without its memory, in any currency.
    #[arg(long, value_name = "PRICE")]
    node_price: Option<f64>,
    /// Price of 10^9 bytes of memory per hour.
    #[arg(long, value_name = "PRICE")]
    gb_price: Option<f64>,
    /// Cost model of requests at a node: a name, or a TOML file (`model = "..."` and its keys).
    #[arg(long, value_name = "MODEL|FILE")]
    costs: Option<String>,
    /// Cache policy of the nodes: gds, gds-packets or lru.
    #[arg(long, value_name = "KIND", default_value = "gds")]
    cache_kind: CacheKind,
    /// T_low of the policies and of the admission limit, in requests.
    #[arg(long, default_value_t = 25)]
    t_low: u32,
    /// T_high of the policies and of the admission limit, in requests.
    #[arg(long, default_value_t = 65)]
    t_high: u32,
    /// Config of a switch, for its keys, service classes and policy parameters. The first matching route determines
    /// the key and class of a target. Each compared policy serves all routes, on all nodes, with the parameters of
    /// the default route.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["t_low", "t_high"])]
    switch: Option<PathBuf>,
    /// Host of all requests, for rules of --switch that match hosts. Logs do not contain it.
    #[arg(long, value_name = "NAME", default_value = "", requires = "switch")]
    host: String,
    /// Config of Envoy: a static bootstrap, as YAML or JSON. The plan compares the policy of a cluster with lard-r
    /// inside Envoy, and prints the lines of config that change the policy.
    #[arg(long, value_name = "FILE", group = "proxy", conflicts_with_all = ["switch", "write_config"])]
    envoy: Option<PathBuf>,
    /// Config of nginx, or the output of `nginx -T`, for the same comparison inside nginx.
    #[arg(long, value_name = "FILE", group = "proxy", conflicts_with_all = ["switch", "write_config"])]
    nginx: Option<PathBuf>,
    /// Cluster in the config of --envoy, or upstream in that of --nginx. Default: the only one.
    #[arg(long, value_name = "NAME", requires = "proxy")]
    cluster: Option<String>,
    /// Seeds. The first seed draws samples and arrivals. The recommended cluster is simulated with each seed, under
    /// other names of the targets.
    #[arg(
        long = "seeds",
        visible_alias = "seed",
        value_delimiter = ',',
        value_name = "N,...",
        default_value = "1,2,3,4,5"
    )]
    seeds: Vec<u64>,
    /// Part of the log that is simulated: auto, exact, or a share of the targets such as 5%, at most 50%.
    #[arg(long, value_name = "RATE|auto|exact", default_value = "auto", value_parser = sampling)]
    sample: Sampling,
    /// Share of the requests, from the start, that warms the caches and is not measured: 0% to 90%. Default: a
    /// third.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    warmup: Option<f64>,
    /// Print JSON instead of text.
    #[arg(long)]
    json: bool,
    /// Write an HTML report to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write a config for the recommended cluster to this file, which must not exist.
    #[arg(long, value_name = "FILE")]
    write_config: Option<PathBuf>,
    /// Let --write-config replace an existing file.
    #[arg(long, requires = "write_config")]
    force: bool,
    /// Not an option of this command: other commands read a config with --config.
    #[arg(long, value_name = "FILE", hide = true)]
    config: Option<PathBuf>,
}

/// Clusters that serve something else than files.
#[derive(Debug, Subcommand)]
enum PlanSubject {
    Prompts(prompts::PlanPromptsArgs),
}

/// Returns the default cost model: current hardware if the model exists, else the model of the LARD paper.
fn default_costs() -> Option<Costs> {
    ["modern", "lard98"].into_iter().find_map(Costs::by_name)
}

pub(crate) fn run(args: &PlanArgs) -> anyhow::Result<()> {
    if let Some(PlanSubject::Prompts(args)) = &args.subject {
        return prompts::run(args);
    }
    args.refuse_config()?;
    let classifier =
        args.switch.as_deref().map(|path| RequestClassifier::read(path, &args.host)).transpose()?;
    let proxy = args.proxy().transpose()?;
    let mut options = args.options(classifier.as_ref(), proxy.as_ref())?;
    if let Some(warning) = classifier.as_ref().and_then(RequestClassifier::ignored_settings) {
        // Messages to a closed stderr are dropped.
        let _ = writeln!(io::stderr(), "larder: warning: {warning}");
    }
    // Output files are opened first, so that an error is reported before the work.
    let html = args.html.as_deref().map(OutputFile::open).transpose()?;
    let config =
        args.write_config.as_deref().map(|path| OutputFile::open_new(path, args.force)).transpose()?;
    let (traces, logs) = input::read(&args.logs, &args.format, args.unsized_bytes.0)?;
    let workload = match &classifier {
        Some(classifier) => plan::merge_as(&traces, &|name| classifier.classify(name)),
        None => plan::merge(&traces),
    };
    if !classifier.as_ref().is_some_and(RequestClassifier::has_shares) {
        // Equal shares would reserve nodes for classes without requests.
        options.settings.policies.static_partition.shares = workload.class_shares();
    }
    // Names and sizes of the requests are no longer needed.
    drop(traces);
    let bar = ProgressDisplay::new();
    let made = plan::plan(&workload, &options, &|progress| bar.show(progress));
    drop(bar);
    let plan = made.map_err(|error| match error {
        PlanError::TooShort(_) => anyhow::Error::new(error).context(input::format_names(&args.logs)),
        PlanError::Option(_) | PlanError::Sim(_) => usage(error.to_string()),
    })?;
    let measured = args.costs.as_deref().is_some_and(|costs| Costs::by_name(costs).is_none());
    let proxy = proxy.map(|proxy| proxy.report(&plan, &options.settings));
    let version = env!("CARGO_PKG_VERSION");
    let report = PlanReport { plan, version, logs, proxy, costs_from_file: measured };
    // The files are written before stdout, whose reader may have closed the pipe.
    if let Some(file) = html {
        file.write(&page(&report)?)?;
    }
    let unwritten = match config {
        None => None,
        Some(file) => match config::text(&report, options.settings.policies.static_partition.shares)? {
            Some(text) => {
                file.write(&text)?;
                None
            }
            None => Some(file.leave()),
        },
    };
    print(&report, args.json)?;
    if let Some(path) = unwritten {
        anyhow::bail!("cannot write {}: no simulated cluster meets the goal", path.display());
    }
    Ok(())
}

/// Prints the report to stdout.
fn print(report: &PlanReport, as_json: bool) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    if as_json {
        serde_json::to_writer_pretty(&mut out, report)?;
        writeln!(out)?;
    } else {
        write(report, &mut out)?;
    }
    out.flush()?;
    Ok(())
}

impl PlanArgs {
    /// Refuses `--config`, which other commands have.
    fn refuse_config(&self) -> anyhow::Result<()> {
        let Some(path) = &self.config else { return Ok(()) };
        let path = path.display();
        Err(usage(format!(
            "--config is not an option of plan, because plan reads no config: use --write-config {path} to write one, or \
             --switch {path} to read the keys and classes of a switch"
        )))
    }

    /// Reads the cluster of the proxy whose config is given.
    fn proxy(&self) -> Option<anyhow::Result<ProxyCluster>> {
        let envoy = self.envoy.as_deref().map(|path| (Proxy::Envoy, path));
        let (proxy, path) = envoy.or_else(|| self.nginx.as_deref().map(|path| (Proxy::Nginx, path)))?;
        Some(ProxyCluster::read(proxy, path, self.cluster.as_deref()))
    }

    fn options(
        &self,
        classifier: Option<&RequestClassifier>,
        proxy: Option<&ProxyCluster>,
    ) -> anyhow::Result<Options> {
        let costs = match &self.costs {
            Some(text) => costs(text)?,
            None => default_costs().context("there is no cost model")?,
        };
        let prices = match (self.node_price, self.gb_price) {
            (None, None) => None,
            (None, Some(_)) => return Err(usage("--gb-price needs --node-price")),
            (Some(node_hour), gb) => Some(Prices { node_hour, gb_hour: gb.unwrap_or(0.0) }),
        };
        if self.goal == Some(Goal::Cost) && prices.is_none() {
            return Err(usage("--goal cost needs --node-price, and --gb-price if memory costs extra"));
        }
        let usual = Options::new(costs);
        let mut memory: Vec<Bytes> = self.memory.iter().map(|size| size.0).collect();
        let mut nodes = match proxy {
            _ if !self.nodes.is_empty() => self.nodes.clone(),
            Some(proxy) => vec![proxy.nodes()?],
            None => plan::NODES.to_vec(),
        };
        memory.sort_unstable();
        memory.dedup();
        nodes.sort_unstable();
        nodes.dedup();
        let mut options = Options {
            policies: expand_selection(&self.policies).map_err(usage)?,
            nodes,
            memory,
            goal: self.goal,
            load: self.load,
            prices,
            cache: self.cache_kind,
            settings: match classifier {
                Some(classifier) => classifier.settings(),
                None => Settings { t_low: self.t_low, t_high: self.t_high, ..Settings::default() },
            },
            seeds: self.seeds.clone(),
            sampling: self.sample,
            warmup: self.warmup.unwrap_or(usual.warmup),
            ..usual
        };
        if let Some(proxy) = proxy {
            proxy.apply(&mut options);
        }
        Ok(options)
    }
}

/// Returns a cost model by name or from a file.
fn costs(text: &str) -> anyhow::Result<Costs> {
    if let Some(costs) = Costs::by_name(text) {
        return Ok(costs);
    }
    let path = Path::new(text);
    if !path.exists() {
        let known = Costs::NAMES.join(", ");
        return Err(usage(format!(
            "--costs '{text}' is neither the name of a cost model ({known}) nor a file"
        )));
    }
    let content = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Costs::from_toml(&content).map_err(|error| usage(format!("{}: {error}", path.display())))
}

fn sampling(text: &str) -> Result<Sampling, String> {
    match text {
        "auto" => Ok(Sampling::Auto),
        "exact" => Ok(Sampling::Exact),
        rate => share(rate).map(Sampling::Rate),
    }
}

/// Parses a share such as `5%` or `0.05`.
fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 0.01));
    let value = f64::from_str(number.trim()).ok().map(|value| value * unit);
    value
        .filter(|value| (0.0..=1.0).contains(value))
        .ok_or_else(|| format!("'{text}' is not a share: write 5% or 0.05"))
}

/// Progress bar of the simulation. It is shown only on a terminal, and removed when dropped.
struct ProgressDisplay(ProgressBar);

impl ProgressDisplay {
    fn new() -> Self {
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template("{bar:30} {msg}, {percent} %, {eta} left");
        Self(style.map_or(bar.clone(), |style| bar.with_style(style)))
    }

    fn show(&self, progress: plan::Progress) {
        self.set(progress.what, progress.done, progress.total);
    }

    fn set(&self, what: &'static str, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
        self.0.set_message(what);
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
