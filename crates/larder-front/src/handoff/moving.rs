//! Moving a socket to a node (`repair`).
//!
//! The order is that of the races it avoids: the plane forwards the connection's packets first (what the client sends
//! from now on waits at the node), then the socket is frozen and read, then its state is sent. The frozen socket is
//! kept until the node has answered: a refusal, or a channel that was down, brings it back to life here. While nothing
//! is known (the channel broke in the middle) it stays frozen: the node says after its return what it has.

use super::edge::{Edge, Started};
use super::fabric::To;
use super::mechanism::{Delivery, Mechanism, Why};
use super::peers::Arrived;
use super::table::Text;
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
const DOUBT: Duration = Duration::from_secs(30);

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
        if let Err(error) = self.fabric.put_flow(key, To::Node(node)) {
            tracing::warn!(%error, %key, "a connection could not be entered in the forwarding plane");
            return stays(socket, started);
        }
        let frame = match freeze(&socket) {
            Ok(frame) => frame,
            Err(Unfrozen { usable, why }) => {
                tracing::debug!(why, %key, "a connection cannot be moved");
                let _ = self.fabric.put_flow(key, To::Here);
                return if usable { stays(socket, started) } else { Moved::Lost };
            }
        };
        let (id, arrived) = self.peers.begin_move(node, key);
        let message = ToNode::Handoff(Handoff {
            id,
            connection: key.into(),
            checkpoint: Blob(frame),
            request: Blob(Vec::new()),
        });
        if let Err(error) = self.peers.send(node, &message) {
            self.peers.end_move(id);
            tracing::debug!(%error, %key, "a connection could not be sent to its node");
            return self.thaw(key, socket, started);
        }
        match tokio::time::timeout(DOUBT, arrived).await {
            Ok(Ok(Arrived::Restored)) => {
                if let Err(error) = repair::close_silently(socket) {
                    tracing::warn!(%error, %key, "the old end of a moved connection could not be closed silently");
                }
                let delivery = Delivery { mechanism: Mechanism::Repair, why: Why::Repair };
                self.hand(shared, key, started, delivery, text);
                Moved::Gone
            }
            Ok(Ok(Arrived::Refused(why))) => {
                tracing::info!(why, %key, "a node did not take a connection");
                self.thaw(key, socket, started)
            }
            // Whether the node has it is not known, and two hosts must not answer.
            Ok(Err(_)) | Err(_) => {
                self.peers.end_move(id);
                tracing::warn!(%key, "nothing was heard of a connection on its way to a node");
                let _ = (self.fabric.reset_client(key), repair::close_silently(socket));
                Moved::Lost
            }
        }
    }

    /// The frozen socket goes on here.
    fn thaw(&self, key: FlowKey, socket: OwnedFd, started: Started) -> Moved {
        // First the plane, so that nothing the thawed socket sends is dropped on its way out.
        let _ = self.fabric.put_flow(key, To::Here);
        match repair::resume(socket.as_fd()) {
            Ok(()) => stays(socket, started),
            Err(error) => {
                tracing::warn!(%error, %key, "a frozen connection could not be brought back");
                Moved::Lost
            }
        }
    }
}

struct Unfrozen {
    usable: bool,
    why: String,
}

fn freeze(socket: &OwnedFd) -> Result<Vec<u8>, Unfrozen> {
    let checkpoint = repair::checkpoint(socket.as_fd(), &Mends::default()).map_err(|error| Unfrozen {
        usable: error.connection == Connection::Usable,
        why: error.to_string(),
    })?;
    checkpoint.encode().map_err(|error| {
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
