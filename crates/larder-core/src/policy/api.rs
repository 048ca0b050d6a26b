//! The interface of a policy.

use super::choice::Choice;
use super::feedback::{CacheEvent, ReplyFeedback};
use super::learned_state::LearnedState;
use super::request::Request;
use super::table::RouteTable;
use super::target_servers::TargetServers;
use super::targets::TargetMap;
use crate::id::{NodeId, TargetId};
use crate::nodes::{ClusterView, LoadReport};
use crate::time::Time;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

/// The interface that every policy implements.
pub(crate) trait Policy: Send + Sync + fmt::Debug {
    /// Chooses a node, counts the request there ([`ClusterView::start`]) and stores the choice if the policy has
    /// state. `None`, and nothing is counted, if no node can be used.
    ///
    /// A policy that checks the load of the node it is about to choose counts first and checks the load before. The
    /// load's cache line then moves between processors once, not twice.
    fn pick(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice>;

    /// Returns the answer that [`Policy::pick`] would give. Counts and stores nothing.
    fn peek(&self, now: Time, request: &Request, nodes: ClusterView<'_>) -> Option<Choice>;

    /// Returns the stored servers of a target. `None` if the policy stores no targets or does not know this one.
    fn known(&self, _target: TargetId, _nodes: ClusterView<'_>) -> Option<TargetServers> {
        None
    }

    /// Applies a change in the cache of a node that takes requests. Returns false if the policy does not mirror
    /// caches.
    fn cache_event(
        &self,
        _now: Time,
        _node: NodeId,
        _target: TargetId,
        _event: CacheEvent,
        _nodes: ClusterView<'_>,
    ) -> bool {
        false
    }

    /// Learns from the result of a request that was sent to `node`. Learned values must be read through
    /// [`ClusterView::learned`], so that a decision can be replayed.
    fn on_reply(
        &self,
        _now: Time,
        _request: &Request,
        _node: NodeId,
        _served: &ReplyFeedback,
        _nodes: ClusterView<'_>,
    ) {
    }

    /// Learns that an attempt at `node` ended without a full reply: a reply would have taken longer than `waited`.
    /// Learned values are read as in [`Policy::on_reply`].
    fn on_failure(
        &self,
        _now: Time,
        _request: &Request,
        _node: NodeId,
        _waited: Duration,
        _nodes: ClusterView<'_>,
    ) {
    }

    /// Applies a load report of a node that takes requests. Called for every report, in the order of changes, and
    /// again during a replay. Decisions may therefore read directly a value that depends on reports alone. A value
    /// that depends on loads too is a learned value, as in [`Policy::on_reply`].
    fn on_report(&self, _now: Time, _node: NodeId, _report: &LoadReport, _nodes: ClusterView<'_>) {}

    /// Returns T_low and T_high in connections if the policy uses them; they may change. Not for decisions: the
    /// admission limit follows them.
    fn thresholds(&self) -> Option<(u32, u32)> {
        None
    }

    /// Returns the target map of the policy, whose changes switches exchange. `None` for a policy that places
    /// without stored targets, or by reports of the nodes.
    fn sets(&self) -> Option<&TargetMap> {
        None
    }

    /// Sets another routing table. Returns false if the policy uses none.
    fn set_table(&self, _table: Arc<RouteTable>) -> bool {
        false
    }

    /// Returns the number of stored targets.
    fn targets(&self) -> usize {
        0
    }

    /// Returns the learned state. Another instance of the policy that restores it decides like this one.
    fn learned_state(&self, _nodes: ClusterView<'_>) -> LearnedState {
        LearnedState::default()
    }

    /// Restores learned state before the first decision. The numbers may come from another version; invalid ones are
    /// ignored. Node ids are those of this dispatcher.
    fn restore(&self, _memory: &LearnedState, _nodes: ClusterView<'_>) {}
}
