//! `larder trace`: describes, generates and converts request traces, and computes routing tables.

mod routes;
mod ward;

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

use larder_core::Bytes;
use larder_trace::synth::{HotTargets, Recipe, SynthError, generate};
use larder_trace::{
    Format, JsonFields, Limits, LoadOptions, Progress, ReadOptions, Stats, Trace, TraceError, save_clf,
    write_clf,
};

use crate::outcome::usage;

/// Describe, generate and convert access logs; compute WARD's routing table.
#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    #[command(subcommand)]
    command: TraceCommand,
}

#[derive(Debug, Subcommand)]
enum TraceCommand {
    Stats(StatsArgs),
    Synth(SynthArgs),
    Convert(ConvertArgs),
    Ward(ward::WardArgs),
    Routes(routes::RoutesArgs),
}

/// Format of a log.
#[derive(Debug, Args)]
pub(crate) struct FormatArgs {
    /// Format: clf (Common or Combined Log Format), haproxy, w3c (IIS, CloudFront), alb, s3, envoy, larder,
    /// caddy, nginx, traefik (JSON), json, sdsc, worldcup98, oracle-general, u64be or mooncake. Default: detected from the
    /// first bytes.
    #[arg(long)]
    pub(crate) format: Option<Format>,
    /// Keys of JSON lines of other servers, nested keys with dots: time=ts,path=request.uri and so on. Fields:
    /// time, method, path, query, request (a request line), status, bytes, client. path or request is required.
    #[arg(long, value_name = "FIELD=KEY,...")]
    pub(crate) json_fields: Option<JsonFields>,
}

/// The input file and its format.
#[derive(Debug, Args)]
struct InputArgs {
    /// Trace: an access log or another list of requests; --format lists the formats. gzip, zstd, xz and bzip2 are
    /// decompressed. `-` reads stdin.
    file: PathBuf,
    #[command(flatten)]
    format: FormatArgs,
    /// Longest line in bytes; longer lines count as malformed.
    #[arg(long, value_name = "BYTES", default_value_t = Limits::default().line_bytes_max)]
    line_bytes_max: usize,
    /// Most distinct targets; requests for further targets are counted and omitted.
    #[arg(long, value_name = "N", default_value_t = Limits::default().targets_max)]
    targets_max: usize,
}

/// Describe a trace: counts, working set, coverage, Zipf exponent, locality curves.
///
/// Only requests that can be replayed are counted: GET, status 200, with a body. Malformed lines are counted, and
/// the first ones are printed. Sizes are decimal (1 MB = 10^6 bytes); the size of a target is that of its largest
/// reply.
///
/// For example: larder trace stats access.log
#[derive(Debug, Args)]
struct StatsArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
}

/// Generate a trace from a seed, as an access log.
///
/// The recipes named `...-like` have the published number of targets, bytes, hottest share and coverage of the
/// trace in their name; `zipf` has a plain Zipf distribution. The same recipe, seed and scale give the same trace
/// on every machine.
///
/// For example: larder trace synth rice-like --scale 0.1 --output rice.log.gz
#[derive(Debug, Args)]
struct SynthArgs {
    /// Recipe.
    #[arg(value_parser = PossibleValuesParser::new(recipe_names()))]
    recipe: String,
    /// Seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Share of the full size, above 0 and at most 1: fewer targets, requests and bytes with the same distribution.
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Output file; compressed if the name ends in .gz or .zst. Default: stdout.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// zipf: number of targets.
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    targets: u32,
    /// zipf: number of requests.
    #[arg(long, value_name = "N", default_value_t = 1_000_000)]
    requests: u64,
    /// zipf: exponent, 0 to 5.
    #[arg(long, default_value_t = 0.8)]
    exponent: f64,
    /// rice+hot: share of the requests that go to hot targets, 0.05 to 0.5.
    #[arg(long, value_name = "SHARE", default_value_t = HotTargets::default().share)]
    hot_share: f64,
    /// rice+hot: number of hot targets.
    #[arg(long, value_name = "N", default_value_t = HotTargets::default().targets)]
    hot_targets: u32,
    /// rice+hot: size of each hot target.
    #[arg(long, value_name = "SIZE", default_value_t = HotTargets::default().size)]
    hot_size: Bytes,
}

/// Convert a trace of any format to an access log.
///
/// Requests that can be replayed are kept, in the order of time. Numeric targets become /NUMBER. In formats without
/// sizes, each reply has the size --unsized-bytes; tokens are written as bytes.
///
/// For example: larder trace convert requests.bin --format u64be --output access.log
#[derive(Debug, Args)]
struct ConvertArgs {
    #[command(flatten)]
    input: InputArgs,
    /// Output file; compressed if the name ends in .gz or .zst. Default: stdout.
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Size of a target in formats without sizes.
    #[arg(long, value_name = "SIZE", default_value = "1")]
    unsized_bytes: Bytes,
}

pub(crate) fn run(args: TraceArgs) -> anyhow::Result<()> {
    match args.command {
        TraceCommand::Stats(args) => stats(&args),
        TraceCommand::Synth(args) => synth(&args),
        TraceCommand::Convert(args) => convert(&args),
        TraceCommand::Ward(args) => ward::run(&args),
        TraceCommand::Routes(args) => routes::run(&args),
    }
}

fn recipe_names() -> impl Iterator<Item = &'static str> {
    Recipe::NAMES.into_iter().chain(["zipf"])
}

impl InputArgs {
    fn limits(&self) -> Limits {
        Limits { line_bytes_max: self.line_bytes_max, targets_max: self.targets_max, ..Limits::default() }
    }

    fn is_stdin(&self) -> bool {
        self.file == Path::new("-")
    }

    fn load_options(&self, unsized_bytes: Bytes) -> LoadOptions {
        let FormatArgs { format, json_fields } = &self.format;
        LoadOptions {
            format: *format,
            json_fields: json_fields.clone(),
            limits: self.limits(),
            unsized_bytes,
        }
    }

    /// Adds the file's name to an error that does not contain it.
    fn name_error(&self, error: TraceError) -> anyhow::Error {
        name_error(error, &self.file.display().to_string())
    }

    /// Returns a path that also works for stdin.
    fn path(&self) -> &Path {
        if self.is_stdin() { Path::new("/dev/stdin") } else { &self.file }
    }
}

/// Adds the log's name to an error that does not contain it.
pub(crate) fn name_error(error: TraceError, name: &str) -> anyhow::Error {
    match error {
        TraceError::Open { .. } => error.into(),
        TraceError::JsonFields(_) => usage(error.to_string()),
        _ => anyhow::Error::new(error).context(name.to_owned()),
    }
}

fn stats(args: &StatsArgs) -> anyhow::Result<()> {
    let input = &args.input;
    let FormatArgs { format, json_fields } = &input.format;
    let options = ReadOptions { format: *format, json_fields: json_fields.clone(), limits: input.limits() };
    let bar = TraceProgress::new();
    let stats = if input.is_stdin() {
        Stats::of_reader(io::stdin(), &options, &mut |progress| bar.show(progress))
    } else {
        Stats::of_file(&input.file, &options, &mut |progress| bar.show(progress))
    };
    let stats = stats.map_err(|error| input.name_error(error))?;
    drop(bar);
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer_pretty(&mut out, &stats)?;
        writeln!(out)?;
    } else {
        write!(out, "{stats}")?;
    }
    out.flush()?;
    Ok(())
}

fn synth(args: &SynthArgs) -> anyhow::Result<()> {
    let trace = recipe(args).and_then(|recipe| generate(&recipe, args.seed, args.scale));
    let trace = trace.map_err(|error| usage(error.to_string()))?;
    write(&trace, args.output.as_deref())?;
    let (requests, targets) = (trace.requests.len(), trace.targets.len());
    let (name, seed, scale) = (&args.recipe, args.seed, args.scale);
    let size = trace.working_set();
    writeln!(
        io::stderr(),
        "{name}, seed {seed}, scale {scale}: {requests} requests to {targets} targets, {size} in total"
    )?;
    Ok(())
}

fn recipe(args: &SynthArgs) -> Result<Recipe, SynthError> {
    if args.recipe == "zipf" {
        return Ok(Recipe::zipf(args.targets, args.requests, args.exponent));
    }
    let mut recipe = Recipe::by_name(&args.recipe)?;
    if let Some(hot) = &mut recipe.hot {
        *hot = HotTargets { share: args.hot_share, targets: args.hot_targets, size: args.hot_size };
    }
    Ok(recipe)
}

fn convert(args: &ConvertArgs) -> anyhow::Result<()> {
    let input = &args.input;
    let options = input.load_options(args.unsized_bytes);
    let bar = TraceProgress::new();
    let loaded = Trace::load_with(input.path(), &options, &mut |progress| bar.show(progress));
    let (trace, report) = loaded.map_err(|error| input.name_error(error))?;
    drop(bar);
    write(&trace, args.output.as_deref())?;
    let (kept, lines, malformed) = (trace.requests.len(), report.lines, report.malformed);
    writeln!(io::stderr(), "{kept} requests kept of {lines} lines, {malformed} malformed")?;
    Ok(())
}

fn write(trace: &Trace, output: Option<&Path>) -> anyhow::Result<()> {
    match output {
        Some(path) => save_clf(trace, path).with_context(|| format!("cannot write {}", path.display())),
        None => {
            let mut out = BufWriter::with_capacity(256 << 10, io::stdout().lock());
            write_clf(trace, &mut out)?;
            out.flush()?;
            Ok(())
        }
    }
}

/// Progress bar on stderr. It is shown only on a terminal, and removed when dropped.
struct TraceProgress(ProgressBar);

impl TraceProgress {
    fn new() -> Self {
        let bar = ProgressBar::no_length();
        let style = ProgressStyle::with_template("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {msg}");
        Self(style.map_or(bar.clone(), |style| bar.with_style(style)))
    }

    fn show(&self, progress: Progress) {
        if let Some(total) = progress.bytes_total {
            self.0.set_length(total);
        }
        self.0.set_position(progress.bytes);
        self.0.set_message(format!("{} lines", progress.lines));
    }
}

impl Drop for TraceProgress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
