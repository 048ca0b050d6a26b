//! Moving a socket to a node (`repair`).
//!
//! The order is that of the races it avoids: the plane forwards the connection's packets first (what the client sends
//! from now on waits at the node), then the socket is frozen and read, then its state is sent. The frozen socket is
//! kept until the node has answered: a refusal, or a channel that was down, brings it back to life here. While nothing
//! is known (the channel broke in the middle) it stays frozen: the node says after its return what it has.

use super::edge::{Edge, Started, lock};
use super::fabric::To;
use super::mechanism::{Delivery, Mechanism, Why};
use super::peers::Arrived;
use super::table::{End, Handed};
use super::text::Text;
use crate::switch::Shared;
use larder_handoff::FlowKey;
use larder_handoff::channel::message::{Blob, Handoff, ToNode};
use larder_handoff::repair::{self, Connection, Mends};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// How long a socket stays frozen while nothing is known of it. Then its client is told that the connection is gone.
pub(super) const DOUBT: Duration = Duration::from_secs(30);

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
        shared: &Arc<Shared>,
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
        let mut waiting = Some((started, text));
        if self.config.mends.forward_first
            && let Some((started, text)) = waiting.take()
            && let Err(started) = self.forward_to(shared, key, started, text, None)
        {
            return stays(socket, started);
        }
        let frame = match freeze(&socket, &self.config.mends) {
            Ok((frame, first_ack)) => {
                if let Some(handed) = lock(&self.table).get_mut(key) {
                    handed.first_ack = Some(first_ack);
                }
                frame
            }
            Err(Unfrozen { usable, why }) => {
                tracing::debug!(why, %key, "a connection cannot be moved");
                let _ = self.fabric.put_flow(key, To::Here);
                let started = self.take_back(key).or(waiting.map(|(started, _)| started));
                return match started.filter(|_| usable) {
                    Some(started) => stays(socket, started),
                    None => Moved::Lost,
                };
            }
        };
        let (id, arrived) = self.peers.begin_move(node, key);
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            checkpoint: Blob(frame),
            request: Blob(Vec::new()),
        });
        if let Err(error) = self.peers.send_move(id, &message) {
            self.peers.end_move(id);
            tracing::debug!(%error, %key, "a connection could not be sent to its node");
            return self.thaw(key, socket, waiting);
        }
        match tokio::time::timeout(DOUBT, arrived).await {
            Ok(Ok(Arrived::Restored)) => {
                if let Err(error) = repair::close_silently(socket) {
                    tracing::warn!(%error, %key, "the old end of a moved connection could not be closed silently");
                }
                if let Some((started, text)) = waiting {
                    let _ = self.forward_to(shared, key, started, text, None);
                }
                let delivery = Delivery { mechanism: Mechanism::Repair, why: Why::Repair };
                self.counts.delivered(delivery);
                Moved::Gone
            }
            Ok(Ok(Arrived::Refused(why))) => {
                tracing::info!(why, %key, "a node did not take a connection");
                self.thaw(key, socket, waiting)
            }
            // Whether the node has it is not known, and two hosts must not answer.
            Ok(Err(_)) | Err(_) => {
                self.peers.end_move(id);
                tracing::warn!(%key, "nothing was heard of a connection on its way to a node: its client is told");
                self.end(shared, key, End::NodeLost);
                self.abort(key, socket);
                Moved::Lost
            }
        }
    }

    /// The node gets the connection's packets from here on, and the connection is one of those that are handed over: it
    /// may end before the node has said that it has it.
    pub(super) fn forward_to(
        &self,
        shared: &Arc<Shared>,
        key: FlowKey,
        started: Started,
        text: Option<Arc<Text>>,
        on_its_way: Option<u64>,
    ) -> Result<(), Started> {
        // Locked for both: nobody may find one without the other.
        let mut table = lock(&self.table);
        if let Err(error) = self.fabric.put_flow(key, To::Node(started.decision.node)) {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
            return Err(started);
        }
        shared.metrics.handed(started.decision, started.request);
        let delivery = Delivery { mechanism: Mechanism::Repair, why: Why::Repair };
        let handed = Handed::new(started, delivery, shared.clock.now(), text);
        let before = table.put(key, Handed { on_its_way, ..handed });
        drop(table);
        if let Some(before) = before {
            self.finish(shared, key, before, End::Replaced, None);
        }
        Ok(())
    }

    /// What a connection that stays here holds; nothing if it has ended meanwhile.
    pub(super) fn take_back(&self, key: FlowKey) -> Option<Started> {
        let handed = lock(&self.table).take(key)?;
        Some(Started { lease: handed.lease, request: handed.request, decision: handed.decision })
    }

    /// The frozen socket goes on here.
    fn thaw(&self, key: FlowKey, socket: OwnedFd, waiting: Option<(Started, Option<Arc<Text>>)>) -> Moved {
        // First the plane, so that nothing the thawed socket sends is dropped on its way out.
        let _ = self.fabric.put_flow(key, To::Here);
        let started = self.take_back(key).or(waiting.map(|(started, _)| started));
        match (repair::resume(socket.as_fd()), started) {
            (Ok(()), Some(started)) => stays(socket, started),
            // The client has reset it, or another connection has its addresses.
            (Ok(()), None) => Moved::Lost,
            (Err(error), _) => {
                tracing::warn!(%error, %key, "a frozen connection could not be brought back");
                let _ = self.fabric.reset_client(key);
                Moved::Lost
            }
        }
    }

    /// Tells the client that its connection is gone, with the number that only the socket knows.
    fn abort(&self, key: FlowKey, socket: OwnedFd) {
        let _ = self.fabric.put_flow(key, To::Here);
        let reset = repair::resume(socket.as_fd())
            .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
        drop(socket);
        if let Err(error) = reset {
            tracing::debug!(%error, %key, "a lost connection's socket could not be reset");
        }
        // For what the client sends from now on.
        let _ = self.fabric.reset_client(key);
    }
}

struct Unfrozen {
    usable: bool,
    why: String,
}

/// The state, and the number of the first byte that is still to be sent.
fn freeze(socket: &OwnedFd, mends: &Mends) -> Result<(Vec<u8>, u32), Unfrozen> {
    let checkpoint = repair::checkpoint(socket.as_fd(), mends).map_err(|error| Unfrozen {
        usable: error.connection == Connection::Usable,
        why: error.to_string(),
    })?;
    let first_ack = checkpoint.unacknowledged_seq();
    checkpoint.encode().map(|frame| (frame, first_ack)).map_err(|error| {
        let usable = repair::resume(socket.as_fd()).is_ok();
        Unfrozen { usable, why: error.to_string() }
    })
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
