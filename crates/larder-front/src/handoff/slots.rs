//! Nodes by their places: the plane knows a node by the number of its place alone.
//!
//! Places outlive the process: whose they are is pinned beside the connections ([`Edge::settle_places`]). A node that
//! leaves takes nothing new from that moment on, and finishes what it has: its channel and the way to it stay
//! until then, or until nothing has been heard from it for a while.

use super::edge::Edge;
use super::fabric::{Fabric as _, To};
use super::lock::lock;
use super::peers::{Left, tag};
use crate::node::Node;
use larder_core::handoff::Input;
use larder_core::{NodeId, Time};
use larder_kernel::FlowKey;
use larder_kernel::abi::{flow_flag, flow_state};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// How long the channel of a node that has left may be down until its clients are told that it is gone.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// A place that has gone from one node to another has no tag for so long: by it packets of the old node's connections, where
/// the plane has forgotten them, would go to the new one.
const TAG_RESTS: Duration = Duration::from_secs(3_600);

/// The key of a node that takes no connections.
const NOBODY: [u8; 32] = [0; 32];

/// By which a node proves itself; zeros for one that takes no connections.
pub(crate) fn key_of(node: &Node) -> [u8; 32] {
    node.handoff.as_ref().map_or(NOBODY, |handoff| handoff.key.0)
}

impl Edge {
    /// Before anything is decided: connections of a predecessor go to the nodes that have them, in whatever order the
    /// config names these now. Those of nodes that are no more, whose places others have, are reset.
    pub(crate) fn settle_places(&self, keys: &HashMap<NodeId, [u8; 32]>) {
        let place_of =
            |key: [u8; 32]| keys.iter().find(|(_, own)| key != NOBODY && **own == key).map(|(id, _)| *id);
        let mut moved = HashMap::new();
        for index in 0..self.peers.places() {
            let place = NodeId(index);
            let Some(owner) = self.fabric.owner(place) else { break };
            let taken = keys.get(&place).is_some_and(|key| *key != owner.key);
            let elsewhere = place_of(owner.key).filter(|now| *now != place);
            if taken || elsewhere.is_some() {
                moved.insert(place, elsewhere);
            }
        }
        self.clear(&moved);
        for (place, key) in keys {
            self.own(*place, *key);
        }
    }

    /// A node has a place: what another has left there goes.
    pub(super) fn take_place(&self, place: NodeId, node: &Node) {
        let key = key_of(node);
        if self.fabric.owner(place).is_some_and(|owner| owner.key != key) {
            self.clear(&HashMap::from([(place, None)]));
            self.own(place, key);
        }
        self.peers.set_tag(place, if self.tag_rests(place) { 0 } else { tag(place) });
    }

    fn tag_rests(&self, place: NodeId) -> bool {
        self.fabric.owner(place).and_then(|owner| owner.since).is_some_and(|since| since < TAG_RESTS)
    }

    /// Nodes whose places' tags have rested long enough have them again.
    pub(super) fn wake_tags(self: &Arc<Self>) {
        for row in self.decider.dispatcher.nodes().rows() {
            let own = tag(row.id);
            let takes = self.decider.nodes.get(row.id).is_some_and(|node| node.handoff.is_some());
            if takes && own != 0 && self.peers.tag_of(row.id) == 0 && !self.tag_rests(row.id) {
                self.give_tag(row.id, own);
            }
        }
    }

    /// Notes whose a place is.
    fn own(&self, place: NodeId, key: [u8; 32]) {
        if let Some(owner) = self.fabric.owner(place).filter(|owner| owner.key != key) {
            self.fabric.set_owner(place, key, owner.key != NOBODY || owner.since.is_some());
        }
    }

    /// Empties places: their connections go with their nodes to other places, or are reset.
    fn clear(&self, moved: &HashMap<NodeId, Option<NodeId>>) {
        // The ways first, old and new: nothing may reach the wrong node. They are open again when the channels are up.
        for place in moved.keys().chain(moved.values().flatten()) {
            if let Err(error) = self.fabric.close_link(*place) {
                tracing::warn!(%error, node = place.index(), "the way to a node could not be closed");
            }
        }
        let mut flows = Vec::new();
        self.fabric.each_flow(&mut |key, flow| {
            if flow.state == flow_state::NODE
                && let Some(to) = moved.get(&NodeId(flow.node))
            {
                flows.push((key, *to));
            }
        });
        if !flows.is_empty() {
            tracing::info!(
                connections = flows.len(),
                "forwarding plane: connections follow their nodes to other entries"
            );
        }
        for (key, to) in flows {
            let done = match to {
                Some(node) => self.fabric.put_flow(key, To::Node(node)),
                None => self.fabric.reset_client(key),
            };
            if let Err(error) = done {
                tracing::debug!(%error, %key, "a connection could not follow its node");
            }
        }
    }

    /// A node has left.
    pub(crate) fn node_leaves(&self, node: NodeId) {
        // At once: the dispatcher's rows, by which gates are set, have it no more.
        self.fabric.set_gate(Some(node), 1, false);
        self.peers.with_left(node, |left| *left = Some(Left::default()));
    }

    /// Closes the ways to nodes that have left and have nothing any more.
    pub(super) fn sweep_left(&self, now: Time) {
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
                for key in keys {
                    self.act(Input::Lost { key });
                }
                self.close_way(node);
            }
        }
    }

    /// The connections that a node has: also those that count for nobody, as those of a predecessor that rest.
    fn under_way(&self, node: NodeId) -> Vec<FlowKey> {
        let mut keys: HashSet<FlowKey> = lock(&self.machine).of_node(node).into_iter().collect();
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
