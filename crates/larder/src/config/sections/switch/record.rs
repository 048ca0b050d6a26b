//! `[switch.record]`.

use std::path::PathBuf;

use larder_switch::RecordConfig;

use crate::config::error::Fault;
use crate::config::keys::keys;

keys! {
    /// `[switch.record]`.
    table RecordSection;

    /// File that the inputs and decisions of the dispatcher are recorded in, about 40 bytes per request. An existing
    /// file is replaced. If the disk is too slow, the recording ends, and the log says so. Unset: no record.
    file: Option<String>, example "/var/lib/larder/decisions.rec";
    /// File for the decisions as text. An existing file is replaced. It needs `file`. Unset: none.
    log: Option<String>, example "/var/lib/larder/decisions.log";
}

/// Validates the files of a record.
pub(crate) fn record(raw: &RecordSection) -> Result<Option<RecordConfig>, Fault> {
    let hint = "write a path, or leave it out";
    let named = |key: &str, file: &Option<String>| match file.as_deref() {
        Some("" | "-") => Err(Fault::new(format!("switch.record.{key}"), "names no file").hint(hint)),
        file => Ok(file.map(PathBuf::from)),
    };
    let (file, log) = (named("file", &raw.file)?, named("log", &raw.log)?);
    match (file, log) {
        (None, Some(_)) => Err(Fault::new("switch.record.log", "needs `file`: there is no record")
            .hint("write file = \"/var/lib/larder/decisions.rec\"")),
        (Some(file), Some(log)) if file == log => {
            Err(Fault::new("switch.record.log", "is the same file as record.file").hint("give each its own"))
        }
        (file, log) => Ok(file.map(|file| RecordConfig { log, ..RecordConfig::file(file) })),
    }
}
