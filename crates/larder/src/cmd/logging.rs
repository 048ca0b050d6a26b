//! Logging: `tracing` events on stderr.

use std::fmt;
use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::outcome::usage;

/// The level of a started logger, which can be changed.
pub struct LogLevel(Box<dyn Fn(EnvFilter) -> Result<(), tracing_subscriber::reload::Error> + Send + Sync>);

impl LogLevel {
    /// Changes the filter.
    pub(crate) fn change(&self, filter: EnvFilter) {
        if let Err(error) = (self.0)(filter) {
            tracing::warn!(%error, "log: level not changed");
        }
    }
}

impl fmt::Debug for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogLevel").finish_non_exhaustive()
    }
}

/// Parses a filter such as "info". The environment variable LARDER_LOG takes precedence.
pub(crate) fn filter(configured: &str) -> anyhow::Result<EnvFilter> {
    let environment = std::env::var("LARDER_LOG").ok().filter(|text| !text.is_empty());
    let (text, from) = match &environment {
        Some(text) => (text.as_str(), "LARDER_LOG"),
        None => (configured, "log.level"),
    };
    // rustls warns about each unusual handshake, so any client could flood the log. The metrics count
    // handshake errors by name, and larder logs them at a limited rate. A filter that names targets is used
    // unchanged.
    let quiet = if text.contains('=') { "" } else { ",rustls=error" };
    EnvFilter::try_new(format!("{text}{quiet}")).map_err(|error| {
        usage(format!(
            "{from}: '{text}' is not a log filter ({error}); write error, warn, info, debug or trace"
        ))
    })
}

/// Starts logging with a filter such as "info". The returned value can change the filter.
///
/// # Errors
/// Returns an error if the text is not a filter, or if logging was started before.
pub fn start(configured: &str) -> anyhow::Result<LogLevel> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(configured)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.try_init().map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))?;
    Ok(LogLevel(Box::new(move |filter| handle.reload(filter))))
}
