//! Reads logs, and counts the requests that cannot be replayed.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};
use larder_core::Bytes;
use larder_trace::{LoadOptions, ReadEnd, SizeUnit, Trace};

use crate::cmd::trace::{FormatArgs, name_error};
use crate::outcome::usage;
use crate::report::plan::LogInfo;

/// Formats the logs' names for errors.
pub(super) fn format_names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// Reads all logs.
pub(super) fn read(
    paths: &[PathBuf],
    format: &FormatArgs,
    unsized_bytes: Bytes,
) -> anyhow::Result<(Vec<Trace>, Vec<LogInfo>)> {
    if paths.iter().filter(|path| path.as_os_str() == "-").count() > 1 {
        return Err(usage("stdin (-) can be given only once"));
    }
    if unsized_bytes == Bytes::ZERO {
        return Err(usage("--unsized-bytes must be above 0"));
    }
    let FormatArgs { format, json_fields } = format;
    let json_fields = json_fields.clone();
    let options = LoadOptions { format: *format, json_fields, unsized_bytes, ..LoadOptions::default() };
    let all = paths.iter().map(|path| read_log(path, &options)).collect::<anyhow::Result<Vec<_>>>()?;
    Ok(all.into_iter().unzip())
}

fn read_log(path: &Path, options: &LoadOptions) -> anyhow::Result<(Trace, LogInfo)> {
    let bar = ProgressBar::no_length();
    if let Ok(style) = ProgressStyle::with_template("{bar:30} reading, {percent} %, {eta} left") {
        bar.set_style(style);
    }
    let stdin = path.as_os_str() == "-";
    let file = if stdin { Path::new("/dev/stdin") } else { path };
    let mut info = LogInfo {
        name: if stdin { "stdin".to_owned() } else { path.display().to_string() },
        ..LogInfo::default()
    };
    let loaded =
        Trace::load_with_skipped(file, options, &mut |record| info.count_omitted(record), &mut |progress| {
            if let Some(total) = progress.bytes_total {
                bar.set_length(total);
            }
            bar.set_position(progress.bytes);
        });
    bar.finish_and_clear();
    let (trace, report) = loaded.map_err(|error| name_error(error, &info.name))?;
    info.format = report.format.to_string();
    (info.lines, info.replayed) = (report.lines, trace.requests.len() as u64);
    (info.malformed, info.over_targets_max) = (report.malformed, report.over_targets_max);
    info.first_malformed = report.first_malformed.iter().map(ToString::to_string).collect();
    info.assumed_bytes = (trace.size_unit == SizeUnit::Unknown).then_some(options.unsized_bytes.get());
    info.tokens = trace.size_unit == SizeUnit::Tokens;
    info.cut = report.ended == ReadEnd::RequestsMax;
    Ok((trace, info))
}
