//! Outgoing handoffs: while the node drains, it hands its connections off to other nodes.
//!
//! 1. The server offers a connection that is idle between two requests ([`HandoffOffers::offer`]). The agent sends the
//!    offer to a switch ([`FromNode::Offer`]).
//! 2. The switch directs the connection's packets to another node, where they wait, and asks for the state
//!    ([`ToNode::RequestState`]).
//! 3. The agent freezes the connection: its packets do not reach the socket, and what the socket sends is dropped,
//!    because it could acknowledge data that is not in the state (race R4). Then the agent sends the state
//!    ([`FromNode::Transfer`]).
//! 4. After [`ToNode::Transferred`] the agent closes the socket silently. After [`ToNode::Keep`] the connection
//!    continues here and gets the packets that were held.
//!
//! If the channel breaks between steps 3 and 4, the agent does not know which node has the connection. It stays frozen,
//! and the switch is asked again when it reconnects. After [`FROZEN_TIMEOUT`] the connection is reset.

use super::core::Core;
use super::kernel::NodeKernel;
use crate::channel::identity::PublicKey;
use crate::channel::message::{Blob, Connection, FromNode, Handoff, ToNode};
use larder_kernel::FlowKey;
use larder_kernel::plane::now_ns;
use larder_kernel::repair::{self, RaceFixes};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot, watch};

/// Logs the failure of an operation on a socket, with a rate limit for each place of the code.
macro_rules! log_failure {
    ($operation:literal, $result:expr) => {
        if let Err(error) = $result {
            larder_log::limited_warn!(%error, operation = $operation, "handoff: socket operation failed");
        }
    };
}

/// Maximum time for a switch to answer an offer. After that, the next switch is asked, or the server gets the
/// connection back.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum time that a connection stays frozen without an answer.
const FROZEN_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of outgoing handoffs; further offers are declined. Equals the size of the kernel's table of frozen
/// connections.
pub const OUTGOING_MAX: usize = 16_384;
/// Maximum number of offers that wait for the agent.
pub(super) const OFFER_QUEUE_MAX: usize = 1_024;

/// A connection that is idle between two requests.
#[derive(Debug)]
pub struct IdleConnection {
    /// The client's address.
    pub client: SocketAddr,
    /// The listen address.
    pub server: SocketAddr,
    /// The connection's only socket descriptor.
    pub socket: OwnedFd,
    /// Bytes of the client that have been read but not answered.
    pub unread: Vec<u8>,
}

/// An offered connection, and the channel that returns it if no node takes it.
#[derive(Debug)]
pub(super) struct Offer {
    connection: IdleConnection,
    returned: oneshot::Sender<Option<IdleConnection>>,
}

/// Handle that offers connections to other nodes; see [`super::Agent::offers`].
#[derive(Clone, Debug)]
pub struct HandoffOffers {
    pub(super) offers: mpsc::Sender<Offer>,
    pub(super) release: watch::Receiver<u64>,
}

impl HandoffOffers {
    /// Offers a connection to other nodes. Returns it unchanged if no node takes it.
    pub async fn offer(&self, connection: IdleConnection) -> Option<IdleConnection> {
        let (returned, answer) = oneshot::channel();
        if let Err(mpsc::error::SendError(offer)) = self.offers.send(Offer { connection, returned }).await {
            return Some(offer.connection);
        }
        // If the agent has ended, the connection is lost.
        answer.await.unwrap_or(None)
    }

    /// Ignores all release requests so far: [`Self::wait_for_release`] waits for the next one.
    pub fn clear_release(&mut self) {
        self.release.mark_unchanged();
    }

    /// Waits until a switch asks this node to release its idle connections.
    pub async fn wait_for_release(&mut self) {
        if self.release.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// A connection that is being handed off to another node.
#[derive(Debug)]
pub(super) struct OutgoingHandoff {
    offer: Offer,
    /// The switch that was asked.
    switch: PublicKey,
    /// Switches to ask if this one declines.
    other_switches: Vec<PublicKey>,
    since: Instant,
    frozen: bool,
}

impl Core {
    /// Handles an offer of the server.
    pub(super) fn accept_offer(&mut self, offer: Offer) {
        let place = self.switches.service_of(offer.connection.server);
        let Some(service) = place.filter(|_| self.kernel.is_some() && self.outgoing.len() < OUTGOING_MAX)
        else {
            return return_offer(offer);
        };
        let flow = FlowKey::new(offer.connection.client, service);
        let mut other_switches: Vec<PublicKey> = self
            .connected
            .keys()
            .copied()
            .filter(|&key| self.switches.switch_service(key, service).is_some())
            .collect();
        let Some(switch) = other_switches.pop() else { return return_offer(offer) };
        let handoff = OutgoingHandoff { offer, switch, other_switches, since: Instant::now(), frozen: false };
        if let Some(before) = self.outgoing.insert(flow, handoff) {
            // A new connection has the same addresses, so the old one has ended.
            return_offer(before.offer);
        }
        self.send_offer(flow);
    }

    fn send_offer(&mut self, flow: FlowKey) {
        let Some(switch) = self.outgoing.get(&flow).map(|handoff| handoff.switch) else { return };
        if let Some(service) = self.switches.switch_service(switch, flow.service) {
            self.send(switch, &FromNode::Offer(Connection { client: flow.client, service }));
        }
    }

    /// Handles a switch's message about an outgoing handoff.
    pub(super) fn handle_migration(&mut self, switch: PublicKey, message: &ToNode) {
        let (ToNode::RequestState(connection) | ToNode::Transferred(connection) | ToNode::Keep(connection)) =
            *message
        else {
            return;
        };
        let Some(kernel) = self.kernel.clone() else { return };
        let flow = self.flow_key(switch, connection);
        let service =
            |flow: &FlowKey| self.outgoing.get(flow).is_some_and(|handoff| handoff.switch == switch);
        let Some(flow) = flow.filter(service) else {
            if matches!(message, ToNode::RequestState(_)) {
                self.send(switch, &FromNode::Withdraw(connection));
            }
            return;
        };
        match message {
            ToNode::RequestState(_) => self.send_state(&*kernel, flow, connection),
            ToNode::Transferred(_) => {
                if let Some(handoff) = self.outgoing.remove(&flow) {
                    close_offer(handoff.offer);
                    self.stash.remove(flow);
                    kernel.remove_connection(flow);
                    self.first_seqs.remove(flow);
                    log_failure!("thaw", &kernel.thaw(flow));
                }
            }
            _ => {
                self.thaw(&*kernel, flow);
                self.offer_to_next(flow);
            }
        }
    }

    fn offer_to_next(&mut self, flow: FlowKey) {
        let next = self.outgoing.get_mut(&flow).and_then(|handoff| {
            handoff.switch = handoff.other_switches.pop()?;
            handoff.since = Instant::now();
            Some(())
        });
        match next {
            Some(()) => self.send_offer(flow),
            None => {
                if let Some(handoff) = self.outgoing.remove(&flow) {
                    return_offer(handoff.offer);
                }
            }
        }
    }

    fn send_state(&mut self, kernel: &dyn NodeKernel, flow: FlowKey, connection: Connection) {
        log_failure!("freeze", &kernel.freeze(flow));
        // Packets that arrive from now on belong to the node that gets the connection.
        self.stash.hold(flow);
        let Some(handoff) = self.outgoing.get_mut(&flow) else { return };
        let socket = handoff.offer.connection.socket.as_fd();
        let first_seq = self.first_seqs.get(flow);
        let read = repair::checkpoint(socket, &RaceFixes::default()).map_err(|error| error.to_string());
        let message = read.and_then(|checkpoint| {
            let frame = checkpoint.encode().map_err(|error| error.to_string())?;
            let request = Blob(handoff.offer.connection.unread.clone());
            Ok(FromNode::Transfer(Handoff { id: 0, connection, first_seq, checkpoint: Blob(frame), request }))
        });
        (handoff.frozen, handoff.since) = (true, Instant::now());
        let switch = handoff.switch;
        match message {
            Ok(message) => self.send(switch, &message),
            Err(reason) => {
                tracing::debug!(reason, %flow, "handoff: state not read, the connection stays here");
                self.send(switch, &FromNode::Withdraw(connection));
                self.thaw(kernel, flow);
                return_outgoing(self.outgoing.remove(&flow));
            }
        }
    }

    /// Lets a frozen connection continue on this node.
    fn thaw(&mut self, kernel: &dyn NodeKernel, flow: FlowKey) {
        let Some(handoff) = self.outgoing.get_mut(&flow).filter(|handoff| handoff.frozen) else { return };
        handoff.frozen = false;
        let resumed = repair::resume(handoff.offer.connection.socket.as_fd());
        log_failure!("thaw", &kernel.thaw(flow));
        log_failure!("resume a frozen connection", &resumed);
        for packet in self.stash.mark_restored(Instant::now(), now_ns(), flow) {
            log_failure!("reinject a packet", &kernel.reinject(&packet));
        }
    }

    /// Repeats all offers to a switch that has reconnected.
    pub(super) fn resend_offers(&mut self, switch: PublicKey) {
        let theirs =
            |(flow, handoff): (&FlowKey, &OutgoingHandoff)| (handoff.switch == switch).then_some(*flow);
        let flows: Vec<FlowKey> = self.outgoing.iter().filter_map(theirs).collect();
        flows.into_iter().for_each(|flow| self.send_offer(flow));
    }

    /// Withdraws the offers to a switch that has disconnected, unless the connection is frozen. The next switch is
    /// asked, or the server gets the connection back.
    pub(super) fn withdraw_offers(&mut self, switch: PublicKey) {
        let only = |(flow, handoff): (&FlowKey, &OutgoingHandoff)| {
            (handoff.switch == switch && !handoff.frozen).then_some(*flow)
        };
        let flows: Vec<FlowKey> = self.outgoing.iter().filter_map(only).collect();
        flows.into_iter().for_each(|flow| self.offer_to_next(flow));
    }

    /// Ends outgoing handoffs that have waited too long.
    pub(super) fn expire_outgoing(&mut self, now: Instant) {
        let Some(kernel) = self.kernel.clone() else { return };
        let late = |(flow, handoff): (&FlowKey, &OutgoingHandoff)| {
            let wait = if handoff.frozen { FROZEN_TIMEOUT } else { ANSWER_TIMEOUT };
            (now.saturating_duration_since(handoff.since) >= wait).then_some(*flow)
        };
        let flows: Vec<FlowKey> = self.outgoing.iter().filter_map(late).collect();
        for flow in flows {
            let Some(handoff) = self.outgoing.get(&flow) else { continue };
            if !handoff.frozen {
                self.offer_to_next(flow);
                continue;
            }
            larder_log::limited_warn!(client = %flow.client, timeout = ?FROZEN_TIMEOUT, "handoff: frozen connection reset, no switch said where it is");
            let socket = socket2::SockRef::from(&handoff.offer.connection.socket);
            log_failure!("reset a frozen connection", &socket.set_linger(Some(Duration::ZERO)));
            self.thaw(&*kernel, flow);
            if let Some(OutgoingHandoff { offer: Offer { connection, returned }, .. }) =
                self.outgoing.remove(&flow)
            {
                drop(connection);
                let _ = returned.send(None);
            }
        }
    }
}

fn return_outgoing(handoff: Option<OutgoingHandoff>) {
    if let Some(handoff) = handoff {
        return_offer(handoff.offer);
    }
}

fn return_offer(offer: Offer) {
    let Offer { connection, returned } = offer;
    // If the server has ended, the connection is dropped here and thereby closed.
    let _ = returned.send(Some(connection));
}

/// Closes a connection that another node has taken.
fn close_offer(offer: Offer) {
    let Offer { connection, returned } = offer;
    log_failure!("close a connection silently", &repair::close_silently(connection.socket));
    let _ = returned.send(None);
}

/// The agent's side of [`HandoffOffers`].
#[derive(Debug)]
pub(super) struct OfferQueue {
    pub(super) offers: mpsc::Receiver<Offer>,
    pub(super) release: watch::Sender<u64>,
}
