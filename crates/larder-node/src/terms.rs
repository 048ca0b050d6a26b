//! What a node goes by that may change while it runs, in one place.
//!
//! A connection takes the terms that are in force when it begins and keeps them: its limits, its deadlines, its TLS. A request looks
//! at those of its moment. What is not here, or behind a [`crate::bound::Bound`], stays as it was at the start.

use crate::body::streams_max;
use crate::config::{Limits, NodeConfig, ReportConfig, StoreConfig};
use crate::cooperate::PeersMemory;
use crate::edge::Edge;
use crate::node::{Node, NodeError};
use crate::store::Store;
use arc_swap::Guard;
use larder_core::Bytes;
use larder_edge::{Announcers, EntryRules, PURGE_PATH, Tokens};
use std::sync::{Arc, PoisonError};

/// What is in force.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) limits: Limits,
    pub(crate) edge: Edge,
    pub(crate) report: ReportConfig,
    pub(crate) entry: EntryRules,
    /// Tokens of those that may purge; `None`: nobody may.
    pub(crate) purge: Option<Tokens>,
    pub(crate) object_max: u64,
    pub(crate) revalidate_ms: u64,
    health_path: Option<String>,
    stats_path: Option<String>,
}

/// What the node answers for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// Whether it takes requests.
    Health,
    /// Its numbers.
    Stats,
    /// What switches are told.
    Report,
    /// Purges of switches.
    Purge,
}

impl Terms {
    /// Those of a configuration that has been checked, with this edge.
    pub(crate) fn new(config: &NodeConfig, edge: Edge) -> Self {
        Self {
            limits: config.limits,
            edge,
            report: config.report.clone(),
            entry: config.entry.clone(),
            purge: config.purge.clone(),
            object_max: config.cache.object_max.0,
            revalidate_ms: u64::try_from(config.revalidate.as_millis()).unwrap_or(u64::MAX),
            health_path: config.health_path.clone(),
            stats_path: config.stats_path.clone(),
        }
    }

    /// What a path is, if the node keeps it for itself.
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

impl Node {
    /// What is in force at this moment. Not to be held while something is waited for.
    pub(crate) fn terms(&self) -> Guard<Arc<Terms>> {
        self.terms.load()
    }

    /// Goes by another configuration from now on, in what may change while the node runs: limits, the memory's size and what it keeps,
    /// TLS and who announces clients, the node's own paths and reports, the access log, who may purge, and how an origin is asked. All else is to be as it was, and
    /// is not looked at. Connections and requests that have begun go on as they were. `peers`: what nodes that cooperate go by.
    ///
    /// Reads certificates anew. Blocks while it does, and while a memory that shrinks lets go of what it has no room for. To be called
    /// within the runtime.
    ///
    /// # Errors
    /// If a value is out of range, a certificate or the access log cannot be used, or the node ends: then nothing has changed.
    pub fn change(&self, config: &NodeConfig, peers: Option<PeersMemory>) -> Result<(), NodeError> {
        config.check()?;
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.terms.load_full();
        let access = self.access.prepare(config.access_log.as_ref()).map_err(NodeError::AccessLog)?;
        let edge = before.edge.successor(config.tls.clone(), Announcers(config.announcers.clone()))?;
        let limits = &config.limits;
        {
            // A node that ends waits for as many connections as there may be: that must not change any more.
            let ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
            if *ending {
                return Err(NodeError::Ending);
            }
            self.terms.store(Arc::new(Terms::new(config, edge)));
            self.places.set(limits.connections_max as usize);
        }
        self.access.change(access);
        self.changed.notify_one();
        self.http2_memory.resize(limits.http2_bytes_max);
        self.stats_at_once.set(limits.reads_max);
        self.memory.set_reads_max(limits.reads_max);
        self.machine.set_reads_at_once(&self.store, limits.reads_at_once);
        self.streams.set(streams_max(&config.cache));
        if let (Store::Origin(origin), StoreConfig::Origin(config)) = (&self.store, &config.store) {
            origin.change((**config).clone());
        }
        self.resize(config.cache.bytes, peers);
        Ok(())
    }

    /// Looks at the files of the certificates in force now and then, for ever; returns where there is no TLS.
    pub(crate) async fn watch_certificates(self: Arc<Self>) {
        loop {
            let Some(tls) = self.terms().edge.tls.clone() else { return };
            tokio::select! {
                () = tls.watch() => {}
                () = self.changed.notified() => {}
            }
        }
    }

    /// The memory has this size from now on, and the peers go by theirs. A node that ends leaves it as it is.
    fn resize(&self, bytes: Bytes, peers: Option<PeersMemory>) {
        if let Some((cooperation, peers)) = self.cooperation.get().zip(peers) {
            cooperation.resized(peers);
        }
        while self.memory.step_to(bytes) != bytes && !self.is_ending() {
            std::thread::yield_now();
        }
    }

    pub(crate) fn is_ending(&self) -> bool {
        *self.ending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on there may be no more connections than the number given, and none fewer.
    pub(crate) fn begin_to_end(&self) -> u32 {
        let mut ending = self.ending.lock().unwrap_or_else(PoisonError::into_inner);
        *ending = true;
        self.set_draining(true);
        self.terms().limits.connections_max
    }
}
