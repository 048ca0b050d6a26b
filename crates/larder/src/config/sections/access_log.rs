//! `[switch.access_log]` and `[node.access_log]`.

use larder_edge::access::{AccessFormat, AccessLogConfig, AccessLogOutput, LineFormat};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::suggest::suggest;

keys! {
    /// `[switch.access_log]`.
    table SwitchAccessLogSection;

    /// File the access log is appended to (Combined Log Format with node, reason and times), or "-" for stdout.
    /// Unset: no access log.
    file: Option<String>, example "/var/log/larder/access.log";
    /// How a line of the access log looks: "combined", "json" (an object per line), or parts of what is known, such as
    /// "{client} {target} {status} {node} {total_us} {header:x-user}"; docs/reference/access-log.md lists them.
    format: String = "combined".to_owned();
}

keys! {
    /// `[node.access_log]`.
    table NodeAccessLogSection;

    /// File the access log is appended to (Combined Log Format with cache status, origin and times), or "-" for stdout.
    /// Unset: no access log.
    file: Option<String>, example "/var/log/larder/access.log", reload true;
    /// How a line of the access log looks: "combined", "json" (an object per line), or parts of what is known, such as
    /// "{client} {target} {status} {cache} {total_us} {header:x-user}"; docs/reference/access-log.md lists them.
    format: String = "combined".to_owned(), reload true;
}

/// The access log of the role `at`, whose lines have these fields besides those that all lines have.
pub(crate) fn access_log(
    at: &str,
    file: Option<&str>,
    format: &str,
    fields: &[&str],
) -> Result<Option<AccessLogConfig>, Fault> {
    let key = || format!("{at}.access_log.format");
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
            let fault = Fault::new(format!("{at}.access_log.file"), "names no file");
            return Err(fault.hint("a path, \"-\", or leave it out"));
        }
        Some("-") => Some(AccessLogConfig { output: AccessLogOutput::Stdout, ..AccessLogConfig::file("-") }),
        Some(path) => Some(AccessLogConfig::file(path)),
    };
    Ok(log.map(|log| AccessLogConfig { format, ..log }))
}
