//! Talk to the operator: `tracing` events on stderr.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::outcome::usage;

/// Starts logging with a filter such as "info"; the environment variable LARDER_LOG wins over it.
pub(crate) fn start(filter: &str) -> anyhow::Result<()> {
    let environment = std::env::var("LARDER_LOG").ok().filter(|text| !text.is_empty());
    let (text, from) = match &environment {
        Some(text) => (text.as_str(), "LARDER_LOG"),
        None => (filter, "log.level"),
    };
    // The relay engine logs every broken client as an error; the access log and the metrics have them by name. Whoever
    // names targets in the filter decides for himself.
    let quiet = if text.contains('=') { "" } else { ",pingora_proxy=off,pingora_core=off" };
    let filter = EnvFilter::try_new(format!("{text}{quiet}")).map_err(|error| {
        usage(format!("{from}: '{text}' is no log filter ({error}); write error, warn, info, debug or trace"))
    })?;
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}
