//! The messages that nodes send over the control channel.

use super::config::Handshake;
use super::edge::Edge;
use super::fabric::{Fabric as _, Way};
use super::lock::lock;
use super::parts::State;
use super::peers::{COOKIE, LATERAL, LINKED, REPAIR, UP};
use crate::node::NodeShutdown;
use larder_core::handoff::Input;
use larder_core::{NodeId, NodeState};
use larder_handoff::channel::client::{Event, What};
use larder_handoff::channel::message::{Accepted, FromNode, Handoff, Live, Socket, ToNode, Welcome};
use larder_kernel::FlowKey;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;

impl Edge {
    /// Handles the messages of nodes until the edge ends.
    pub(super) async fn hear(self: Arc<Self>, mut events: mpsc::Receiver<Event>) {
        while let Some(Event { node, session, what }) = events.recv().await {
            let node = NodeId(node);
            match what {
                What::Up(welcome) => self.node_up((node, session), welcome).await,
                What::Down(error) => self.node_down(node, &error.to_string()),
                What::Message(FromNode::Live(live)) => self.node_lives(node, live).await,
                What::Message(message) => self.node_says(node, message),
            }
        }
    }

    async fn node_up(self: &Arc<Self>, (node, session): (NodeId, u64), welcome: Box<Welcome>) {
        let Some(slot) = self.peers.slot(node) else { return };
        let name = self.decider.nodes.get(node).map(|node| node.name.clone());
        // The way through a tunnel is asked for, and the answer may take a moment.
        let (edge, mac) = (self.clone(), welcome.mac);
        *lock(&slot.mac) = mac;
        let linked = tokio::task::spawn_blocking(move || edge.link(node, mac)).await.unwrap_or(false);
        let bit = |bit: u8, holds: bool| if holds { bit } else { 0 };
        slot.session.store(session, Relaxed);
        // Before the node gets connections. Its answer says which connections are there, and so which are not.
        self.act(Input::Up { node });
        slot.able.store(bit(COOKIE, welcome.cookie) | bit(REPAIR, welcome.repair), Relaxed);
        slot.bits.store(UP | bit(LINKED, linked) | bit(LATERAL, welcome.lateral), Relaxed);
        self.accepted(node, &welcome.accepted);
        self.set_shutdown(node, |_| NodeShutdown::None);
        let bits = slot.bits.load(Relaxed);
        tracing::info!(
            node = name.as_deref(),
            agent = welcome.name,
            cookie = bits & COOKIE != 0,
            repair = bits & REPAIR != 0,
            linked,
            "control channel: up"
        );
        if !welcome.accepted.keys {
            tracing::error!(
                node = name.as_deref(),
                "the node believes cookies of another switch: give all switches of a node one `secret`. It is relayed"
            );
        }
        let before = slot.incarnation.swap(welcome.incarnation, Relaxed);
        if before != 0 && before != welcome.incarnation {
            tracing::info!(node = name.as_deref(), "control channel: the node was restarted");
        }
    }

    /// Notes whether a node has accepted the last state that it was sent. While it has, it takes connections in every way that its host can.
    pub(super) fn accepted(&self, node: NodeId, accepted: &Accepted) {
        let Some(slot) = self.peers.slot(node) else { return };
        // If the stack answers SYNs, there is no cookie of this switch.
        let mixed = accepted.mixed && self.config.handshake == Handshake::Plane;
        if mixed {
            tracing::error!(
                node = node.index(),
                "another switch hands over to the node by `cookie` at this listen address, with the same `secret`, and this one \
                 by `repair`: give both one `mechanism`, or `secret`s of their own. It is relayed"
            );
        }
        if takes(accepted, self.services.len()) && !mixed {
            slot.bits.fetch_or(slot.able.load(Relaxed), Relaxed);
        } else {
            slot.bits.fetch_and(!(COOKIE | REPAIR), Relaxed);
        }
    }

    fn link(&self, node: NodeId, mac: Option<[u8; 6]>) -> bool {
        let Some(entry) = self.decider.nodes.get(node) else { return false };
        let way = Way { mac, address: entry.resolved.ip(), tag: self.peers.tag_of(node) };
        match self.fabric.set_link(node, &way, self.config.forward) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(node = &*entry.name, %error, "handoff: no route to the node, its requests are relayed");
                false
            }
        }
    }

    /// A node has a tag from now on.
    pub(super) fn give_tag(self: &Arc<Self>, node: NodeId, tag: u8) {
        let Some(slot) = self.peers.slot(node) else { return };
        slot.tag.store(tag, Relaxed);
        if let Some(channel) = &*lock(&slot.channel) {
            channel.set_tag(tag);
        }
        if slot.bits.load(Relaxed) & LINKED != 0 {
            // The plane knows it a moment later than the node at worst: meanwhile it goes by the table.
            let (edge, mac) = (self.clone(), *lock(&slot.mac));
            tokio::task::spawn_blocking(move || edge.link(node, mac));
        }
    }

    pub(super) fn node_down(&self, node: NodeId, reason: &str) {
        if let Some(slot) = self.peers.slot(node) {
            slot.bits.fetch_and(!UP, Relaxed);
        }
        self.act(Input::Down { node });
        self.set_shutdown(
            node,
            |shutdown| if shutdown == NodeShutdown::None { shutdown } else { NodeShutdown::Ended },
        );
        let name = self.decider.nodes.get(node).map(|node| node.name.clone());
        tracing::warn!(node = name.as_deref(), reason, "control channel: down");
    }

    /// A node says that it ends: neither the dispatcher nor the plane by itself sends it anything new. Then it is told so.
    pub(super) fn node_ends(&self, node: NodeId) {
        self.set_shutdown(node, |_| NodeShutdown::Draining);
        self.set_gates();
        // A channel that is down says the same.
        let _ = self.peers.send(node, &ToNode::Noted);
    }

    fn set_shutdown(&self, node: NodeId, change: impl FnOnce(NodeShutdown) -> NodeShutdown) {
        if let Some(node) = self.decider.nodes.get(node) {
            self.decider.change_condition(&node, "the node itself", |condition| {
                condition.shutdown = change(condition.shutdown)
            });
        }
    }

    pub(super) fn node_says(self: &Arc<Self>, node: NodeId, message: FromNode) {
        match message {
            FromNode::Closed(connections) => {
                // What the plane has opened by itself before it ended there.
                self.drain();
                for socket in connections {
                    let (key, first_seq) = (socket.connection.into(), socket.first_seq);
                    self.act(Input::Closed { node, key, first_seq });
                }
            }
            FromNode::Accepted(accepted) => self.accepted(node, &accepted),
            FromNode::Restored { ids } => {
                for id in ids {
                    self.act(Input::Restored { node, id });
                }
            }
            FromNode::Refused { id, why, detail } => {
                self.act(Input::Refused { node, id, why: format!("{why:?}: {detail}") });
            }
            FromNode::Where(question) => self.tell_where(node, &question),
            FromNode::Leave(connection) => drop(self.act(Input::Leave { node, key: connection.into() })),
            FromNode::Move(handoff) => {
                let Handoff { connection, first_seq, checkpoint, request, .. } = handoff;
                let state = State { checkpoint: checkpoint.0, unread: request.0 };
                self.act(Input::GivenUp { node, key: connection.into(), first_seq, state });
            }
            FromNode::Ending => self.node_ends(node),
            FromNode::Stay(connection) => drop(self.act(Input::Stay { node, key: connection.into() })),
            // Lists are worked through by themselves.
            FromNode::Live(_) | FromNode::Load(_) | FromNode::Welcome(_) | FromNode::Pong(_) => {}
        }
    }

    /// A piece of what a node's connections are.
    pub(super) async fn node_lives(&self, node: NodeId, live: Live) {
        let named = |socket: Socket| (FlowKey::from(socket.connection), socket.first_seq);
        let connections = live.connections.into_iter().map(named).collect();
        self.act(Input::Named { node, connections, last: live.last });
        while lock(&self.machine).has_lists() {
            self.act(Input::Judge);
            // Others have their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Whether a node is dead: it neither answers nor is its channel up.
    pub(super) fn is_dead(&self, node: NodeId) -> bool {
        !self.peers.capability(node).up && self.decider.dispatcher.nodes().state(node) == NodeState::Down
    }
}

/// Whether a node serves all our listen addresses, believes our keys and unwraps our packets.
fn takes(accepted: &Accepted, services: usize) -> bool {
    accepted.keys && accepted.tunnel && accepted.services.len() >= services
}
