//! The transfer of one connection to a peer.
//!
//! The frozen socket is kept until the peer has answered, because a refusal resumes it. While the outcome is
//! unknown (the channel broke), the socket stays frozen. After its return, the peer reports which connections
//! it has.

use super::relay_reason::RelayReason;
use super::{HandoffGuard, PeerHandoff};
use larder_core::peers::handoff::{HandoffDestination, PeerMoveOutcome};
use larder_core::{Bytes, TargetId};
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_handoff::frozen::FrozenSocket;
use larder_kernel::FlowKey;
use larder_kernel::plane::FlowDestination;
use larder_kernel::repair::RaceFixes;
use larder_peers::Name;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// Interval between two checks whether the client still waits for its connection. TCP retransmits after one
/// second.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

/// The outcome of a transfer.
#[derive(Debug)]
pub(crate) enum TransferOutcome {
    /// The peer has the connection.
    Delivered,
    /// The connection is still at this node. The log has the reason.
    Returned(OwnedFd),
    /// The connection is lost, and its client was reset.
    Lost,
}

impl PeerHandoff {
    /// Hands a connection off. `socket` must be its only descriptor. `first` is the request and the bytes that
    /// were read after it. `sent` is called once the state is sent; its result is dropped when the connection
    /// no longer belongs to the peer.
    pub(crate) async fn hand_off(
        &self,
        to: &Name,
        key: FlowKey,
        socket: OwnedFd,
        first: Vec<u8>,
        sent: impl FnOnce() -> Option<Box<dyn HandoffGuard>>,
    ) -> TransferOutcome {
        let Some((place, id, mut outcome)) = self.route_to_peer(to, key) else {
            self.count_relay(RelayReason::Failed);
            return TransferOutcome::Returned(socket);
        };
        let (frozen, state) = match FrozenSocket::freeze(key, socket, &RaceFixes::default()) {
            Ok(frozen) => frozen,
            Err(socket) => {
                self.send(to, &ToNode::CancelHandoff(key.into()));
                self.route_back(key, id);
                self.count_relay(RelayReason::Failed);
                return socket.map_or(TransferOutcome::Lost, TransferOutcome::Returned);
            }
        };
        self.state().handoff.record_frozen(key, state.first_seq, state.first_ack);
        if let Err(error) = self.plane.note_frozen(key, state.next_seq, state.first_ack) {
            tracing::debug!(%error, %key, "flow table: position of a frozen connection not updated");
        }
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            first_seq: state.first_seq,
            checkpoint: Blob(state.frame),
            request: Blob(first),
        });
        if !self.send_move(to, place, &message) {
            return self.resume(id, key, frozen);
        }
        if let Some(held) = sent() {
            self.state().handoff.attach_load(key, held);
        }
        match self.wait_for_outcome(id, key, &mut outcome).await {
            Some(PeerMoveOutcome::Restored) => {
                self.moved.fetch_add(1, Relaxed);
                frozen.close();
                TransferOutcome::Delivered
            }
            Some(PeerMoveOutcome::Refused(why)) => {
                tracing::debug!(peer = %to, why, %key, "handoff to peer: refused, the request is relayed");
                self.resume(id, key, frozen)
            }
            // Two hosts must not answer, and it is unknown whether the peer has the connection.
            Some(PeerMoveOutcome::Unknown) | None => {
                if self.is_denied_by_client(key) {
                    tracing::debug!(peer = %to, %key, "handoff to peer: connection in doubt ended, its client has closed it");
                } else {
                    tracing::debug!(peer = %to, %key, "handoff to peer: connection in doubt reset");
                    larder_log::limited_warn!(peer = %to, "handoff to peer: no answer, the connection is reset");
                }
                self.abort(id, key, frozen);
                TransferOutcome::Lost
            }
        }
    }

    /// Waits for the outcome of a move, for no longer than the doubt may last or the client waits. A client
    /// that connects again with the same addresses must not find the old connection here.
    async fn wait_for_outcome(
        &self,
        id: u64,
        key: FlowKey,
        outcome: &mut oneshot::Receiver<PeerMoveOutcome>,
    ) -> Option<PeerMoveOutcome> {
        let until = Instant::now() + self.settings.answer_timeout;
        loop {
            let next_check = Instant::now() + CHECK_INTERVAL;
            match tokio::time::timeout_at(next_check.min(until), &mut *outcome).await {
                Ok(answer) => return answer.ok(),
                Err(_) if next_check < until && !self.is_denied_by_client(key) => {}
                Err(_) => return self.take_outcome(id, outcome),
            }
        }
    }

    /// Returns whether the client's host has denied that it has the connection. A SYN of the next connection
    /// makes the frozen socket send a challenge ACK, as for any socket (RFC 5961 section 4). An attacker who
    /// forges a SYN does not see the challenge.
    fn is_denied_by_client(&self, key: FlowKey) -> bool {
        self.plane.flow(key).is_some_and(|flow| flow.denied != 0)
    }

    /// Returns the outcome if it has arrived by now; otherwise gives the move up.
    fn take_outcome(
        &self,
        id: u64,
        outcome: &mut oneshot::Receiver<PeerMoveOutcome>,
    ) -> Option<PeerMoveOutcome> {
        // Outcomes are delivered under the same lock.
        let mut state = self.state();
        let answer = outcome.try_recv().ok();
        if answer.is_none() {
            state.handoff.give_up_move(id);
        }
        answer
    }

    /// Routes the connection's packets to the peer, where they wait for the socket.
    fn route_to_peer(
        &self,
        to: &Name,
        key: FlowKey,
    ) -> Option<(HandoffDestination, u64, oneshot::Receiver<PeerMoveOutcome>)> {
        // One lock covers both changes, so that nobody sees one without the other.
        let mut state = self.state();
        let place = state.find_place(self.now(), to, key.service)?;
        if let Err(error) = self.plane.put_flow(key, FlowDestination::Node(place.slot.0)) {
            larder_log::limited_warn!(%error, %key, "flow table: entry not added, the request is relayed");
            return None;
        }
        let (waits, outcome) = oneshot::channel();
        let id = state.handoff.begin_move(place, key, waits);
        Some((place, id, outcome))
    }

    /// Routes the connection's packets to this host again.
    fn route_back(&self, key: FlowKey, id: u64) {
        let mut state = self.state();
        state.handoff.keep_local(id, key);
        if let Err(error) = self.plane.remove_flow(key) {
            larder_log::limited_warn!(%error, %key, "flow table: entry not removed, packets still go to the peer");
        }
    }

    /// Resumes the frozen socket at this node.
    fn resume(&self, id: u64, key: FlowKey, frozen: FrozenSocket) -> TransferOutcome {
        self.count_relay(RelayReason::Failed);
        // The plane changes first, so that it drops nothing that the resumed socket sends.
        self.route_back(key, id);
        frozen.resume().map_or(TransferOutcome::Lost, TransferOutcome::Returned)
    }

    /// Resets the client's connection.
    fn abort(&self, id: u64, key: FlowKey, frozen: FrozenSocket) {
        self.count_relay(RelayReason::Failed);
        // The peer may have the connection nevertheless, and report it later.
        match self.plane.put_flow(key, FlowDestination::Reset) {
            Ok(()) => frozen.reset(),
            Err(error) => tracing::debug!(%error, %key, "handoff: reset of a lost connection failed"),
        }
        self.state().handoff.record_client_reset(id);
        self.run_deferred();
    }

    /// Returns the size of a target, if it is known.
    pub(crate) fn size_of(&self, target: TargetId) -> Option<Bytes> {
        super::lock(&self.sizes).get(target)
    }
}
