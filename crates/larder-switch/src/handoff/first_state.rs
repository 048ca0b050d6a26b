//! `repair` without a socket: the forwarding plane has completed the handshake and holds the request, and the node
//! gets the state that a socket of this host would have ([`Checkpoint::from_cookie`]).

use super::edge::Edge;
use super::frame::{self, Frame};
use super::log_text::LogText;
use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use super::parts::{ConnectionLoad, ConnectionState};
use crate::lease::StartedRequest;
use crate::lock::lock;
use larder_core::handoff::Input;
use larder_kernel::FlowKey;
use larder_kernel::frame::is_undamaged;
use larder_kernel::repair::Checkpoint;
use std::sync::Arc;

/// Checkpoint of the socket that a held connection would have.
struct FirstCheckpoint {
    /// Encoded checkpoint.
    checkpoint: Vec<u8>,
    /// Sequence number of the client's first byte.
    first_seq: u32,
    /// Whether it contains all held bytes.
    complete: bool,
}

impl Edge {
    /// Sends the state of a held connection to the chosen node.
    pub(super) fn send_first_state(
        &self,
        (key, generation): (FlowKey, u64),
        started: StartedRequest,
        text: Option<Arc<LogText>>,
    ) {
        let mut machine = lock(&self.machine);
        // If there are no packets, the client has reset the connection.
        let Some(frames) = machine.packets(key, generation) else { return };
        let input = match self.state(key, frames, self.channels.tag_of(started.decision.node)) {
            Some(FirstCheckpoint { checkpoint, first_seq, complete }) => {
                let delivery = Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Repair };
                let (decision, load) = ConnectionLoad::new(started, delivery, text);
                let state = ConnectionState { checkpoint, unread: Vec::new() };
                Input::SendState { key, generation, decision, load, state, first_seq, complete }
            }
            // The packets cannot make a state: for example, timestamps are missing or a checksum is wrong.
            None => {
                let verdict = (Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
                Input::AcceptHere { key, generation, verdict }
            }
        };
        self.drive(&mut machine, self.decider.clock.now(), input);
    }

    /// Builds the state of a held connection.
    fn state(&self, key: FlowKey, frames: &[Frame], tag: u8) -> Option<FirstCheckpoint> {
        // Damaged bytes must not enter the state, because no later step verifies their checksum.
        if !frames.iter().all(|frame| is_undamaged(&frame.bytes)) {
            return None;
        }
        let server = *self.services.get(usize::from(key.service))?;
        let received = frame::payload(frames);
        let complete = frame::is_complete(frames, received.len());
        // The facts about the client come from the packet that proved the cookie.
        let first = frames.first()?;
        let state = Checkpoint::from_cookie(&first.bytes, (server, key.client), received, tag)?;
        let first_seq = state.unread_seq();
        state.encode().ok().map(|checkpoint| FirstCheckpoint { checkpoint, first_seq, complete })
    }
}
