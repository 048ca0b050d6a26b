//! `repair` without a socket: the forwarding plane has answered the handshake, the request is held, and the node gets the
//! state that a socket of this host would have ([`Checkpoint::begun`]).
//!
//! As when a socket is moved, the plane forwards the connection's packets first and the state follows; what comes early waits
//! at the node. What is held is kept until the node has answered: if it refuses, this host's own stack gets it.

use super::edge::Edge;
use super::fabric::Fabric as _;
use super::held::Held;
use super::lock::lock;
use super::mechanism::{Delivery, Mechanism, Why};
use super::moving::DOUBT;
use super::peers::Arrived;
use super::table::{End, Handed};
use super::text::Text;
use crate::lease::Started;
use larder_handoff::FlowKey;
use larder_handoff::abi::flow_flag;
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_handoff::plane::is_undamaged;
use larder_handoff::repair::Checkpoint;
use std::sync::Arc;

/// The state that a socket of a held connection would have.
struct State {
    frame: Vec<u8>,
    /// The number of the client's first byte.
    first_seq: u32,
    /// All that is held is in it.
    complete: bool,
}

impl Edge {
    /// Gives a held connection to the node that was decided on.
    pub(super) fn give_state(
        self: &Arc<Self>,
        (key, generation): (FlowKey, u64),
        started: Started,
        text: Option<Arc<Text>>,
    ) {
        let node = started.decision.node;
        // What is kept until nodes have answered has the limit of what is held.
        if self.peers.moves() >= self.config.hold_max {
            let delivery = Delivery::relay(Why::HoldFull);
            return self.here(key, generation, delivery, Some(Ok(started)));
        }
        // Locked until the decision has taken effect in the plane, as for every decision.
        let mut holding = lock(&self.holding);
        let state = holding.get_mut(key).filter(|held| held.generation == generation);
        let state = match state.map(|held| self.state(key, held, self.peers.tag_of(node))) {
            Some(Some(state)) => state,
            // What the client sends has not what a state needs: its timestamps, say, or a good checksum.
            Some(None) => {
                drop(holding);
                return self.here(key, generation, Delivery::relay(Why::Failed), Some(Ok(started)));
            }
            // The client has reset it meanwhile.
            None => return,
        };
        let Some(held) = holding.take(key, Some(generation)) else { return };
        let (id, arrived) = self.peers.begin_move(node, key);
        let forwarded = self.forward_to((key, id), started, text);
        if let Some(handed) = lock(&self.table).get_mut(key).filter(|handed| handed.is_move(id)) {
            handed.first_seq = Some(state.first_seq);
        }
        drop(holding);
        if let Err(started) = forwarded {
            self.peers.end_move(id);
            return self.accept_held(key, &held, Delivery::relay(Why::Failed), Some(Ok(started)));
        }
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            first_seq: state.first_seq,
            checkpoint: Blob(state.frame),
            request: Blob(Vec::new()),
        });
        if let Err(error) = self.peers.send_move(id, &message) {
            self.peers.end_move(id);
            tracing::debug!(%error, %key, "a connection's state could not be sent to its node");
            return self.stays(key, id, &held);
        }
        if !state.complete {
            // An end of the client's, or what came before its time: it waits at the node.
            held.packets().iter().for_each(|packet| self.counts.sent(&self.fabric.forward(node, packet)));
        }
        let edge = self.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(DOUBT, arrived).await {
                Ok(Ok(Arrived::Restored)) => {
                    edge.counts.delivered(Delivery { mechanism: Mechanism::Repair, why: Why::Repair });
                }
                // It has answered, and the connection has ended since.
                Ok(Ok(Arrived::Refused(_))) if edge.is_answered(key, id) => {
                    edge.gone(key, id, End::Closed);
                }
                Ok(Ok(Arrived::Refused(why))) => {
                    tracing::info!(why, %key, "a node did not take a connection");
                    edge.stays(key, id, &held);
                }
                Ok(Err(_)) | Err(_) if edge.is_gone() => edge.leave_to_successor(key, id),
                // Whether the node has it is not known, and two hosts must not answer.
                Ok(Err(_)) | Err(_) => {
                    edge.peers.end_move(id);
                    tracing::warn!(%key, "nothing was heard of a connection on its way to a node: its client is told");
                    edge.gone(key, id, End::NodeLost);
                }
            }
        });
    }

    /// The state of a held connection.
    fn state(&self, key: FlowKey, held: &Held, tag: u8) -> Option<State> {
        // What was damaged on its way must not become the client's word: nobody looks at its checksum any more.
        if !held.packets().iter().all(|packet| is_undamaged(packet)) {
            return None;
        }
        let server = *self.services.get(usize::from(key.service))?;
        let received = held.bytes();
        let complete = held.is_all(received.len());
        // What it says of the client comes from the packet that proved its cookie.
        let first = held.packets().first()?;
        let state = Checkpoint::begun(first, (server, key.client), received, tag)?;
        let first_seq = state.unread_seq();
        state.encode().ok().map(|frame| State { frame, first_seq, complete })
    }

    /// Whether the client of a connection on its way has acknowledged anything of a reply.
    pub(super) fn is_answered(&self, key: FlowKey, id: u64) -> bool {
        let Some(flow) = self.fabric.flow(key) else { return false };
        let mut table = lock(&self.table);
        let Some(handed) = table.get_mut(key).filter(|handed| handed.is_move(id)) else { return false };
        // Where the plane did not see the handshake, only the socket knows where the reply began.
        let beyond = |first_ack| flow.packets > 0 && flow.last_ack != first_ack;
        handed.first_ack.map_or(flow.flags & flow_flag::ACKED != 0, beyond)
    }

    /// This host's own stack gets a connection after all, unless it has ended meanwhile: then another one may have its
    /// addresses.
    fn stays(&self, key: FlowKey, id: u64, held: &Held) {
        if let Some(Handed { lease, request, decision, .. }) = self.take_moving(key, id) {
            let started = Started { lease, request, decision };
            self.accept_held(key, held, Delivery::relay(Why::Failed), Some(Ok(started)));
        }
    }

    /// The plane went to another process before the node had said what became of a connection on its way: the node says it
    /// to that one, which looks after it from here on.
    pub(super) fn leave_to_successor(&self, key: FlowKey, id: u64) {
        tracing::debug!(%key, "a connection was on its way to a node when another process took over");
        if let Some(handed) = self.take_moving(key, id) {
            self.finish(key, handed, End::Silent, None);
        }
    }

    /// The client of a connection is told that it is gone, unless it has ended meanwhile.
    pub(super) fn gone(&self, key: FlowKey, id: u64, end: End) {
        if let Some(handed) = self.take_moving(key, id) {
            let _ = self.fabric.reset_client(key);
            let account = self.account(key);
            self.finish(key, handed, end, account);
        }
    }
}
