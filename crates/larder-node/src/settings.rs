//! The settings that a reload may change while the node runs.
//!
//! A connection takes the settings in force when it begins and keeps them: limits, deadlines and TLS. A request
//! reads the settings in force at its time. Settings that are neither here nor behind a
//! [`crate::concurrency::ConcurrencyLimit`] keep their values until a restart.

use crate::config::{Limits, NodeConfig, ReportConfig};
use crate::edge::Edge;
use arc_swap::{ArcSwap, Guard};
use larder_edge::{EntryRules, PURGE_PATH, Tokens};
use std::sync::Arc;
use tokio::sync::Notify;

/// The settings in force.
#[derive(Debug)]
pub(crate) struct NodeSettings {
    pub(crate) limits: Limits,
    pub(crate) edge: Edge,
    pub(crate) report: ReportConfig,
    pub(crate) entry: EntryRules,
    /// Tokens that permit a purge; `None` forbids every purge.
    pub(crate) purge: Option<Tokens>,
    health_path: Option<String>,
    stats_path: Option<String>,
}

/// The paths that the node answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnPath {
    /// The health check.
    Health,
    /// The statistics.
    Stats,
    /// The reports for switches.
    Report,
    /// Purges that a switch sends.
    Purge,
}

impl NodeSettings {
    /// Creates the settings from a validated configuration and its edge.
    pub(crate) fn new(config: &NodeConfig, edge: Edge) -> Self {
        Self {
            limits: config.limits,
            edge,
            report: config.report.clone(),
            entry: config.entry.clone(),
            purge: config.purge.clone(),
            health_path: config.health_path.clone(),
            stats_path: config.stats_path.clone(),
        }
    }

    /// Returns which of the node's own paths `path` is; `None` if it is none of them.
    pub(crate) fn own_path(&self, path: &str) -> Option<OwnPath> {
        if self.health_path.as_deref() == Some(path) {
            return Some(OwnPath::Health);
        }
        if self.stats_path.as_deref() == Some(path) {
            return Some(OwnPath::Stats);
        }
        if path == PURGE_PATH {
            return Some(OwnPath::Purge);
        }
        self.report.has(path).then_some(OwnPath::Report)
    }
}

/// The current settings of a running node.
#[derive(Debug)]
pub(crate) struct CurrentSettings {
    settings: ArcSwap<NodeSettings>,
    /// Notified when the settings are replaced.
    changed: Notify,
}

impl CurrentSettings {
    pub(crate) fn new(settings: NodeSettings) -> Self {
        Self { settings: ArcSwap::from_pointee(settings), changed: Notify::new() }
    }

    /// Returns the settings in force. The guard must not be held across an await.
    pub(crate) fn load(&self) -> Guard<Arc<NodeSettings>> {
        self.settings.load()
    }

    /// Returns the settings in force, to keep.
    pub(crate) fn load_full(&self) -> Arc<NodeSettings> {
        self.settings.load_full()
    }

    /// Replaces the settings.
    pub(crate) fn replace(&self, settings: NodeSettings) {
        self.settings.store(Arc::new(settings));
        self.changed.notify_one();
    }

    /// Watches the certificate files in force and reloads them. Never returns with TLS; returns at once without
    /// TLS.
    pub(crate) async fn watch_certificates(self: Arc<Self>) {
        loop {
            let Some(tls) = self.load().edge.tls.clone() else { return };
            tokio::select! {
                () = tls.watch() => {}
                () = self.changed.notified() => {}
            }
        }
    }
}
