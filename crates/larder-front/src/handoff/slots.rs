//! Nodes by their places: the plane knows a node by the number of its place alone.
//!
//! A node that leaves takes nothing new from that moment on, and finishes what it has: its channel and the way to it stay
//! until then, or until nothing has been heard from it for a while.

use super::edge::{Edge, lock};
use super::peers::Left;
use crate::switch::Shared;
use larder_core::{NodeId, Time};
use larder_handoff::FlowKey;
use larder_handoff::abi::{flow_flag, flow_state};
use std::collections::HashSet;
use std::time::Duration;

/// How long the channel of a node that has left may be down until its clients are told that it is gone.
const SILENT_FOR: Duration = Duration::from_secs(10);

impl Edge {
    /// A node has left.
    pub(crate) fn node_leaves(&self, node: NodeId) {
        // At once: the dispatcher's rows, by which gates are set, have it no more.
        self.fabric.set_gate(Some(node), 1, false);
        self.peers.with_left(node, |left| *left = Some(Left::default()));
    }

    /// Closes the ways to nodes that have left and have nothing any more.
    pub(super) fn sweep_left(&self, shared: &Shared, now: Time) {
        for node in self.peers.leaving() {
            // A gate that was being set when it left may have been opened after that.
            self.fabric.set_gate(Some(node), 1, false);
            let up = self.peers.capability(node).up;
            let silent = self.peers.with_left(node, |left| {
                let left = left.as_mut()?;
                left.silent = if up { None } else { left.silent.or(Some(now)) };
                left.silent
            });
            let gone = silent.flatten().is_some_and(|since| now.since(since) >= SILENT_FOR);
            let keys = self.under_way(node);
            if gone || keys.is_empty() {
                keys.into_iter().for_each(|key| self.lose(shared, key));
                self.close_way(node);
            }
        }
    }

    /// The connections that a node has: also those that count for nobody, as those of a predecessor that rest.
    fn under_way(&self, node: NodeId) -> Vec<FlowKey> {
        let mut keys: HashSet<FlowKey> = lock(&self.table).of_node(node).into_iter().collect();
        self.fabric.each_flow(&mut |key, flow| {
            let ended = flow.flags & (flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST) != 0;
            if flow.state == flow_state::NODE && flow.node == node.0 && !ended {
                keys.insert(key);
            }
        });
        keys.into_iter().collect()
    }

    /// Nothing is sent to a place any more.
    fn close_way(&self, node: NodeId) {
        self.peers.unwatch(node);
        if let Err(error) = self.fabric.close_link(node) {
            tracing::warn!(%error, node = node.index(), "the way to a node that has left could not be closed");
        }
    }
}
