//! Messages from nodes over the control channel.

use super::channels::{COOKIE, LATERAL, LINKED, REPAIR, UP};
use super::config::Handshake;
use super::datapath::{Datapath as _, NodeLink};
use super::edge::Edge;
use super::parts::ConnectionState;
use crate::lock::lock;
use crate::node::NodeShutdown;
use larder_core::handoff::Input;
use larder_core::{NodeId, NodeState};
use larder_handoff::channel::client::{ChannelEvent, EventKind};
use larder_handoff::channel::message::{
    ConnectionId, ConnectionPage, FromNode, Handoff, SettingsStatus, ToNode, Welcome,
};
use larder_kernel::FlowKey;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::sync::mpsc;

impl Edge {
    /// Handles messages from nodes until the edge ends.
    pub(super) async fn handle_node_messages(self: Arc<Self>, mut events: mpsc::Receiver<ChannelEvent>) {
        while let Some(ChannelEvent { node, session, kind }) = events.recv().await {
            let node = NodeId(node);
            match kind {
                EventKind::Up(welcome) => self.node_up((node, session), welcome).await,
                EventKind::Down(error) => self.node_down(node, &error.to_string()),
                EventKind::Message(FromNode::Connections(live)) => {
                    self.handle_connection_list(node, live).await;
                }
                EventKind::Message(message) => self.handle_node_message(node, message),
            }
        }
    }

    async fn node_up(self: &Arc<Self>, (node, session): (NodeId, u64), welcome: Box<Welcome>) {
        let Some(slot) = self.channels.slot(node) else { return };
        let name = self.decider.nodes.get(node).map(|node| node.name.clone());
        // Resolving the link of a tunnel may take a moment.
        let (edge, mac) = (self.clone(), welcome.mac);
        *lock(&slot.mac) = mac;
        let linked = tokio::task::spawn_blocking(move || edge.link_node(node, mac)).await.unwrap_or(false);
        let bit = |bit: u8, holds: bool| if holds { bit } else { 0 };
        slot.session.store(session, Relaxed);
        // Before the node gets connections. Its reply lists its connections, and so tells which are gone.
        self.handle_input(Input::Up { node });
        slot.able.store(bit(COOKIE, welcome.cookie) | bit(REPAIR, welcome.repair), Relaxed);
        let accepted =
            if self.accepts_settings(node, &welcome.settings) { slot.able.load(Relaxed) } else { 0 };
        slot.bits.store(UP | accepted | bit(LINKED, linked) | bit(LATERAL, welcome.lateral), Relaxed);
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
        if !welcome.settings.keys {
            tracing::warn!(
                node = name.as_deref(),
                hint = "set the same `secret` on all switches of a node",
                "handoff: off for the node, it accepts the cookies of another switch"
            );
        }
        let before = slot.incarnation.swap(welcome.incarnation, Relaxed);
        if before != 0 && before != welcome.incarnation {
            tracing::info!(node = name.as_deref(), "control channel: the node was restarted");
        }
    }

    /// Records whether a node has accepted the latest settings. If it has, it takes connections by every mechanism of
    /// its host.
    pub(super) fn update_capability(&self, node: NodeId, accepted: &SettingsStatus) {
        let Some(slot) = self.channels.slot(node) else { return };
        if self.accepts_settings(node, accepted) {
            slot.bits.fetch_or(slot.able.load(Relaxed), Relaxed);
        } else {
            slot.bits.fetch_and(!(COOKIE | REPAIR), Relaxed);
        }
    }

    /// Returns whether a node has accepted the latest settings. Logs why it cannot.
    fn accepts_settings(&self, node: NodeId, accepted: &SettingsStatus) -> bool {
        // If the stack completes handshakes, this switch makes no cookies.
        let mixed = accepted.cookie_conflict && self.config.handshake == Handshake::Plane;
        if mixed {
            tracing::warn!(
                node = node.index(),
                hint = "this switch has `repair` and another one `cookie`, with the same listen address and `secret`: set one \
                        `mechanism` on both, or different secrets",
                "handoff: off for the node, another switch uses another mechanism"
            );
        }
        accepts_all(accepted, self.services.len()) && !mixed
    }

    fn link_node(&self, node: NodeId, mac: Option<[u8; 6]>) -> bool {
        let Some(entry) = self.decider.nodes.get(node) else { return false };
        let link = NodeLink { mac, address: entry.resolved.ip(), tag: self.channels.tag_of(node) };
        match self.datapath.set_link(node, &link, self.config.forward) {
            Ok(()) => true,
            Err(error) => {
                tracing::warn!(node = &*entry.name, %error, "handoff: no route to the node, its requests are relayed");
                false
            }
        }
    }

    /// Sets the tag of a node.
    pub(super) fn set_node_tag(self: &Arc<Self>, node: NodeId, tag: u8) {
        let Some(slot) = self.channels.slot(node) else { return };
        slot.tag.store(tag, Relaxed);
        if let Some(channel) = &*lock(&slot.channel) {
            channel.set_tag(tag);
        }
        if slot.bits.load(Relaxed) & LINKED != 0 {
            // The plane may learn the tag a moment after the node, and uses the flow table meanwhile.
            let (edge, mac) = (self.clone(), *lock(&slot.mac));
            tokio::task::spawn_blocking(move || edge.link_node(node, mac));
        }
    }

    pub(super) fn node_down(&self, node: NodeId, reason: &str) {
        if let Some(slot) = self.channels.slot(node) {
            slot.bits.fetch_and(!UP, Relaxed);
        }
        self.handle_input(Input::Down { node });
        self.set_shutdown(
            node,
            |shutdown| if shutdown == NodeShutdown::None { shutdown } else { NodeShutdown::Ended },
        );
        let name = self.decider.nodes.get(node).map(|node| node.name.clone());
        tracing::warn!(node = name.as_deref(), reason, "control channel: down");
    }

    /// Handles a node's announcement of its shutdown: the dispatcher and the plane send it nothing new, and the node
    /// is told so.
    pub(super) fn node_shutting_down(&self, node: NodeId) {
        self.set_shutdown(node, |_| NodeShutdown::Draining);
        self.set_gates();
        // If the channel is down, the node notices that.
        let _ = self.channels.send(node, &ToNode::ShutdownAcknowledged);
    }

    fn set_shutdown(&self, node: NodeId, change: impl FnOnce(NodeShutdown) -> NodeShutdown) {
        if let Some(node) = self.decider.nodes.get(node) {
            self.decider.change_condition(&node, "shutdown of the node", |condition| {
                condition.shutdown = change(condition.shutdown);
            });
        }
    }

    pub(super) fn handle_node_message(self: &Arc<Self>, node: NodeId, message: FromNode) {
        match message {
            FromNode::Closed(connections) => {
                // Events of connections that the plane opened before they ended at the node come first.
                self.drain();
                for socket in connections {
                    let (key, first_seq) = (socket.connection.into(), socket.first_seq);
                    self.handle_input(Input::Closed { node, key, first_seq });
                }
            }
            FromNode::Settings(accepted) => self.update_capability(node, &accepted),
            FromNode::Restored { ids } => {
                for id in ids {
                    self.handle_input(Input::Restored { node, id });
                }
            }
            FromNode::Refused { id, reason: why, detail } => {
                self.handle_input(Input::Refused { node, id, why: format!("{why:?}: {detail}") });
            }
            FromNode::FindHolders(question) => self.answer_locate(node, &question),
            FromNode::Offer(connection) => {
                drop(self.handle_input(Input::RequestTransfer { node, key: connection.into() }));
            }
            FromNode::Transfer(handoff) => {
                let Handoff { connection, first_seq, checkpoint, request, .. } = handoff;
                let state = ConnectionState { checkpoint: checkpoint.0, unread: request.0 };
                self.handle_input(Input::TransferState { node, key: connection.into(), first_seq, state });
            }
            FromNode::ShuttingDown => self.node_shutting_down(node),
            FromNode::Withdraw(connection) => {
                drop(self.handle_input(Input::TransferFailed { node, key: connection.into() }));
            }
            // Lists are handled by `handle_connection_list`.
            FromNode::Connections(_) | FromNode::Load(_) | FromNode::Welcome(_) | FromNode::Pong(_) => {}
        }
    }

    /// Handles a part of a node's list of connections.
    pub(super) async fn handle_connection_list(&self, node: NodeId, live: ConnectionPage) {
        let named = |socket: ConnectionId| (FlowKey::from(socket.connection), socket.first_seq);
        let connections = live.connections.into_iter().map(named).collect();
        self.handle_input(Input::Listed { node, connections, last: live.last });
        while lock(&self.machine).has_lists() {
            self.handle_input(Input::CompareList);
            // Other tasks get their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Whether a node is dead: its health checks fail and its channel is down.
    pub(super) fn is_dead(&self, node: NodeId) -> bool {
        !self.channels.capability(node).up && self.decider.dispatcher.nodes().state(node) == NodeState::Down
    }
}

/// Whether a node serves all our listen addresses, accepts our keys and decapsulates our packets.
fn accepts_all(accepted: &SettingsStatus, services: usize) -> bool {
    accepted.keys && accepted.tunnel && accepted.services.len() >= services
}
