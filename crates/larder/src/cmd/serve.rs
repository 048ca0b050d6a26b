//! Options, threads, signals and the ready line of the serving roles.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use larder_edge::Tokens;
use larder_peers::{ClusterSecrets, PeersConfig};
use larder_switch::SwitchesConfig;
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;

use crate::admin::{self, AdminService};
use crate::config::{AdminListen, SwitchesRole, Written};
use crate::demo::cluster::Ready;

/// Options of the roles that serve.
#[derive(Clone, Debug, Args)]
pub(crate) struct ServeArgs {
    /// Config file (TOML); other options override it. `larder check --defaults` prints all keys.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address of the admin interface: ADDRESS:PORT, or "off".
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<String>,
    /// Worker threads; 0 means one per core.
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Log level on stderr: error, warn, info, debug, trace, or a filter.
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Print one line of JSON to stdout when ready: {"listen":["127.0.0.1:8080"],"admin":"127.0.0.1:9900"}.
    #[arg(long)]
    ready_line: bool,
    /// Drain and exit at the end of stdin, so that this process ends with its parent.
    #[arg(long)]
    exit_with_stdin: bool,
}

impl ServeArgs {
    /// Reads the config file, and applies the options of this struct.
    pub(crate) fn read_config(&self) -> anyhow::Result<Written> {
        let mut written = Written::read_or_empty(self.config.as_deref())?;
        self.apply_options(&mut written);
        Ok(written)
    }

    /// Applies the options of this struct to a config.
    pub(crate) fn apply_options(&self, written: &mut Written) {
        if let Some(admin) = &self.admin {
            written.raw.admin.listen = Some(admin.clone());
        }
        if let Some(level) = &self.log {
            written.raw.log.level.clone_from(level);
        }
    }

    /// Whether a parent process controls this process through stdin.
    pub(crate) fn has_parent(&self) -> bool {
        self.exit_with_stdin
    }

    /// Prints the ready line for a waiting parent, if it is requested.
    pub(crate) fn print_ready_line(&self, ready: &Ready) -> anyhow::Result<()> {
        if self.ready_line {
            let line = serde_json::to_string(ready)?;
            let mut out = io::stdout().lock();
            writeln!(out, "{line}")?;
            out.flush()?;
        }
        Ok(())
    }
}

/// Creates a runtime with this number of worker threads; 0 means one per core. One thread needs no work
/// stealing.
///
/// # Errors
/// Returns an error if the threads cannot be started.
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

/// Raises the limit of open files to the allowed maximum, because each connection is an open file.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        tracing::warn!(%error, limit = ?limit.current, "open files: limit not raised");
    }
}

/// SIGINT and SIGTERM, from the time of [`StopSignals::watch`] on. Before, they end the process.
#[derive(Debug)]
pub(crate) struct StopSignals {
    interrupt: Signal,
    terminate: Signal,
}

impl StopSignals {
    /// Watches the signals. Needs a runtime.
    ///
    /// # Errors
    /// Returns an error if the handlers cannot be installed.
    pub(crate) fn watch() -> anyhow::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt()).context("cannot watch SIGINT")?,
            terminate: signal(SignalKind::terminate()).context("cannot watch SIGTERM")?,
        })
    }

    /// Waits for the next signal. Returns `interrupted` or `terminated`.
    pub(crate) async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "terminated",
        }
    }
}

/// Runs `work` to its end, or until SIGINT or SIGTERM. The signals are watched before `work` starts any process, and take effect
/// when `work` waits.
///
/// # Errors
/// Returns the error of `work`, or the signal.
pub async fn until_interrupted<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let mut signals = StopSignals::watch()?;
    tokio::select! {
        outcome = work => outcome,
        ended = signals.next() => Err(anyhow::anyhow!(ended)),
    }
}

/// Returns a handle that completes at SIGTERM, at SIGINT, or at the end of stdin if it is watched. A second
/// signal ends the process at once.
pub(crate) fn shutdown(args: &ServeArgs) -> anyhow::Result<Shutdown> {
    let mut signals = StopSignals::watch()?;
    let (sender, receiver) = watch::channel(false);
    let sender = Arc::new(sender);
    if args.exit_with_stdin {
        let sender = Arc::clone(&sender);
        // A separate thread, because a blocking read must not delay the end of the runtime.
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
            signals.next().await;
            if past {
                tracing::info!("shutdown: second signal, open connections are reset");
                std::process::exit(1);
            }
            tracing::info!("shutdown: signal received, requests in flight finish");
            sender.send_replace(true);
        }
    });
    Ok(Shutdown(receiver))
}

/// Reads the secrets in a file. `key` is the config key that names the file.
pub(crate) fn secrets(key: &str, path: &Path) -> anyhow::Result<ClusterSecrets> {
    ClusterSecrets::load(path).with_context(|| format!("{key}: {}", path.display()))
}

/// Reads the secret of peer switches, and returns the config of their network. `key` names the file.
pub(crate) fn peer_switches(key: &str, role: SwitchesRole) -> anyhow::Result<SwitchesConfig> {
    let SwitchesRole { name, listen, advertise, secret, seeds, settings } = role;
    let read = secrets(key, &secret)?;
    let network = PeersConfig { advertise, seeds, ..PeersConfig::new(name, listen, read) };
    Ok(SwitchesConfig { network, settings })
}

/// Reads the tokens in a file. `key` is the config key that names the file.
pub(crate) fn tokens(key: &str, path: Option<&Path>) -> anyhow::Result<Option<Tokens>> {
    path.map(Tokens::load).transpose().with_context(|| key.to_owned())
}

/// Prevents SIGHUP from ending the process, even before the first config is read.
///
/// # Errors
/// Returns an error if the handler cannot be installed.
pub(crate) fn ignore_hangup() -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    // The signal handler stays installed until the process ends.
    runtime.block_on(async { signal(SignalKind::hangup()).map(drop) }).context("cannot watch SIGHUP")
}

/// Handle that completes when the process should end; see [`shutdown`]. Clones complete at the same time.
#[derive(Clone, Debug)]
pub(crate) struct Shutdown(watch::Receiver<bool>);

impl Shutdown {
    /// Creates a handle that completes when the sender sends or is dropped.
    pub(crate) fn manual() -> (watch::Sender<bool>, Self) {
        let (sender, receiver) = watch::channel(false);
        (sender, Self(receiver))
    }

    /// Completes when the process should end.
    pub(crate) async fn requested(mut self) {
        // The sender lives as long as the process. If it were dropped, shutdown would be right.
        let _ = self.0.wait_for(|requested| *requested).await;
    }
}

/// Returns the address of the admin interface.
pub(crate) fn admin_address(listen: AdminListen, unset: Option<SocketAddr>) -> Option<SocketAddr> {
    match listen {
        AdminListen::At(address) => Some(address),
        AdminListen::Off => None,
        AdminListen::Unset => unset,
    }
}

/// Binds the address of the admin interface.
///
/// # Errors
/// Returns an error if the address cannot be bound.
pub(crate) fn bind_admin(address: SocketAddr) -> anyhow::Result<std::net::TcpListener> {
    let listener = larder_switch::listen(address);
    listener.map_err(|error| match error {
        larder_switch::SwitchError::Listen { source, .. } => {
            let what = format!(
                "cannot bind the admin interface to {address}: set admin.listen (or --admin) to another address, or to \"off\""
            );
            anyhow::Error::new(source).context(what)
        }
        error => error.into(),
    })
}

/// Starts the admin interface on a listener. Returns its address.
pub(crate) fn start_admin_on(
    listener: std::net::TcpListener,
    service: Arc<dyn AdminService>,
    shutdown: Shutdown,
) -> anyhow::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::from_std(listener)?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        tracing::warn!(%address, "admin interface: reachable from other machines without authentication");
    }
    tracing::info!(%address, "admin interface: listening");
    Ok((address, tokio::spawn(admin::serve(listener, service, shutdown.requested()))))
}

/// Starts the admin interface. Returns its address.
pub(crate) async fn start_admin(
    listen: AdminListen,
    unset: Option<SocketAddr>,
    service: Arc<dyn AdminService>,
    shutdown: Shutdown,
) -> anyhow::Result<Option<SocketAddr>> {
    let Some(address) = admin_address(listen, unset) else { return Ok(None) };
    let (address, _) = start_admin_on(bind_admin(address)?, service, shutdown)?;
    Ok(Some(address))
}
