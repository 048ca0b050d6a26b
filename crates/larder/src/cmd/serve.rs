//! What `larder switch` and `larder node` have in common: options, threads, signals, the ready line.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use larder_edge::Tokens;
use larder_peers::ClusterSecrets;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::admin::{self, AdminService};
use crate::config::{AdminListen, Written};
use crate::demo::cluster::Ready;

/// Options of the roles that serve.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Config file (TOML); other options win over it. `larder check --defaults` prints all keys.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Where the admin interface listens: ADDRESS:PORT, or "off".
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Worker threads; 0 takes one for each core.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Least severity written to stderr: error, warn, info, debug, trace, or a filter.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Print one line of JSON to stdout once serving: {"listen":["127.0.0.1:8080"],"admin":"127.0.0.1:9900"}.
    #[arg(long)]
    ready_line: bool,
    /// Drain and end when stdin reaches its end: for a parent that must not leave this process behind.
    #[arg(long)]
    exit_with_stdin: bool,
}

impl ServeArgs {
    /// The config file, with the options of this struct laid over it.
    pub(crate) fn written(&self) -> anyhow::Result<Written> {
        let mut written = Written::read_or_empty(self.config.as_deref())?;
        self.overlay(&mut written);
        Ok(written)
    }

    /// Lays the options of this struct over a config.
    pub(crate) fn overlay(&self, written: &mut Written) {
        if let Some(admin) = &self.admin {
            written.raw.admin.listen = Some(admin.clone());
        }
        if let Some(level) = &self.log {
            written.raw.log.level.clone_from(level);
        }
    }

    /// Whether a parent holds this process by its stdin.
    pub(crate) fn has_parent(&self) -> bool {
        self.exit_with_stdin
    }

    /// Tells a parent that waits for it where the service is.
    pub(crate) fn say_ready(&self, ready: &Ready) -> anyhow::Result<()> {
        if self.ready_line {
            let line = serde_json::to_string(ready)?;
            let mut out = io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
        Ok(())
    }
}

/// A runtime with that many worker threads; 0 takes one for each core. One thread needs no work stealing.
///
/// # Errors
/// The threads cannot be started.
pub fn runtime(threads: usize) -> anyhow::Result<Runtime> {
    let mut builder = match threads {
        1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.enable_all().build().context("cannot start threads")
}

/// Raises the limit of open files to what the system allows: every client and every node connection is one.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, limit = ?limit.current, "open files: the limit cannot be raised");
    }
}

/// Becomes true when the process is asked to end: by SIGTERM, SIGINT, or the end of stdin where that is watched.
/// A second signal ends the process at once.
pub(crate) fn shutdown(args: &ServeArgs) -> anyhow::Result<Shutdown> {
    let mut term = signal(SignalKind::terminate()).context("cannot watch SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot watch SIGINT")?;
    let (sender, receiver) = watch::channel(false);
    let sender = Arc::new(sender);
    if args.exit_with_stdin {
        let sender = Arc::clone(&sender);
        // A thread of its own: a blocking read must not hold up the runtime's end.
        std::thread::Builder::new()
            .name("stdin".to_owned())
            .spawn(move || {
                let mut stdin = io::stdin().lock();
                while !matches!(stdin.read(&mut [0; 256]), Ok(0) | Err(_)) {}
                sender.send_replace(true);
            })
            .context("cannot watch stdin")?;
    }
    tokio::spawn(async move {
        for past in [false, true] {
            tokio::select! {
                _ = term.recv() => {}
                _ = interrupt.recv() => {}
            }
            if past {
                tracing::warn!("second signal received: open connections are reset");
                std::process::exit(1);
            }
            tracing::info!("signal received: finishing requests in flight; a second signal ends at once");
            sender.send_replace(true);
        }
    });
    Ok(Shutdown(receiver))
}

/// Reads the secrets in the file that a key of the config names.
pub(crate) fn secrets(key: &str, path: &Path) -> anyhow::Result<ClusterSecrets> {
    ClusterSecrets::load(path).with_context(|| format!("{key}: {}", path.display()))
}

/// Reads the tokens in the file that a key of the config names.
pub(crate) fn tokens(key: &str, path: Option<&Path>) -> anyhow::Result<Option<Tokens>> {
    path.map(Tokens::load).transpose().with_context(|| key.to_owned())
}

/// From now on SIGHUP does not end the process, whoever hears it: one that comes while the config is read for the first time must not.
///
/// # Errors
/// The system has no room for it.
pub(crate) fn outlive_hangup() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // What catches a signal stays for as long as the process runs.
    runtime.block_on(async { signal(SignalKind::hangup()).map(drop) }).context("cannot watch SIGHUP")
}

/// See [`shutdown`]. Clones wait for the same moment.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// One that comes when the other half says so, or is dropped.
    pub(crate) fn by_hand() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Returns when the process is asked to end.
    pub(crate) async fn requested(mut self) {
        // The sender lives as long as the process; were it gone, ending would be right too.
        let _ = self.0.wait_for(|asked| *asked).await;
    }
}

/// Where the admin interface is to be.
pub(crate) fn admin_address(listen: AdminListen, unset: Option<SocketAddr>) -> Option<SocketAddr> {
    match listen {
        AdminListen::At(address) => Some(address),
        AdminListen::Off => None,
        AdminListen::Unset => unset,
    }
}

/// Takes the admin interface's address.
///
/// # Errors
/// It cannot be had.
pub(crate) fn bind_admin(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listener = larder_switch::listen(address);
    listener.map_err(|error| match error {
        larder_switch::SwitchError::Listen { source, .. } => {
            let what = format!(
                "cannot bind the admin interface to {address}: write another admin.listen (or --admin), or \"off\""
            );
            anyhow::Error::new(source).context(what)
        }
        error => error.into(),
    })
}

/// Starts the admin interface on a listener; returns where it is.
pub(crate) fn start_admin_on(
    listener: std::net::TcpListener,
    surface: Arc<dyn AdminService>,
    shutdown: Shutdown,
) -> anyhow::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "admin interface: reachable from other machines without authentication");
    }
    tracing::info!(%address, "admin interface: listening");
    Ok((address, tokio::spawn(admin::serve(listener, surface, shutdown.requested()))))
}

/// Starts the admin interface; returns where it is.
pub(crate) async fn start_admin(
    listen: AdminListen,
    unset: Option<SocketAddr>,
    surface: Arc<dyn AdminService>,
    shutdown: Shutdown,
) -> anyhow::Result<Option<SocketAddr>> {
    let Some(address) = admin_address(listen, unset) else { return Ok(None) };
    let (address, _) = start_admin_on(bind_admin(address)?, surface, shutdown)?;
    Ok(Some(address))
}
