//! Slots of nodes: the plane knows a node only by the number of its slot.
//!
//! Slots outlive the process. The owners of slots are pinned in the kernel beside the connections
//! ([`Edge::reconcile_slots`]). A node that leaves gets no new connections and finishes the ones it has. Its channel
//! and its link stay until then, or until the node has been silent for a while.

use super::channels::{Departure, tag};
use super::datapath::{Datapath as _, Destination};
use super::edge::Edge;
use crate::lock::lock;
use crate::node::Node;
use larder_core::handoff::Input;
use larder_core::{NodeId, Time};
use larder_kernel::FlowKey;
use larder_kernel::abi::{flow_flag, flow_state};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

/// Time that the channel of a departed node may be down before its clients are reset.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// Time without a tag for a slot that has changed its node. With a tag, packets of the old node's forgotten
/// connections would go to the new node.
const TAG_REST: Duration = Duration::from_secs(3_600);

/// Key of a node that accepts no handoffs.
const NO_KEY: [u8; 32] = [0; 32];

/// Returns the key that a node must prove; zeros if it accepts no handoffs.
pub(crate) fn node_key(node: &Node) -> [u8; 32] {
    node.handoff.as_ref().map_or(NO_KEY, |handoff| handoff.key.0)
}

impl Edge {
    /// Assigns the connections of an earlier process to the nodes that have them, whatever the order of the nodes in
    /// the config. Connections of nodes that are gone and whose slots are reused are reset. Must be called before the
    /// first decision.
    pub(crate) fn reconcile_slots(&self, keys: &HashMap<NodeId, [u8; 32]>) {
        let slot_of =
            |key: [u8; 32]| keys.iter().find(|(_, own)| key != NO_KEY && **own == key).map(|(id, _)| *id);
        let mut moved = HashMap::new();
        for index in 0..self.channels.capacity() {
            let slot = NodeId(index);
            let Some(owner) = self.datapath.owner(slot) else { break };
            let taken = keys.get(&slot).is_some_and(|key| *key != owner.key);
            let elsewhere = slot_of(owner.key).filter(|now| *now != slot);
            if taken || elsewhere.is_some() {
                moved.insert(slot, elsewhere);
            }
        }
        self.clear_slots(&moved);
        for (slot, key) in keys {
            self.set_owner(*slot, *key);
        }
    }

    /// Assigns a slot to a node and removes the connections of an earlier node.
    pub(super) fn assign_slot(&self, slot: NodeId, node: &Node) {
        let key = node_key(node);
        if self.datapath.owner(slot).is_some_and(|owner| owner.key != key) {
            self.clear_slots(&HashMap::from([(slot, None)]));
            self.set_owner(slot, key);
        }
        self.channels.set_tag(slot, if self.tag_is_resting(slot) { 0 } else { tag(slot) });
    }

    fn tag_is_resting(&self, slot: NodeId) -> bool {
        self.datapath.owner(slot).and_then(|owner| owner.since).is_some_and(|since| since < TAG_REST)
    }

    /// Restores the tags of slots that have rested long enough.
    pub(super) fn restore_tags(self: &Arc<Self>) {
        for row in self.decider.dispatcher.nodes().rows() {
            let own = tag(row.id);
            let takes = self.decider.nodes.get(row.id).is_some_and(|node| node.handoff.is_some());
            if takes && own != 0 && self.channels.tag_of(row.id) == 0 && !self.tag_is_resting(row.id) {
                self.set_node_tag(row.id, own);
            }
        }
    }

    /// Stores the owner of a slot.
    fn set_owner(&self, slot: NodeId, key: [u8; 32]) {
        if let Some(owner) = self.datapath.owner(slot).filter(|owner| owner.key != key) {
            self.datapath.set_owner(slot, key, owner.key != NO_KEY || owner.since.is_some());
        }
    }

    /// Clears slots: their connections follow their nodes to other slots, or are reset.
    fn clear_slots(&self, moved: &HashMap<NodeId, Option<NodeId>>) {
        // The old and new links are closed first, so that no packet reaches the wrong node. They are opened when the
        // channels are up.
        for slot in moved.keys().chain(moved.values().flatten()) {
            if let Err(error) = self.datapath.close_link(*slot) {
                tracing::warn!(%error, node = slot.index(), "forwarding plane: link to the node not closed");
            }
        }
        let mut flows = Vec::new();
        self.datapath.each_flow(&mut |key, flow| {
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
                Some(node) => self.datapath.put_flow(key, Destination::Node(node)),
                None => self.datapath.reset_client(key),
            };
            if let Err(error) = done {
                tracing::debug!(%error, %key, "flow table: connection not moved to the node's entry");
            }
        }
    }

    /// Starts the departure of a node.
    pub(crate) fn node_left(&self, node: NodeId) {
        // The gate is closed at once, because the dispatcher's rows no longer contain the node.
        self.datapath.set_gate(Some(node), 1, false);
        self.channels.with_departure(node, |left| *left = Some(Departure::default()));
    }

    /// Closes the links to departed nodes without connections.
    pub(super) fn sweep_departed(&self, now: Time) {
        for node in self.channels.departing() {
            // A gate that was being set when the node left may have been opened afterwards.
            self.datapath.set_gate(Some(node), 1, false);
            let up = self.channels.capability(node).up;
            let silent = self.channels.with_departure(node, |left| {
                let left = left.as_mut()?;
                left.silent_since = if up { None } else { left.silent_since.or(Some(now)) };
                left.silent_since
            });
            let gone = silent.flatten().is_some_and(|since| now.since(since) >= SILENCE_MAX);
            let keys = self.connections_of(node);
            if gone || keys.is_empty() {
                for key in keys {
                    self.handle_input(Input::Lost { key });
                }
                self.close_node(node);
            }
        }
    }

    /// Returns the connections of a node, including idle ones that do not count.
    fn connections_of(&self, node: NodeId) -> Vec<FlowKey> {
        let mut keys: HashSet<FlowKey> = lock(&self.machine).of_node(node).into_iter().collect();
        self.datapath.each_flow(&mut |key, flow| {
            let ended = flow.flags & (flow_flag::CLIENT_FIN | flow_flag::CLIENT_RST) != 0;
            if flow.state == flow_state::NODE && flow.node == node.0 && !ended {
                keys.insert(key);
            }
        });
        keys.into_iter().collect()
    }

    /// Closes the channel and the link of a slot.
    fn close_node(&self, node: NodeId) {
        self.channels.disconnect(node);
        if let Err(error) = self.datapath.close_link(node) {
            tracing::warn!(%error, node = node.index(), "forwarding plane: link to the node not closed");
        }
    }
}
