//! Moving a socket to a node (`repair`).
//!
//! The order is that of the races it avoids: the plane forwards the connection's packets first (what the client sends
//! from now on waits at the node), then the socket is frozen and read, then its state is sent. The frozen socket is
//! kept until the machine says what became of it ([`Answer`]).

use super::edge::Edge;
use super::fabric::Fabric as _;
use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use super::outputs::MoveStart;
use super::parts::{Load, State};
use super::text::Text;
use crate::lease::StartedRequest;
use larder_core::handoff::{Answer, Input};
use larder_kernel::FlowKey;
use larder_kernel::repair::{self, Frozen, Unfrozen, freeze};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// What became of it.
pub(super) enum Moved {
    /// The node has it, or it is over.
    Gone,
    /// It is still here, and so is what it holds; why it did not move is in the log.
    Stays(TcpStream, StartedRequest),
    /// It is lost.
    Lost,
}

impl Edge {
    /// Moves a connection, nothing of which has been read, to the node that was decided on.
    pub(super) async fn move_socket(
        self: &Arc<Self>,
        key: FlowKey,
        tcp: TcpStream,
        started: StartedRequest,
        text: Option<Arc<Text>>,
    ) -> Moved {
        let socket = match tcp.into_std() {
            Ok(tcp) => OwnedFd::from(tcp),
            Err(error) => {
                tracing::warn!(%error, %key, "a connection could not be taken from the runtime");
                return Moved::Lost;
            }
        };
        // The plane may have told of the end of the connection before on these addresses, and nobody have read it yet.
        self.drain();
        let (waiter, answer) = oneshot::channel();
        let (decision, load) = Load::of(
            started,
            Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Repair },
            text,
        );
        let id = match self.act(Input::Move { key, decision, load, waiter }) {
            Some(MoveStart::Freeze(id)) => id,
            Some(MoveStart::Stays(load)) => return stays(key, socket, load),
            None => return Moved::Lost,
        };
        let frozen = match freeze(socket.as_fd(), &self.config.mends) {
            Ok(Frozen { frame: checkpoint, first_ack, first_seq, next_seq }) => {
                self.fabric.note_frozen(key, next_seq, first_ack);
                let state = State { checkpoint, unread: Vec::new() };
                self.act(Input::Frozen { key, id, first_seq, first_ack, state });
                true
            }
            Err(Unfrozen { usable, why: reason }) => {
                tracing::debug!(reason, %key, "a connection cannot be moved");
                match self.act(Input::NotFrozen { key, id }) {
                    Some(MoveStart::Stays(load)) if usable || load.is_none() => {
                        return stays(key, socket, load);
                    }
                    // The answer came meanwhile.
                    None if usable => false,
                    _ => return Moved::Lost,
                }
            }
        };
        match answer.await {
            Ok(Answer::Close) => given_up(key, socket),
            Ok(Answer::Thaw(decision, load)) if !frozen => stays(key, socket, Some((decision, load))),
            Ok(Answer::Thaw(decision, load)) => match repair::resume(socket.as_fd()) {
                Ok(()) => stays(key, socket, Some((decision, load))),
                Err(error) => {
                    tracing::warn!(%error, %key, "a frozen connection could not be brought back");
                    let _ = self.fabric.reset_client(key);
                    Moved::Lost
                }
            },
            Ok(Answer::Abort) => {
                abort(key, socket);
                Moved::Lost
            }
            // The edge has ended.
            Err(_) => given_up(key, socket),
        }
    }
}

/// Tells the client that its connection is gone, with the number that only the socket knows.
fn abort(key: FlowKey, socket: OwnedFd) {
    let reset = repair::resume(socket.as_fd())
        .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
    drop(socket);
    if let Err(error) = reset {
        tracing::debug!(%error, %key, "a lost connection's socket could not be reset");
    }
}

/// A socket whose connection is elsewhere, or over. It says nothing.
fn given_up(key: FlowKey, socket: OwnedFd) -> Moved {
    if let Err(error) = repair::close_silently(socket) {
        tracing::warn!(%error, %key, "the old end of a moved connection could not be closed silently");
    }
    Moved::Gone
}

/// The socket stays here, unless its connection has ended meanwhile.
fn stays(key: FlowKey, socket: OwnedFd, load: Option<(larder_core::Decision, Load)>) -> Moved {
    let Some((decision, load)) = load else { return given_up(key, socket) };
    let stream = std::net::TcpStream::from(socket);
    let tcp = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    match tcp {
        Ok(tcp) => Moved::Stays(tcp, load.started(decision)),
        Err(error) => {
            let error: io::Error = error;
            tracing::warn!(%error, %key, "a connection could not be given back to the runtime");
            Moved::Lost
        }
    }
}
