//! One connection on its way to a peer.
//!
//! The frozen socket is kept until the peer has answered: a refusal brings it back to life. While nothing is known (the
//! channel broke in the middle) it stays frozen; the peer says after its return what it has.

use super::unmoved::Unmoved;
use super::{Handover, Hold};
use larder_core::peers::handing::{Heard, Place};
use larder_core::{Bytes, TargetId};
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_kernel::FlowKey;
use larder_kernel::plane::FlowDestination;
use larder_kernel::repair::{self, FreezeError, RaceFixes};
use larder_peers::Name;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// How often it is looked whether a client still waits for a connection on its way: TCP tries again after a second.
const LOOK: Duration = Duration::from_millis(250);

/// What became of it.
#[derive(Debug)]
pub(crate) enum Moved {
    /// The peer has it.
    Gone,
    /// It is still here; why is in the log.
    Stays(OwnedFd),
    /// It is lost; its client has been told.
    Lost,
}

impl Handover {
    /// Hands a connection over: `socket`, of which there is no other descriptor, whose request is `first`, with what was
    /// read behind it. `sent` is called when it is on its way; what it returns is dropped when the connection is the peer's
    /// no more.
    pub(crate) async fn hand_over(
        &self,
        to: &Name,
        key: FlowKey,
        socket: OwnedFd,
        first: Vec<u8>,
        sent: impl FnOnce() -> Option<Box<dyn Hold>>,
    ) -> Moved {
        let Some((place, id, mut arrived)) = self.point_at(to, key) else {
            self.count(Unmoved::Failed);
            return Moved::Stays(socket);
        };
        let frozen = match repair::freeze(socket.as_fd(), &RaceFixes::default()) {
            Ok(frozen) => frozen,
            Err(FreezeError { usable, reason }) => {
                tracing::debug!(reason, %key, "a connection cannot be handed over");
                self.tell(to, &ToNode::CancelHandoff(key.into()));
                self.turn_back(key, id);
                self.count(Unmoved::Failed);
                return if usable { Moved::Stays(socket) } else { Moved::Lost };
            }
        };
        self.state().handing.frozen(key, frozen.first_seq, frozen.first_ack);
        if let Err(error) = self.plane.note_frozen(key, frozen.next_seq, frozen.first_ack) {
            tracing::debug!(%error, %key, "the plane does not know where a connection on its way stands");
        }
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            first_seq: frozen.first_seq,
            checkpoint: Blob(frozen.frame),
            request: Blob(first),
        });
        if !self.send_move(to, place, &message) {
            return self.thaw(key, id, socket);
        }
        if let Some(held) = sent() {
            self.state().handing.hold(key, held);
        }
        match self.answer(id, key, &mut arrived).await {
            Some(Heard::Restored) => {
                self.moved.fetch_add(1, Relaxed);
                close(key, socket);
                Moved::Gone
            }
            Some(Heard::Refused(why)) => {
                tracing::info!(peer = %to, why, %key, "a peer did not take a connection");
                self.thaw(key, id, socket)
            }
            // Whether the peer has it is not known, and two hosts must not answer.
            Some(Heard::Nothing) | None => {
                if self.is_denied(key) {
                    tracing::info!(peer = %to, %key, "a client has given up a connection that is in doubt");
                } else {
                    tracing::warn!(peer = %to, %key, "nothing was heard of a connection on its way: its client is told");
                }
                self.abort(id, key, socket);
                Moved::Lost
            }
        }
    }

    /// What is heard of a move. Nobody waits for longer than the doubt may last, or than the client does: one that begins anew with
    /// the same addresses has to find nothing of the connection here.
    async fn answer(&self, id: u64, key: FlowKey, arrived: &mut oneshot::Receiver<Heard>) -> Option<Heard> {
        let until = Instant::now() + self.settings.doubt;
        loop {
            let look = Instant::now() + LOOK;
            match tokio::time::timeout_at(look.min(until), &mut *arrived).await {
                Ok(answer) => return answer.ok(),
                Err(_) if look < until && !self.is_denied(key) => {}
                Err(_) => return self.last_word(id, arrived),
            }
        }
    }

    /// Whether the client's host has said that it has no such connection any more. A SYN of its next one has the frozen socket ask, as
    /// any socket would (RFC 5961 section 4): who forges a SYN does not see the question.
    fn is_denied(&self, key: FlowKey) -> bool {
        self.plane.flow(key).is_some_and(|flow| flow.denied != 0)
    }

    /// What has been heard of a move in the moment in which it is given up.
    fn last_word(&self, id: u64, arrived: &mut oneshot::Receiver<Heard>) -> Option<Heard> {
        // Answers are given under the same lock.
        let mut state = self.state();
        let answer = arrived.try_recv().ok();
        if answer.is_none() {
            state.handing.doubt_over(id);
        }
        answer
    }

    /// The peer gets the connection's packets from here on, where they wait for it.
    fn point_at(&self, to: &Name, key: FlowKey) -> Option<(Place, u64, oneshot::Receiver<Heard>)> {
        // Locked for all: nobody may find one without the other.
        let mut state = self.state();
        let place = state.place(self.now(), to, key.service)?;
        if let Err(error) = self.plane.put_flow(key, FlowDestination::Node(place.slot.0)) {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
            return None;
        }
        let (waits, arrived) = oneshot::channel();
        let id = state.handing.begin(place, key, waits);
        Some((place, id, arrived))
    }

    /// The connection's packets come here again.
    fn turn_back(&self, key: FlowKey, id: u64) {
        let mut state = self.state();
        state.handing.stays(id, key);
        if let Err(error) = self.plane.remove_flow(key) {
            tracing::warn!(%error, %key, "a connection could not be pointed back at this host");
        }
    }

    /// The frozen socket goes on here.
    fn thaw(&self, key: FlowKey, id: u64, socket: OwnedFd) -> Moved {
        self.count(Unmoved::Failed);
        // First the plane, so that nothing the thawed socket sends is dropped on its way out.
        self.turn_back(key, id);
        match repair::resume(socket.as_fd()) {
            Ok(()) => Moved::Stays(socket),
            Err(error) => {
                tracing::warn!(%error, %key, "a frozen connection could not be brought back");
                Moved::Lost
            }
        }
    }

    /// Tells the client that its connection is gone, with the number that only the socket knows.
    fn abort(&self, id: u64, key: FlowKey, socket: OwnedFd) {
        self.count(Unmoved::Failed);
        // The peer may have it all the same, and say so later.
        let reset = self.plane.put_flow(key, FlowDestination::Reset).map_err(std::io::Error::other);
        let reset = reset
            .and_then(|()| repair::resume(socket.as_fd()))
            .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
        drop(socket);
        if let Err(error) = reset {
            tracing::debug!(%error, %key, "a lost connection's socket could not be reset");
        }
        self.state().handing.told(id);
        self.settle();
    }

    /// How large a target is, if that is known.
    pub(crate) fn size_of(&self, target: TargetId) -> Option<Bytes> {
        super::lock(&self.sizes).of(target)
    }
}

/// A socket whose connection is elsewhere. It says nothing.
fn close(key: FlowKey, socket: OwnedFd) {
    if let Err(error) = repair::close_silently(socket) {
        tracing::warn!(%error, %key, "the old end of a moved connection could not be closed silently");
    }
}
