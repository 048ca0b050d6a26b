//! `access_log` and `access_log_format` of a role, checked.

use larder_edge::access::{AccessFormat, AccessLogConfig, AccessLogOutput, LineFormat};

use crate::config::error::Fault;
use crate::config::suggest::suggest;

/// The access log of the role `at`, whose lines have these fields besides those that all lines have.
pub(crate) fn access_log(
    at: &str,
    file: Option<&str>,
    format: &str,
    fields: &[&str],
) -> Result<Option<AccessLogConfig>, Fault> {
    let key = || format!("{at}.access_log_format");
    let format = match format {
        "combined" => AccessFormat::Combined,
        "json" => AccessFormat::Json,
        text if text.contains('{') => AccessFormat::Custom(
            LineFormat::parse(text, fields)
                .map_err(|error| Fault::new(key(), error.what).hint(error.right))?,
        ),
        other => {
            let hint = format!(
                "{}, or parts such as \"{{client}} {{target}} {{status}}\"",
                suggest(other, &["combined", "json"])
            );
            let what = format!("unknown value '{}'", other.escape_debug());
            return Err(Fault::new(key(), what).hint(hint));
        }
    };
    let log = match file {
        None => None,
        Some("") => {
            let fault = Fault::new(format!("{at}.access_log"), "names no file");
            return Err(fault.hint("a path, \"-\", or leave it out"));
        }
        Some("-") => Some(AccessLogConfig { output: AccessLogOutput::Stdout, ..AccessLogConfig::file("-") }),
        Some(path) => Some(AccessLogConfig::file(path)),
    };
    Ok(log.map(|log| AccessLogConfig { format, ..log }))
}
