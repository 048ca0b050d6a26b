//! Talk to the operator: `tracing` events on stderr.

use std::fmt;
use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::outcome::usage;

/// Which events are written, of logging that has been started.
pub struct Level(Box<dyn Fn(EnvFilter) -> Result<(), tracing_subscriber::reload::Error> + Send + Sync>);

impl Level {
    /// Other events are written from now on.
    pub(crate) fn change(&self, filter: EnvFilter) {
        if let Err(error) = (self.0)(filter) {
            tracing::error!(%error, "what is logged cannot be changed");
        }
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Level").finish_non_exhaustive()
    }
}

/// A filter such as "info"; the environment variable LARDER_LOG wins over it.
pub(crate) fn filter(configured: &str) -> anyhow::Result<EnvFilter> {
    let environment = std::env::var("LARDER_LOG").ok().filter(|text| !text.is_empty());
    let (text, from) = match &environment {
        Some(text) => (text.as_str(), "LARDER_LOG"),
        None => (configured, "log.level"),
    };
    // rustls warns of each odd handshake: any client could flood the log. The metrics have them by name, and larder logs handshakes
    // seldom. A filter that names targets is used as it is.
    let quiet = if text.contains('=') { "" } else { ",rustls=error" };
    EnvFilter::try_new(format!("{text}{quiet}")).map_err(|error| {
        usage(format!("{from}: '{text}' is no log filter ({error}); write error, warn, info, debug or trace"))
    })
}

/// Starts logging with a filter such as "info". Whoever keeps what is returned can change it.
///
/// # Errors
/// The text is no filter, or logging has been started before.
pub fn start(configured: &str) -> anyhow::Result<Level> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(configured)?)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_filter_reloading();
    let handle = builder.reload_handle();
    builder.try_init().map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))?;
    Ok(Level(Box::new(move |filter| handle.reload(filter))))
}
