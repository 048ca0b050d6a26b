//! Nodes come and go, fail and recover, and are configured anew.

use super::{Change, Dispatcher, Started};
use crate::id::NodeId;
use crate::nodes::{JoinError, NodeSpec, NodeState, Weight};
use crate::source::Source;
use crate::time::Time;

impl Dispatcher {
    /// A node joins the running cluster. Nothing is reassigned to it; the admission limit grows at once, and new
    /// targets come to it at the join pace until it is warm.
    ///
    /// # Errors
    /// The table is full, or the name is empty or taken.
    pub fn join(&self, now: Time, spec: NodeSpec, started: &mut Vec<Started>) -> Result<NodeId, JoinError> {
        self.join_as(now, spec, |_| {}, started)
    }

    /// Like [`Dispatcher::join`]; `claim` is told the node's slot before any request can be sent there. It must not
    /// call the dispatcher.
    ///
    /// # Errors
    /// As [`Dispatcher::join`]; `claim` is not called then.
    pub fn join_as(
        &self,
        now: Time,
        spec: NodeSpec,
        claim: impl FnOnce(NodeId),
        started: &mut Vec<Started>,
    ) -> Result<NodeId, JoinError> {
        let told = spec.clone();
        let act = |source: Source<'_>| self.nodes.join(now, spec, false, source, claim);
        let node = self.change(now, || Change::Join(told), act)?;
        self.refit(now, started);
        Ok(node)
    }

    /// A node changes its state: it fails (`Down`), drains, leaves (`Removed`) or recovers (`Up`). A node that stops
    /// taking requests loses its targets: they count as never assigned. Requests in flight there go on; when no node
    /// is left, waiting requests are refused. False if there is no such node, it was removed, or is in that state.
    pub fn set_state(&self, now: Time, node: NodeId, state: NodeState, started: &mut Vec<Started>) -> bool {
        let act = |_: Source<'_>| self.nodes.set_state(node, state).then_some(node).ok_or(());
        let changed = self.change(now, || Change::State(node, state), act).is_ok();
        if changed {
            self.refit(now, started);
        }
        changed
    }

    /// A node fails; see [`Dispatcher::set_state`].
    pub fn fail(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Down, started)
    }

    /// A node takes requests again; see [`Dispatcher::set_state`].
    pub fn recover(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Up, started)
    }

    /// A node drains; see [`Dispatcher::set_state`].
    pub fn drain(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Draining, started)
    }

    /// A node leaves for good; see [`Dispatcher::set_state`].
    pub fn leave(&self, now: Time, node: NodeId, started: &mut Vec<Started>) -> bool {
        self.set_state(now, node, NodeState::Removed, started)
    }

    /// A node gets another weight. False if there is no such node.
    pub fn reweigh(&self, now: Time, node: NodeId, weight: Weight, started: &mut Vec<Started>) -> bool {
        let act = |_: Source<'_>| self.nodes.set_weight(node, weight).then_some(node).ok_or(());
        let known = self.change(now, || Change::Reweigh(node, weight), act).is_ok();
        if known {
            self.refit(now, started);
        }
        known
    }

    /// A node becomes a backup, or an ordinary node. Requests in flight there go on. False if there is no such node.
    pub fn set_backup(&self, now: Time, node: NodeId, backup: bool, started: &mut Vec<Started>) -> bool {
        let act = |_: Source<'_>| self.nodes.set_backup(node, backup).then_some(node).ok_or(());
        let known = self.change(now, || Change::Backup(node, backup), act).is_ok();
        if known {
            self.refit(now, started);
        }
        known
    }
}
