//! Reload of a node. The running process reads the config again and applies it, so that its memory stays.
//!
//! ```text
//! SIGHUP, POST /reload -> read, overlay, validate -> anything that cannot change? -> Node::change -> the log's level
//!                         wrong: refused             yes: refused                    failed
//! ```
//! All steps that can fail precede the steps that change something. A failed reload therefore changes
//! nothing.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use larder_handoff::channel::server::{AccessControl, HandshakeCounters};
use larder_node::{Node, ReloadCounts};
use larder_peers::ClusterSecrets;
use serde::Serialize;
use tokio::signal::unix::Signal;

use super::args::{NodeArgs, missing_section};
use crate::cmd::logging::{self, LogLevel};
use crate::cmd::reloads::{ReloadOutcome, ReloadRecord, ReloadTrigger};
use crate::cmd::serve::{self, Shutdown};
use crate::config::{Changes, NodeRole, PeersRole, Sections};

/// Results of the reloads of a node.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct NodeReloadStatus {
    /// Version of the binary.
    version: &'static str,
    /// Process that receives signals.
    pid: u32,
    #[serde(flatten)]
    counts: ReloadCounts,
    /// The last reload; `None` if there was none.
    last: Option<ReloadRecord>,
}

/// Reason why a reload was not attempted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ReloadError {
    /// The node was started without a config file.
    #[error("the node cannot reload: it was started without a config file")]
    NoFile,
    /// The node has not applied its first config yet.
    #[error("the node cannot reload yet: it is still starting")]
    Starting,
}

/// Error of a reload that changed nothing.
struct ReloadFailure {
    outcome: ReloadOutcome,
    error: String,
}

/// Reloads the config of a node.
#[derive(Debug)]
pub(crate) struct Reloader {
    args: NodeArgs,
    node: Arc<Node>,
    level: LogLevel,
    /// The config in force. The lock is held during a reload, so that reloads are serialized.
    running: Mutex<Sections>,
    status: Mutex<NodeReloadStatus>,
    /// Set after the first config was applied: the switches that may connect, if the node accepts handoffs.
    switches: OnceLock<Option<SwitchKeys>>,
}

/// Access control and counters of the switches that hand off to the node.
#[derive(Debug)]
pub(crate) struct SwitchKeys {
    pub(crate) admitted: AccessControl,
    pub(crate) outcomes: Arc<HandshakeCounters>,
}

impl Reloader {
    /// Creates the reloader of a node. `running` is the config with which the node was started.
    pub(crate) fn new(args: NodeArgs, running: Sections, level: LogLevel, node: Arc<Node>) -> Self {
        let (version, pid) = (env!("CARGO_PKG_VERSION"), std::process::id());
        let status = NodeReloadStatus { version, pid, counts: ReloadCounts::default(), last: None };
        let (running, status) = (Mutex::new(running), Mutex::new(status));
        Self { args, node, level, running, status, switches: OnceLock::new() }
    }

    /// Records that the first config was applied, so that reloads are possible. `switches` are the switches
    /// that hand off to the node.
    pub(crate) fn mark_started(&self, switches: Option<SwitchKeys>) {
        // A node starts only once.
        let _ = self.switches.set(switches);
    }

    /// Returns the switches that hand off to the node; `None` before the start and without handoff.
    pub(crate) fn switches(&self) -> Option<&SwitchKeys> {
        self.switches.get()?.as_ref()
    }

    /// Returns the results of the reloads.
    pub(crate) fn status(&self) -> NodeReloadStatus {
        lock(&self.status).clone()
    }

    /// Reads the config again and applies it. Blocks, and must be called within the runtime.
    ///
    /// # Errors
    /// Returns an error if there is no config file, or the node is still starting. Errors of the config are
    /// part of the status.
    pub(crate) fn reload(&self, by: ReloadTrigger) -> Result<NodeReloadStatus, ReloadError> {
        // The log is reopened in any case, because its file may have been rotated.
        self.node.reopen_access_log();
        if self.args.serve.config.is_none() {
            tracing::warn!(by = by.to_string(), "reload: refused, there is no config file");
            return Err(ReloadError::NoFile);
        }
        let Some(switches) = self.switches.get() else { return Err(ReloadError::Starting) };
        let start = Instant::now();
        let mut running = lock(&self.running);
        let result = self.apply_config(&mut running, switches.as_ref());
        let took_s = start.elapsed().as_secs_f64();
        let (outcome, error) = match &result {
            Ok(_) => (ReloadOutcome::Done, None),
            Err(failure) => (failure.outcome, Some(failure.error.as_str())),
        };
        match &result {
            Ok(applied) => {
                let changed = applied.join(", ");
                tracing::info!(by = by.to_string(), changed, took_s, "reload: done");
            }
            Err(ReloadFailure { error, .. }) => {
                tracing::warn!(by = by.to_string(), error, "reload: refused, the node keeps its config");
            }
        }
        Ok(self.record(ReloadRecord::now(by, outcome, error, took_s)))
    }

    /// Applies the config, and returns the keys that have changed.
    fn apply_config(
        &self,
        running: &mut Sections,
        switches: Option<&SwitchKeys>,
    ) -> Result<Vec<String>, ReloadFailure> {
        let refused = |error: anyhow::Error| ReloadFailure {
            outcome: ReloadOutcome::Refused,
            error: format!("{error:#}"),
        };
        let (written, config) = self.args.read_config_and_files().map_err(refused)?;
        for warning in written.warnings(&config) {
            tracing::warn!(%warning, "config: accepted with a warning");
        }
        let changes = Changes::of_node(running, &written.raw).map_err(|error| refused(error.into()))?;
        if !changes.needs_restart.is_empty() {
            return Err(refused(written.needs_restart(&changes.needs_restart).into()));
        }
        let filter = logging::filter(&config.log).map_err(refused)?;
        let role = config.node.ok_or_else(|| refused(missing_section()))?;
        let NodeRole { mut node, peers, handoff, report_secret, purge_token, .. } = role;
        // Secrets are read at each reload, because a file can change while its name does not.
        node.purge = serve::tokens("node.purge_token", purge_token.as_deref()).map_err(refused)?;
        node.report.secret = report_secrets(report_secret.as_deref()).map_err(refused)?;
        let read = |peers: &PeersRole| serve::secrets("node.peers.secret", &peers.secret);
        let secrets = peers.as_ref().map(read).transpose().map_err(refused)?;
        let memory = peers.as_ref().map(|peers| peers.policy.memory(node.cache.bytes));
        let failed = |error| ReloadFailure { outcome: ReloadOutcome::Failed, error: format!("{error:#}") };
        self.node.change(&node, memory).map_err(|error| failed(anyhow::Error::new(error)))?;
        if let Some(secrets) = &secrets {
            self.node.set_peers_secrets(secrets).map_err(|error| failed(anyhow::Error::new(error)))?;
        }
        if let (Some(switches), Some(handoff)) = (switches, handoff) {
            switches.admitted.set_allowed_and_revoke(handoff.switches, Vec::new());
        }
        self.level.change(filter);
        *running = written.raw;
        Ok(changes.reloadable)
    }

    fn record(&self, last: ReloadRecord) -> NodeReloadStatus {
        let mut status = lock(&self.status);
        let counts = &mut status.counts;
        match last.outcome {
            ReloadOutcome::Done => counts.done += 1,
            ReloadOutcome::Refused => counts.refused += 1,
            ReloadOutcome::Failed => counts.failed += 1,
        }
        (counts.last_unix_s, counts.last_failed) = (last.at_unix_s, last.outcome != ReloadOutcome::Done);
        self.node.set_reloads(*counts);
        status.last = Some(last);
        status.clone()
    }
}

impl NodeReloadStatus {
    /// Returns the error of the last reload, if it failed.
    pub(crate) fn last_error(&self) -> Option<&str> {
        self.last.as_ref()?.error.as_deref()
    }
}

/// Reads the secrets that switches must prove to receive load reports.
pub(super) fn report_secrets(path: Option<&Path>) -> anyhow::Result<Option<ClusterSecrets>> {
    path.map(|path| serve::secrets("node.report.secret", path)).transpose()
}

/// Reloads at each SIGHUP until shutdown. Later signals have no effect.
pub(super) async fn reload_on_hangup(mut hangup: Signal, reloader: Arc<Reloader>, shutdown: Shutdown) {
    let reloads = async {
        while hangup.recv().await.is_some() {
            let reloader = Arc::clone(&reloader);
            // The result is logged. A blocking thread is used, because files are read.
            if tokio::task::spawn_blocking(move || drop(reloader.reload(ReloadTrigger::Signal)))
                .await
                .is_err()
            {
                tracing::warn!("reload: panicked, the node may have parts of both configs");
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
