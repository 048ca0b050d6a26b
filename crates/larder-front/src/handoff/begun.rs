//! `repair` without a socket: the forwarding plane has answered the handshake, the request is held, and the node gets the
//! state that a socket of this host would have ([`Checkpoint::begun`]).

use super::edge::Edge;
use super::frame::{self, Frame};
use super::lock::lock;
use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use super::parts::{Load, State};
use super::text::Text;
use crate::lease::StartedRequest;
use larder_core::handoff::Input;
use larder_kernel::FlowKey;
use larder_kernel::plane::is_undamaged;
use larder_kernel::repair::Checkpoint;
use std::sync::Arc;

/// The checkpoint that a socket of a held connection would have.
struct FirstCheckpoint {
    /// Encoded.
    checkpoint: Vec<u8>,
    /// The number of the client's first byte.
    first_seq: u32,
    /// All that is held is in it.
    complete: bool,
}

impl Edge {
    /// Gives a held connection to the node that was decided on.
    pub(super) fn give_state(
        &self,
        (key, generation): (FlowKey, u64),
        started: StartedRequest,
        text: Option<Arc<Text>>,
    ) {
        let mut machine = lock(&self.machine);
        // Otherwise its client has reset it meanwhile.
        let Some(frames) = machine.packets(key, generation) else { return };
        let input = match self.state(key, frames, self.peers.tag_of(started.decision.node)) {
            Some(FirstCheckpoint { checkpoint, first_seq, complete }) => {
                let delivery = Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Repair };
                let (decision, load) = Load::of(started, delivery, text);
                let state = State { checkpoint, unread: Vec::new() };
                Input::State { key, generation, decision, load, state, first_seq, complete }
            }
            // What the client sends has not what a state needs: its timestamps, say, or a good checksum.
            None => {
                let verdict = (Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
                Input::Here { key, generation, verdict }
            }
        };
        self.drive(&mut machine, self.decider.clock.now(), input);
    }

    /// The state of a held connection.
    fn state(&self, key: FlowKey, frames: &[Frame], tag: u8) -> Option<FirstCheckpoint> {
        // What was damaged on its way must not become the client's word: nobody looks at its checksum any more.
        if !frames.iter().all(|frame| is_undamaged(&frame.bytes)) {
            return None;
        }
        let server = *self.services.get(usize::from(key.service))?;
        let received = frame::payload(frames);
        let complete = frame::is_all(frames, received.len());
        // What it says of the client comes from the packet that proved its cookie.
        let first = frames.first()?;
        let state = Checkpoint::begun(&first.bytes, (server, key.client), received, tag)?;
        let first_seq = state.unread_seq();
        state.encode().ok().map(|checkpoint| FirstCheckpoint { checkpoint, first_seq, complete })
    }
}
