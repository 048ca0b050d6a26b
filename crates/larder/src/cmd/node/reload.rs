//! Reload of a node: the config is read anew and taken up by the process that runs, so that its memory stays.
//!
//! ```text
//! SIGHUP, POST /reload -> read, overlay, validate -> anything that cannot change? -> Node::change -> the log's level
//!                         wrong: refused             yes: refused                    failed
//! ```
//! Whatever goes wrong, nothing has changed: what can fail comes before what changes anything.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use larder_handoff::channel::server::{AccessControl, HandshakeCounters};
use larder_node::{Node, ReloadCounts};
use larder_peers::ClusterSecrets;
use serde::Serialize;
use tokio::signal::unix::Signal;

use super::args::{NodeArgs, no_section};
use crate::cmd::logging::{self, Level};
use crate::cmd::reloads::{By, Last, Outcome};
use crate::cmd::serve::{self, Shutdown};
use crate::config::{Changes, NodeRole, PeersRole, Sections};

/// How reloads of a node went.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeReloads {
    /// The binary's version.
    version: &'static str,
    /// The process to send signals to.
    pid: u32,
    #[serde(flatten)]
    counts: ReloadCounts,
    /// None if there was none.
    last: Option<Last>,
}

/// Why there was no reload at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    /// The node was started by options alone.
    #[error("this node was started without a config file: there is nothing to read anew")]
    NoFile,
    /// What the node starts with is still being put to use.
    #[error("the node is starting: once it serves, its config can be read anew")]
    Starting,
}

/// Why nothing has changed.
struct Unchanged {
    outcome: Outcome,
    error: String,
}

/// Reloads a node.
#[derive(Debug)]
pub(crate) struct Reloader {
    args: NodeArgs,
    node: Arc<Node>,
    level: Level,
    /// What the node runs with. Held while it is changed: one at a time.
    running: Mutex<Sections>,
    status: Mutex<NodeReloads>,
    /// Set once the node goes by its first config: which switches may connect, if it works for any.
    started: OnceLock<Option<SwitchKeys>>,
}

/// The switches that a node works for.
#[derive(Debug)]
pub(crate) struct SwitchKeys {
    pub(crate) admitted: AccessControl,
    pub(crate) outcomes: Arc<HandshakeCounters>,
}

impl Reloader {
    /// Of a node that was started by these options, `running` being all that they and the config file have said.
    pub(crate) fn new(args: NodeArgs, running: Sections, level: Level, node: Arc<Node>) -> Self {
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        let status = NodeReloads { version, pid, counts: ReloadCounts::default(), last: None };
        let (running, status) = (Mutex::new(running), Mutex::new(status));
        Self { args, node, level, running, status, started: OnceLock::new() }
    }

    /// The node goes by its first config: from now on there may be another. `switches` are those that it works for.
    pub(crate) fn started(&self, switches: Option<SwitchKeys>) {
        // A node starts once.
        let _ = self.started.set(switches);
    }

    /// The switches that the node works for, if it works for any and has started.
    pub(crate) fn switches(&self) -> Option<&SwitchKeys> {
        self.started.get()?.as_ref()
    }

    /// How the reloads so far went.
    pub(crate) fn status(&self) -> NodeReloads {
        lock(&self.status).clone()
    }

    /// Reads the config anew and has the node go by it. Blocks; to be called within the runtime.
    ///
    /// # Errors
    /// There is no config file, or the node does not serve yet. What is wrong with one that there is, is told by the status.
    pub(crate) fn reload(&self, by: By) -> Result<NodeReloads, Unread> {
        // Whatever becomes of the reload: a file that was moved away is to be left.
        self.node.reopen_access_log();
        if self.args.serve.config.is_none() {
            tracing::warn!(%by, "{}", Unread::NoFile);
            return Err(Unread::NoFile);
        }
        let Some(switches) = self.started.get() else { return Err(Unread::Starting) };
        let begun = Instant::now();
        let mut running = lock(&self.running);
        let went = self.change(&mut running, switches.as_ref());
        let took_s = begun.elapsed().as_secs_f64();
        let (outcome, error) = match &went {
            Ok(_) => (Outcome::Done, None),
            Err(unchanged) => (unchanged.outcome, Some(unchanged.error.as_str())),
        };
        match &went {
            Ok(taken) => {
                let changed = taken.join(", ");
                tracing::info!(%by, changed, took_s, "config reloaded");
            }
            Err(Unchanged { error, .. }) => {
                tracing::error!(%by, error, "reload refused: the node keeps its config");
            }
        }
        Ok(self.note(Last::now(by, outcome, error, took_s)))
    }

    /// The keys that have changed.
    fn change(
        &self,
        running: &mut Sections,
        switches: Option<&SwitchKeys>,
    ) -> Result<Vec<String>, Unchanged> {
        let refused =
            |error: anyhow::Error| Unchanged { outcome: Outcome::Refused, error: format!("{error:#}") };
        let (written, config) = self.args.read().map_err(refused)?;
        for warning in written.warnings(&config) {
            tracing::warn!("{warning}");
        }
        let changes = Changes::of_node(running, &written.raw).map_err(|error| refused(error.into()))?;
        if !changes.fixed.is_empty() {
            return Err(refused(written.needs_restart(&changes.fixed).into()));
        }
        let filter = logging::filter(&config.log).map_err(refused)?;
        let role = config.node.ok_or_else(|| refused(no_section()))?;
        let NodeRole { mut node, peers, handoff, report_secret, purge_token, .. } = role;
        // Secrets are read at each reload, since a file changes and its name does not.
        node.purge = serve::tokens("node.purge_token", purge_token.as_deref()).map_err(refused)?;
        node.report.secret = report_secrets(report_secret.as_deref()).map_err(refused)?;
        let read = |peers: &PeersRole| serve::secrets("node.peers.secret", &peers.secret);
        let secrets = peers.as_ref().map(read).transpose().map_err(refused)?;
        let memory = peers.as_ref().map(|peers| peers.policy.memory(node.cache.bytes));
        let failed = |error| Unchanged { outcome: Outcome::Failed, error: format!("{error:#}") };
        self.node.change(&node, memory).map_err(|error| failed(anyhow::Error::new(error)))?;
        if let Some(secrets) = &secrets {
            self.node.set_peers_secrets(secrets).map_err(|error| failed(anyhow::Error::new(error)))?;
        }
        if let (Some(switches), Some(handoff)) = (switches, handoff) {
            switches.admitted.set_allowed_and_revoke(handoff.switches, Vec::new());
        }
        self.level.change(filter);
        *running = written.raw;
        Ok(changes.taken)
    }

    fn note(&self, last: Last) -> NodeReloads {
        let mut status = lock(&self.status);
        let counts = &mut status.counts;
        match last.outcome {
            Outcome::Done => counts.done += 1,
            Outcome::Refused => counts.refused += 1,
            Outcome::Failed => counts.failed += 1,
        }
        (counts.last_unix_s, counts.last_failed) = (last.at_unix_s, last.outcome != Outcome::Done);
        self.node.set_reloads(*counts);
        status.last = Some(last);
        status.clone()
    }
}

impl NodeReloads {
    /// Why the last one was not done.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.last.as_ref()?.error.as_deref()
    }
}

/// Reads the secrets that switches prove to get reports.
pub(super) fn report_secrets(path: Option<&Path>) -> anyhow::Result<Option<ClusterSecrets>> {
    path.map(|path| serve::secrets("node.report.secret", path)).transpose()
}

/// Reloads at each SIGHUP until the node is asked to end; after that SIGHUP does nothing.
pub(super) async fn on_hangup(mut hangup: Signal, reloader: Arc<Reloader>, shutdown: Shutdown) {
    let reloads = async {
        while hangup.recv().await.is_some() {
            let reloader = Arc::clone(&reloader);
            // How it went is logged. Off the runtime's threads: files are read.
            if tokio::task::spawn_blocking(move || drop(reloader.reload(By::Signal))).await.is_err() {
                tracing::error!("the reload was lost to a fault of this program");
            }
        }
    };
    tokio::select! {
        () = reloads => {}
        () = shutdown.requested() => {}
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
