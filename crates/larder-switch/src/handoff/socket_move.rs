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
use larder_handoff::frozen::{FrozenSocket, close_silently};
use larder_kernel::FlowKey;
use larder_kernel::repair::FrozenState;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
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
        let frozen = match FrozenSocket::freeze(key, socket, &self.config.fixes) {
            Ok((frozen, FrozenState { frame: checkpoint, first_ack, first_seq, next_seq })) => {
                self.datapath.note_frozen(key, next_seq, first_ack);
                let state = ConnectionState { checkpoint, unread: Vec::new() };
                self.handle_input(Input::Frozen { key, id, first_seq, first_ack, state });
                frozen
            }
            Err(socket) => {
                let kept = self.handle_input(Input::NotFrozen { key, id });
                let Some(socket) = socket else { return MoveOutcome::Lost };
                return match kept {
                    Some(MoveStart::Kept(load)) => keep_socket(key, socket, load),
                    // The outcome arrived meanwhile. No other host can have the connection.
                    _ => match answer.await {
                        Ok(SocketOutcome::Thaw(decision, load)) => {
                            keep_socket(key, socket, Some((decision, load)))
                        }
                        _ => keep_socket(key, socket, None),
                    },
                };
            }
        };
        match answer.await {
            Ok(SocketOutcome::Thaw(decision, load)) => match frozen.resume() {
                Some(socket) => keep_socket(key, socket, Some((decision, load))),
                None => {
                    let _ = self.datapath.reset_client(key);
                    MoveOutcome::Lost
                }
            },
            Ok(SocketOutcome::Abort) => {
                frozen.reset();
                MoveOutcome::Lost
            }
            // Otherwise the edge has ended.
            Ok(SocketOutcome::Close) | Err(_) => {
                frozen.close();
                MoveOutcome::HandedOff
            }
        }
    }
}

/// Keeps the socket here, unless its connection has ended meanwhile.
fn keep_socket(
    key: FlowKey,
    socket: OwnedFd,
    load: Option<(larder_core::Decision, ConnectionLoad)>,
) -> MoveOutcome {
    let Some((decision, load)) = load else {
        close_silently(key, socket);
        return MoveOutcome::HandedOff;
    };
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
