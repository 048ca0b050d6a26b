//! What a node goes by that may change while it runs, in one place.
//!
//! A connection takes the terms that are in force when it begins and keeps them: its limits, its deadlines, its TLS. A request looks
//! at those of its moment. What is not here, or behind a [`crate::bound::Bound`], stays as it was at the start.

use crate::config::{Limits, NodeConfig, ReportConfig};
use crate::edge::Edge;
use arc_swap::{ArcSwap, Guard};
use larder_edge::{EntryRules, PURGE_PATH, Tokens};
use std::sync::Arc;
use tokio::sync::Notify;

/// The settings in force.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    pub(crate) edge: Edge,
    pub(crate) report: ReportConfig,
    pub(crate) entry: EntryRules,
    /// Tokens of those that may purge; `None`: nobody may.
    pub(crate) purge: Option<Tokens>,
    health_path: Option<String>,
    stats_path: Option<String>,
}

/// The paths that the node answers for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// Whether it takes requests.
    Health,
    /// Its numbers.
    Stats,
    /// Reports to switches.
    Report,
    /// Purges of switches.
    Purge,
}

impl Terms {
    /// Takes the terms from a configuration that has been checked, with this edge.
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

    /// Returns the node's own path that this is, if it is one.
    pub(crate) fn own(&self, path: &str) -> Option<Own> {
        if self.health_path.as_deref() == Some(path) {
            return Some(Own::Health);
        }
        if self.stats_path.as_deref() == Some(path) {
            return Some(Own::Stats);
        }
        if path == PURGE_PATH {
            return Some(Own::Purge);
        }
        self.report.has(path).then_some(Own::Report)
    }
}

/// The terms of a node that runs.
#[derive(Debug)]
pub(crate) struct CurrentTerms {
    terms: ArcSwap<Terms>,
    /// The terms are others than they were.
    changed: Notify,
}

impl CurrentTerms {
    pub(crate) fn new(terms: Terms) -> Self {
        Self { terms: ArcSwap::from_pointee(terms), changed: Notify::new() }
    }

    /// The terms in force at this moment. Not to be held while something is waited for.
    pub(crate) fn load(&self) -> Guard<Arc<Terms>> {
        self.terms.load()
    }

    /// The terms in force at this moment, to be held.
    pub(crate) fn load_full(&self) -> Arc<Terms> {
        self.terms.load_full()
    }

    /// Puts other terms in force.
    pub(crate) fn replace(&self, terms: Terms) {
        self.terms.store(Arc::new(terms));
        self.changed.notify_one();
    }

    /// Looks at the files of the certificates in force now and then, for ever; returns where there is no TLS.
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
