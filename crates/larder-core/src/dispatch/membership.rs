//! Changes of membership: nodes join, leave, fail and recover, and their configuration changes.

use super::{Change, DequeuedRequest, Dispatcher};
use crate::id::NodeId;
use crate::nodes::{JoinError, NodeSpec, NodeState, Weight};
use crate::read_source::ReadSource;
use crate::time::Time;
use alloc::vec::Vec;

impl Dispatcher {
    /// Adds a node to the running cluster. No target is reassigned to it. The admission limit grows at once, and new
    /// targets come to the node at the join pace until it is warm.
    ///
    /// # Errors
    /// The table is full, or the name is empty or taken.
    pub fn join(
        &self,
        now: Time,
        spec: NodeSpec,
        started: &mut Vec<DequeuedRequest>,
    ) -> Result<NodeId, JoinError> {
        self.join_as(now, spec, |_| {}, started)
    }

    /// Adds a node like [`Dispatcher::join`], and calls `claim` with the node's slot before any request can be sent
    /// there. `claim` must not call the dispatcher.
    ///
    /// # Errors
    /// As [`Dispatcher::join`]; `claim` is not called then.
    pub fn join_as(
        &self,
        now: Time,
        spec: NodeSpec,
        claim: impl FnOnce(NodeId),
        started: &mut Vec<DequeuedRequest>,
    ) -> Result<NodeId, JoinError> {
        let told = spec.clone();
        let act = |source: ReadSource<'_>| self.nodes.join(now, spec, false, source, claim);
        let node = self.change(now, || Change::Join(told), act)?;
        self.refresh_admission(now, started);
        Ok(node)
    }

    /// Changes a node's state: it fails (`Down`), drains, leaves (`Removed`) or recovers (`Up`). A node that stops
    /// taking requests loses its targets, which count as never assigned. Its requests in flight continue. If no node
    /// is left, queued requests are refused.
    ///
    /// Returns false if there is no such node, the node was removed, or it is already in this state.
    pub fn set_state(
        &self,
        now: Time,
        node: NodeId,
        state: NodeState,
        started: &mut Vec<DequeuedRequest>,
    ) -> bool {
        let act = |_: ReadSource<'_>| self.nodes.set_state(node, state).then_some(node).ok_or(());
        let changed = self.change(now, || Change::State(node, state), act).is_ok();
        if changed {
            self.refresh_admission(now, started);
        }
        changed
    }

    /// Marks a node as failed; see [`Dispatcher::set_state`].
    pub fn fail(&self, now: Time, node: NodeId, started: &mut Vec<DequeuedRequest>) -> bool {
        self.set_state(now, node, NodeState::Down, started)
    }

    /// Marks a node as up again; see [`Dispatcher::set_state`].
    pub fn recover(&self, now: Time, node: NodeId, started: &mut Vec<DequeuedRequest>) -> bool {
        self.set_state(now, node, NodeState::Up, started)
    }

    /// Drains a node; see [`Dispatcher::set_state`].
    pub fn drain(&self, now: Time, node: NodeId, started: &mut Vec<DequeuedRequest>) -> bool {
        self.set_state(now, node, NodeState::Draining, started)
    }

    /// Removes a node permanently; see [`Dispatcher::set_state`].
    pub fn leave(&self, now: Time, node: NodeId, started: &mut Vec<DequeuedRequest>) -> bool {
        self.set_state(now, node, NodeState::Removed, started)
    }

    /// Sets a node's weight. Returns false if there is no such node.
    pub fn reweigh(
        &self,
        now: Time,
        node: NodeId,
        weight: Weight,
        started: &mut Vec<DequeuedRequest>,
    ) -> bool {
        let act = |_: ReadSource<'_>| self.nodes.set_weight(node, weight).then_some(node).ok_or(());
        let known = self.change(now, || Change::Reweigh(node, weight), act).is_ok();
        if known {
            self.refresh_admission(now, started);
        }
        known
    }

    /// Makes a node a backup, or an ordinary node. Its requests in flight continue. Returns false if there is no
    /// such node.
    pub fn set_backup(
        &self,
        now: Time,
        node: NodeId,
        backup: bool,
        started: &mut Vec<DequeuedRequest>,
    ) -> bool {
        let act = |_: ReadSource<'_>| self.nodes.set_backup(node, backup).then_some(node).ok_or(());
        let known = self.change(now, || Change::Backup(node, backup), act).is_ok();
        if known {
            self.refresh_admission(now, started);
        }
        known
    }
}
