//! Moves a socket to a node (`repair`).
//!
//! The order of the steps avoids races. First the plane forwards the connection's packets, which wait at the node.
//! Then the socket is frozen and read, and its state is sent. The frozen socket is kept until the machine reports the
//! outcome ([`SocketOutcome`]).

use super::datapath::Datapath as _;
use super::edge::Edge;
use super::log_text::LogText;
use super::mechanism::{Delivery, DeliveryReason, Mechanism};
use super::outputs::MoveStart;
use super::parts::{ConnectionLoad, ConnectionState};
use crate::lease::StartedRequest;
use larder_core::handoff::{Input, SocketOutcome};
use larder_kernel::FlowKey;
use larder_kernel::repair::{self, FreezeError, FrozenState, freeze};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// Outcome of a move.
pub(super) enum MoveOutcome {
    /// The node has the connection, or it has ended.
    HandedOff,
    /// The connection and its load stay here; the log has the reason.
    Kept(TcpStream, StartedRequest),
    /// The connection is lost.
    Lost,
}

impl Edge {
    /// Moves a connection, of which nothing was read, to the chosen node.
    pub(super) async fn move_socket(
        self: &Arc<Self>,
        key: FlowKey,
        tcp: TcpStream,
        started: StartedRequest,
        text: Option<Arc<LogText>>,
    ) -> MoveOutcome {
        let socket = match tcp.into_std() {
            Ok(tcp) => OwnedFd::from(tcp),
            Err(error) => {
                larder_log::limited_warn!(%error, %key, "handoff: socket not taken from the runtime, the connection is lost");
                return MoveOutcome::Lost;
            }
        };
        // The plane may have reported the end of an earlier connection with these addresses. That event must be
        // handled first.
        self.drain();
        let (waiter, answer) = oneshot::channel();
        let (decision, load) = ConnectionLoad::new(
            started,
            Delivery { mechanism: Mechanism::Repair, reason: DeliveryReason::Repair },
            text,
        );
        let id = match self.handle_input(Input::Move { key, decision, load, waiter }) {
            Some(MoveStart::Freeze(id)) => id,
            Some(MoveStart::Kept(load)) => return keep_socket(key, socket, load),
            None => return MoveOutcome::Lost,
        };
        let frozen = match freeze(socket.as_fd(), &self.config.fixes) {
            Ok(FrozenState { frame: checkpoint, first_ack, first_seq, next_seq }) => {
                self.datapath.note_frozen(key, next_seq, first_ack);
                let state = ConnectionState { checkpoint, unread: Vec::new() };
                self.handle_input(Input::Frozen { key, id, first_seq, first_ack, state });
                true
            }
            Err(FreezeError { usable, reason }) => {
                tracing::debug!(reason, %key, "handoff: socket not frozen, the connection stays here");
                match self.handle_input(Input::NotFrozen { key, id }) {
                    Some(MoveStart::Kept(load)) if usable || load.is_none() => {
                        return keep_socket(key, socket, load);
                    }
                    // The outcome arrived meanwhile.
                    None if usable => false,
                    _ => return MoveOutcome::Lost,
                }
            }
        };
        match answer.await {
            Ok(SocketOutcome::Close) => close_silently(key, socket),
            Ok(SocketOutcome::Thaw(decision, load)) if !frozen => {
                keep_socket(key, socket, Some((decision, load)))
            }
            Ok(SocketOutcome::Thaw(decision, load)) => match repair::resume(socket.as_fd()) {
                Ok(()) => keep_socket(key, socket, Some((decision, load))),
                Err(error) => {
                    larder_log::limited_warn!(%error, %key, "handoff: socket not restored, the connection is reset");
                    let _ = self.datapath.reset_client(key);
                    MoveOutcome::Lost
                }
            },
            Ok(SocketOutcome::Abort) => {
                abort(key, socket);
                MoveOutcome::Lost
            }
            // The edge has ended.
            Err(_) => close_silently(key, socket),
        }
    }
}

/// Resets the client, with the sequence number that only the socket knows.
fn abort(key: FlowKey, socket: OwnedFd) {
    let reset = repair::resume(socket.as_fd())
        .and_then(|()| socket2::SockRef::from(&socket).set_linger(Some(Duration::ZERO)));
    drop(socket);
    if let Err(error) = reset {
        tracing::debug!(%error, %key, "handoff: reset of a lost connection failed");
    }
}

/// Closes a socket without sending a packet, because its connection is at a node or has ended.
fn close_silently(key: FlowKey, socket: OwnedFd) -> MoveOutcome {
    if let Err(error) = repair::close_silently(socket) {
        larder_log::limited_warn!(%error, %key, "handoff: socket of a moved connection not closed silently");
    }
    MoveOutcome::HandedOff
}

/// Keeps the socket here, unless its connection has ended meanwhile.
fn keep_socket(
    key: FlowKey,
    socket: OwnedFd,
    load: Option<(larder_core::Decision, ConnectionLoad)>,
) -> MoveOutcome {
    let Some((decision, load)) = load else { return close_silently(key, socket) };
    let stream = std::net::TcpStream::from(socket);
    let tcp = stream.set_nonblocking(true).and_then(|()| TcpStream::from_std(stream));
    match tcp {
        Ok(tcp) => MoveOutcome::Kept(tcp, load.started(decision)),
        Err(error) => {
            let error: io::Error = error;
            larder_log::limited_warn!(%error, %key, "handoff: socket not returned to the runtime, the connection is lost");
            MoveOutcome::Lost
        }
    }
}
