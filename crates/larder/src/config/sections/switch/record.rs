//! `[switch.record]`.

use std::path::PathBuf;

use larder_switch::RecordConfig;

use crate::config::error::Fault;
use crate::config::keys::keys;

keys! {
    /// `[switch.record]`.
    table RecordSection;

    /// File to record the dispatcher's inputs and decisions in, for `larder sim replay`; replaced if it exists. Some 40
    /// bytes a request. The recording ends by itself, and says so, where the disk cannot follow. Unset: no record.
    file: Option<String>, example "/var/lib/larder/decisions.rec";
    /// File for the decision log of the record as text; replaced if it exists. Needs `file`. Unset: no text.
    log: Option<String>, example "/var/lib/larder/decisions.log";
}

/// The files that decisions are recorded in, checked.
pub(crate) fn record(raw: &RecordSection) -> Result<Option<RecordConfig>, Fault> {
    let hint = "a path, or leave it out";
    let named = |key: &str, file: &Option<String>| match file.as_deref() {
        Some("" | "-") => Err(Fault::new(format!("switch.record.{key}"), "names no file").hint(hint)),
        file => Ok(file.map(PathBuf::from)),
    };
    let (file, log) = (named("file", &raw.file)?, named("log", &raw.log)?);
    match (file, log) {
        (None, Some(_)) => Err(Fault::new("switch.record.log", "there is no record to log").hint("set file")),
        (Some(file), Some(log)) if file == log => {
            Err(Fault::new("switch.record.log", "is the same file as record.file").hint("give each its own"))
        }
        (file, log) => Ok(file.map(|file| RecordConfig { log, ..RecordConfig::file(file) })),
    }
}
