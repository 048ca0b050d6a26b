//! `[switch.access_log]` and `[node.access_log]`.

use larder_edge::access::{AccessFormat, AccessLogConfig, AccessLogOutput, LineFormat};

use crate::config::error::Fault;
use crate::config::keys::keys;
use crate::config::suggest::suggest;

keys! {
    /// `[switch.access_log]`.
    table SwitchAccessLogSection;

    /// File that the access log is appended to, or "-" for stdout. Unset: no access log.
    file: Option<String>, example "/var/log/larder/access.log";
    /// Format of a line: "combined", "json", or fields such as "{client} {target} {status} {node} {total_us}
    /// {header:x-user}". "combined" is the Combined Log Format with node, reason and times. "json" is one object per
    /// line. docs/reference/access-log.md lists the fields.
    format: String = "combined".to_owned();
}

keys! {
    /// `[node.access_log]`.
    table NodeAccessLogSection;

    /// File that the access log is appended to, or "-" for stdout. Unset: no access log.
    file: Option<String>, example "/var/log/larder/access.log", reload true;
    /// Format of a line: "combined", "json", or fields such as "{client} {target} {status} {cache} {total_us}
    /// {header:x-user}". "combined" is the Combined Log Format with cache status, origin and times. "json" is one
    /// object per line. docs/reference/access-log.md lists the fields.
    format: String = "combined".to_owned(), reload true;
}

/// Returns the access log of the role `at`. `fields` are the role's own fields of a line.
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
            let fault = Fault::new(format!("{at}.access_log.file"), "is empty");
            return Err(fault.hint("write a path or \"-\", or leave it out"));
        }
        Some("-") => Some(AccessLogConfig { output: AccessLogOutput::Stdout, ..AccessLogConfig::file("-") }),
        Some(path) => Some(AccessLogConfig::file(path)),
    };
    Ok(log.map(|log| AccessLogConfig { format, ..log }))
}
