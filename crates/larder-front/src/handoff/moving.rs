//! Moving a socket to a node (`repair`).
//!
//! The order is that of the races it avoids: the plane forwards the connection's packets first (what the client sends
//! from now on waits at the node), then the socket is frozen and read, then its state is sent. The frozen socket is
//! kept until the node has answered: a refusal, or a channel that was down, brings it back to life here. While nothing
//! is known (the channel broke in the middle) it stays frozen: the node says after its return what it has.

use super::edge::Edge;
use super::fabric::{Fabric as _, To};
use super::lock::lock;
use super::mechanism::{Delivery, Mechanism, Why};
use super::peers::Arrived;
use super::table::{End, Handed, OnItsWay};
use super::text::Text;
use crate::lease::Started;
use larder_handoff::FlowKey;
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_handoff::repair::{self, Frozen, Unfrozen, freeze};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot::Receiver;
use tokio::time::Instant;

/// How long a socket stays frozen while nothing is known of it. Then its client is told that the connection is gone.
pub(super) const DOUBT: Duration = Duration::from_secs(30);
/// How often it is looked whether the client still waits: TCP tries to connect again after a second.
const LOOK: Duration = Duration::from_millis(250);

/// What a connection holds that is not forwarded before it is restored: only without a race's mend.
type Waiting = (Started, Option<Arc<Text>>);

/// What became of it.
pub(super) enum Moved {
    /// The node has it.
    Gone,
    /// It is still here, and so is what it holds; why it did not move is in the log.
    Stays(TcpStream, Started),
    /// It is lost; its client has been told.
    Lost,
}

impl Edge {
    /// Moves a connection, nothing of which has been read, to the node that was decided on.
    pub(super) async fn move_socket(
        self: &Arc<Self>,
        key: FlowKey,
        tcp: TcpStream,
        started: Started,
        text: Option<Arc<Text>>,
    ) -> Moved {
        let node = started.decision.node;
        let socket = match tcp.into_std() {
            Ok(tcp) => OwnedFd::from(tcp),
            Err(error) => {
                tracing::warn!(%error, %key, "a connection could not be taken from the runtime");
                return Moved::Lost;
            }
        };
        // The plane may have told of the end of the connection before on these addresses, and nobody have read it yet.
        self.drain();
        // From here on it is known by this number: its addresses may be another connection's by the time of the answer.
        let (id, arrived) = self.peers.begin_move(node, key);
        let mut waiting = Some((started, text));
        if self.config.mends.forward_first
            && let Some((started, text)) = waiting.take()
            && let Err(started) = self.forward_to((key, id), started, text)
        {
            self.peers.end_move(id);
            return stays(socket, started);
        }
        let frozen = match freeze(socket.as_fd(), &self.config.mends) {
            Ok(frozen) => {
                let mut table = lock(&self.table);
                if let Some(handed) = table.get_mut(key).filter(|handed| handed.is_move(id)) {
                    (handed.first_ack, handed.first_seq) = (Some(frozen.first_ack), Some(frozen.first_seq));
                }
                frozen
            }
            Err(Unfrozen { usable, why }) => {
                self.peers.end_move(id);
                tracing::debug!(why, %key, "a connection cannot be moved");
                return match self.turn_back((key, id), waiting) {
                    Some(started) if usable => stays(socket, started),
                    Some(_) => Moved::Lost,
                    None => given_up(key, socket),
                };
            }
        };
        let Frozen { frame, first_ack, first_seq, next_seq } = frozen;
        self.fabric.note_frozen(key, next_seq, first_ack);
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            first_seq,
            checkpoint: Blob(frame),
            request: Blob(Vec::new()),
        });
        if let Err(error) = self.peers.send_move(id, &message) {
            self.peers.end_move(id);
            tracing::debug!(%error, %key, "a connection could not be sent to its node");
            return self.thaw((key, id), socket, waiting);
        }
        let arrived = self.heard((key, id), waiting.is_none(), arrived).await;
        self.peers.end_move(id);
        self.conclude((key, id), socket, waiting, arrived)
    }

    /// What is heard of a connection on its way. Nobody waits for longer than [`DOUBT`], or than the client does: a SYN of its next
    /// connection has the frozen socket ask, where the stack answers SYNs, and the client's host denies the connection (RFC 5961
    /// section 4); where the plane answers them, the new connection has taken its place in the table.
    pub(super) async fn heard(
        &self,
        (key, id): (FlowKey, u64),
        forwarded: bool,
        mut arrived: Receiver<Arrived>,
    ) -> Option<Arrived> {
        let until = Instant::now() + DOUBT;
        let is_over = || forwarded && lock(&self.table).get_mut(key).is_none_or(|handed| !handed.is_move(id));
        loop {
            let look = Instant::now() + LOOK;
            match tokio::time::timeout_at(look.min(until), &mut arrived).await {
                Ok(answer) => return answer.ok(),
                Err(_) if look < until && !self.is_denied(key) && !is_over() => {}
                Err(_) => return None,
            }
        }
    }

    /// Whether the client's host has said that it has no such connection any more.
    fn is_denied(&self, key: FlowKey) -> bool {
        self.fabric.flow(key).is_some_and(|flow| flow.denied != 0)
    }

    /// What its node has said of a connection, or that nothing was heard, takes effect.
    pub(super) fn conclude(
        &self,
        (key, id): (FlowKey, u64),
        socket: OwnedFd,
        waiting: Option<Waiting>,
        arrived: Option<Arrived>,
    ) -> Moved {
        match arrived {
            Some(Arrived::Restored) => {
                let _ = given_up(key, socket);
                if let Some((started, text)) = waiting {
                    let _ = self.forward_to((key, id), started, text);
                }
                let delivery = Delivery { mechanism: Mechanism::Repair, why: Why::Repair };
                self.counts.delivered(delivery);
                Moved::Gone
            }
            // It has answered, and the connection has ended since.
            Some(Arrived::Refused(_)) if self.is_answered(key, id) => {
                self.gone(key, id, End::Closed);
                given_up(key, socket)
            }
            Some(Arrived::Refused(why)) => {
                tracing::info!(why, %key, "a node did not take a connection");
                self.thaw((key, id), socket, waiting)
            }
            None if self.is_gone() => {
                self.leave_to_successor(key, id);
                given_up(key, socket)
            }
            // Whether the node has it is not known, and two hosts must not answer.
            None => {
                tracing::warn!(%key, "nothing was heard of a connection on its way to a node: its client is told");
                let Some(handed) = self.take_moving(key, id) else { return given_up(key, socket) };
                let account = self.account(key);
                let end = if self.is_denied(key) { End::ClientReset } else { End::NodeLost };
                self.finish(key, handed, end, account);
                self.abort(key, socket);
                Moved::Lost
            }
        }
    }

    /// The node gets the connection's packets from here on, and the connection is one of those that are handed over: it
    /// may end before the node has said that it has it.
    pub(super) fn forward_to(
        &self,
        (key, id): (FlowKey, u64),
        started: Started,
        text: Option<Arc<Text>>,
    ) -> Result<(), Started> {
        // Locked for both: nobody may find one without the other.
        let mut table = lock(&self.table);
        if let Err(error) = self.fabric.put_flow(key, To::Node(started.decision.node)) {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
            return Err(started);
        }
        self.decider.metrics.handed(started.decision, started.request);
        let delivery = Delivery { mechanism: Mechanism::Repair, why: Why::Repair };
        let handed = Handed::new(started, delivery, self.decider.clock.now(), text);
        let on_its_way = Some(OnItsWay { id, entered_ns: self.fabric.now_ns() });
        let before = table.put(key, Handed { on_its_way, ..handed });
        drop(table);
        if let Some(before) = before {
            self.finish(key, before, End::Replaced, None);
        }
        Ok(())
    }

    /// Takes a connection out of the table that goes no further on its way, unless it has ended meanwhile: then its addresses
    /// may be another one's, which the plane knows before the table does.
    pub(super) fn take_moving(&self, key: FlowKey, id: u64) -> Option<Handed> {
        let still = |way: OnItsWay| self.fabric.flow(key).is_none_or(|flow| flow.opened_ns <= way.entered_ns);
        lock(&self.table).take_if(key, |handed| handed.is_move(id) && handed.on_its_way.is_some_and(still))
    }

    /// The connection's packets come here again: gives what it holds. `None` if it has ended meanwhile.
    fn turn_back(&self, (key, id): (FlowKey, u64), waiting: Option<Waiting>) -> Option<Started> {
        if let Some((started, _)) = waiting {
            // They have never gone elsewhere.
            return Some(started);
        }
        let Handed { lease, request, decision, .. } = self.take_moving(key, id)?;
        if let Err(error) = self.fabric.put_flow(key, To::Here) {
            tracing::warn!(%error, %key, "a connection could not be pointed back at this host");
        }
        Some(Started { lease, request, decision })
    }

    /// The frozen socket goes on here, if the connection does.
    fn thaw(&self, (key, id): (FlowKey, u64), socket: OwnedFd, waiting: Option<Waiting>) -> Moved {
        // First the plane, so that nothing the thawed socket sends is dropped on its way out.
        let Some(started) = self.turn_back((key, id), waiting) else { return given_up(key, socket) };
        match repair::resume(socket.as_fd()) {
            Ok(()) => stays(socket, started),
            Err(error) => {
                tracing::warn!(%error, %key, "a frozen connection could not be brought back");
                let _ = self.fabric.reset_client(key);
                Moved::Lost
            }
        }
    }

    /// Tells the client that its connection is gone, with the number that only the socket knows.
    fn abort(&self, key: FlowKey, socket: OwnedFd) {
        // First, so that the socket's reset may leave, and so that a new connection of these addresses cannot be met by it.
        let _ = self.fabric.reset_client(key);
        let reset = repair::resume(socket.as_fd())
            .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
        drop(socket);
        if let Err(error) = reset {
            tracing::debug!(%error, %key, "a lost connection's socket could not be reset");
        }
    }
}

/// A socket whose connection is elsewhere, or over. It says nothing.
fn given_up(key: FlowKey, socket: OwnedFd) -> Moved {
    if let Err(error) = repair::close_silently(socket) {
        tracing::warn!(%error, %key, "the old end of a moved connection could not be closed silently");
    }
    Moved::Lost
}

fn stays(socket: OwnedFd, started: Started) -> Moved {
    let stream = std::net::TcpStream::from(socket);
    let tcp = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    match tcp {
        Ok(tcp) => Moved::Stays(tcp, started),
        Err(error) => {
            let error: io::Error = error;
            tracing::warn!(%error, "a connection could not be given back to the runtime");
            Moved::Lost
        }
    }
}
