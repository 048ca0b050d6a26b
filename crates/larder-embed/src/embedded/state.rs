//! Explanations, the status, and snapshots of the learned state.

use super::Embedded;
use crate::error::EmbedError;
use crate::types::RequestFacts;
use larder_core::dispatch::CacheResult;
use larder_core::policy::LearnedState;
use larder_core::{NodeId, RouteId, Snapshot, Time};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};

/// The name of the only route in a snapshot.
const ROUTE: &str = "default";

/// Counters of a node's finished requests.
#[derive(Debug, Default)]
pub(super) struct Counts {
    replies: AtomicU64,
    failures: AtomicU64,
    bytes: AtomicU64,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Counts {
    pub(super) fn reply(&self, bytes: u64, found: Option<CacheResult>) {
        self.replies.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        match found {
            Some(CacheResult::Hit) => self.hits.fetch_add(1, Ordering::Relaxed),
            Some(CacheResult::Miss) => self.misses.fetch_add(1, Ordering::Relaxed),
            None => 0,
        };
    }

    pub(super) fn fail(&self) {
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn clear(&self) {
        let Self { replies, failures, bytes, hits, misses } = self;
        [replies, failures, bytes, hits, misses].iter().for_each(|count| count.store(0, Ordering::Relaxed));
    }
}

impl Embedded {
    /// Returns the decision that [`Embedded::decide`] would make now, with the servers that the policy has stored for the target, as a
    /// JSON object. Changes nothing.
    ///
    /// # Errors
    /// As [`Embedded::decide`].
    pub fn explain(&self, now: Time, facts: &RequestFacts<'_>) -> Result<Value, EmbedError> {
        let request = self.request(facts)?;
        let explanation = self.dispatcher.explain_request(now, &request);
        let nodes = self.dispatcher.nodes();
        let name = |node: NodeId| nodes.name(node).to_string();
        let known = explanation.known;
        let servers: Vec<String> =
            known.iter().flat_map(|known| &known.servers).map(|node| name(*node)).collect();
        let unchanged = known.as_ref().and_then(|known| known.changed).map(|at| now.since(at).as_secs_f64());
        Ok(json!({
            "id": explanation.target.to_string(),
            "policy": explanation.policy.name(),
            "class": request.class.name(),
            "known": known.is_some(),
            "servers": servers,
            "unchanged_for_s": unchanged,
            "node": explanation.decision.map(|decision| name(decision.node)),
            "reason": explanation.decision.map(|decision| decision.reason.name()),
        }))
    }

    /// Returns the state of the dispatcher and its nodes, as a JSON object.
    pub fn status(&self, now: Time) -> Value {
        let dispatcher = &self.dispatcher;
        let limit = dispatcher.admission_limit();
        let (t_low, t_high) = dispatcher.thresholds_of(RouteId::DEFAULT);
        json!({
            "policy": dispatcher.settings().policy.name(),
            "mirrors_caches": dispatcher.mirrors_caches(),
            "outstanding": dispatcher.outstanding(),
            "admission_limit": (limit < u32::MAX).then_some(limit),
            "t_low": t_low,
            "t_high": t_high,
            "targets": dispatcher.targets_known(),
            "nodes": dispatcher.nodes().rows().iter().map(|row| self.node_status(now, row)).collect::<Vec<_>>(),
        })
    }

    fn node_status(&self, now: Time, row: &larder_core::NodeRow) -> Value {
        let Counts { replies, failures, bytes, hits, misses } = &self.slots[row.id.index()].counts;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "id": self.id(row.id).get(),
            "name": &*row.name,
            "state": row.state.to_string(),
            "backup": row.backup,
            "standby": row.standby,
            "joining": row.joining,
            "weight": f64::from(row.weight.milli()) / 1000.0,
            "load": row.load,
            "long_lived": row.long_lived,
            "report_age_s": row.report.map(|report| report.age(now).as_secs_f64()),
            "replies": count(replies),
            "failures": count(failures),
            "bytes": count(bytes),
            "hits": count(hits),
            "misses": count(misses),
        })
    }

    /// Returns a snapshot: the learned state, for [`Embedded::load`] in another process.
    pub fn save(&self) -> Vec<u8> {
        Snapshot::capture(&self.dispatcher, [(RouteId::DEFAULT, ROUTE)]).encode()
    }

    /// Restores a snapshot before the first decision, and returns the number of restored targets. Nodes are found by name, and nodes
    /// that are missing here are left out. The clocks of both processes must agree; if they may not, use [`Embedded::decode`] and
    /// [`LearnedState::not_after`].
    ///
    /// # Errors
    /// [`EmbedError::Snapshot`]: the bytes are not a snapshot of this version.
    pub fn load(&self, bytes: &[u8]) -> Result<u64, EmbedError> {
        Ok(self.restore(&self.decode(bytes)?))
    }

    /// Decodes a snapshot for [`Embedded::restore`]. Changes nothing. For programs in which decoding and restoring use different
    /// memory; others call [`Embedded::load`].
    ///
    /// # Errors
    /// As [`Embedded::load`].
    pub fn decode(&self, bytes: &[u8]) -> Result<LearnedState, EmbedError> {
        let snapshot = Snapshot::decode(bytes).map_err(EmbedError::Snapshot)?;
        Ok(snapshot.state_for(&self.dispatcher, RouteId::DEFAULT, ROUTE).unwrap_or_default())
    }

    /// Restores a decoded snapshot before the first decision, and returns the number of restored targets.
    pub fn restore(&self, learned: &LearnedState) -> u64 {
        self.dispatcher.restore(RouteId::DEFAULT, learned);
        learned.len() as u64
    }
}
