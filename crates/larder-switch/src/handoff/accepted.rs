//! Chooses and starts the delivery of an accepted connection, before any byte of it is read.
//!
//! A connection that the plane has held comes with its decision ([`Edge::take_pending_accept`]). For any other
//! connection, the first bytes are peeked at (`MSG_PEEK`). The dispatcher is asked only if the connection may be
//! moved or spliced.

use super::edge::{Edge, PendingAccept};
use super::log_text::LogText;
use super::mechanism::{Delivery, DeliveryReason, FirstBytes, Mechanism, MechanismSetting};
use super::opening::{self, Opening};
use super::socket_move::MoveOutcome;
use super::splice;
use crate::lease::{Lease, Placement, StartedRequest};
use larder_core::{Refusal, Request};
use larder_kernel::FlowKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// Maximum number of bytes to peek at.
const PEEK_BYTES: usize = 16 << 10;
/// Size of the first peek, which fits most headers. Bytes.
const PEEK_FIRST_BYTES: usize = 2 << 10;
/// Pause between two peeks at an incomplete header.
const PEEK_PAUSE: Duration = Duration::from_millis(1);

/// Result of the delivery of an accepted connection.
pub(crate) enum AcceptedDelivery {
    /// The connection is relayed. Its first request has been decided or refused, or not yet.
    Relay(TcpStream, Delivery, Option<Placement>),
    /// The connection was delivered or has ended.
    Done,
}

/// Whether the first byte is that of a TLS handshake.
async fn begins_with_tls(tcp: &TcpStream) -> bool {
    let mut byte = [0; 1];
    // The packet reached this host's stack before the connection was accepted.
    let peeked = tokio::time::timeout(PEEK_PAUSE, tcp.peek(&mut byte)).await;
    matches!(peeked, Ok(Ok(1))) && byte[0] == opening::HANDSHAKE
}

/// Request found in the first bytes.
struct PeekedRequest {
    first_bytes: FirstBytes,
    header: Option<(Request, Option<Arc<LogText>>)>,
}

impl Edge {
    /// Chooses how an accepted connection is delivered, and delivers it unless it is relayed.
    pub(crate) async fn deliver(self: &Arc<Self>, tcp: TcpStream, client: SocketAddr) -> AcceptedDelivery {
        let local = tcp.local_addr().ok();
        let pending = local.and_then(|local| self.take_pending_accept(client, local));
        let peeked = match &pending {
            Some(PendingAccept { delivery, outcome: Some(Err(refusal)), .. }) => {
                let (delivery, refusal) = (*delivery, *refusal);
                return self.relay_refusal(tcp, delivery, refusal).await;
            }
            Some(PendingAccept { delivery, outcome: None, .. })
                if delivery.mechanism == Mechanism::Relay && !begins_with_tls(&tcp).await =>
            {
                let delivery = *delivery;
                return self.relay(tcp, delivery, None);
            }
            None if self.config.setting == MechanismSetting::Relay && !self.config.tls => {
                return self.relay(tcp, Delivery::relay(DeliveryReason::Configured), None);
            }
            _ => self.peek(&tcp).await,
        };
        if let Some(delivery) = self.facts(peeked.first_bytes, true).before_node()
            && delivery.mechanism == Mechanism::Relay
        {
            return self.relay(tcp, delivery, pending.and_then(|pending| pending.outcome));
        }
        let Some((request, text)) = peeked.header else {
            return self.relay(tcp, Delivery::relay(DeliveryReason::Unreadable), None);
        };
        if let Some(delivery) = self.route_facts(request.route, peeked.first_bytes, true).before_node()
            && delivery.mechanism == Mechanism::Relay
        {
            return self.relay(tcp, delivery, pending.and_then(|pending| pending.outcome));
        }
        let started = match self.start_request(pending, request).await {
            Ok(started) => started,
            Err(refusal) => {
                return self.relay_refusal(tcp, Delivery::relay(DeliveryReason::Refused), refusal).await;
            }
        };
        let setting = self.route_facts(started.request.route, peeked.first_bytes, true).before_node();
        let delivery = setting.unwrap_or_else(|| {
            self.choose_delivery(started.request, started.decision.node, peeked.first_bytes, true)
        });
        match delivery.mechanism {
            Mechanism::Splice => {
                let port = local
                    .filter(|_| peeked.first_bytes == FirstBytes::Tls)
                    .and_then(|local| self.node_port(local));
                self.splice(tcp, started, (delivery, port)).await
            }
            Mechanism::Repair => {
                let Some(service) = local.and_then(|local| self.service(local)) else {
                    return self.relay(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
                };
                match self.move_socket(FlowKey::new(client, service), tcp, started, text).await {
                    MoveOutcome::HandedOff | MoveOutcome::Lost => AcceptedDelivery::Done,
                    MoveOutcome::Kept(tcp, started) => {
                        self.relay(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)))
                    }
                }
            }
            Mechanism::Relay | Mechanism::Cookie => self.relay(tcp, delivery, Some(Ok(started))),
        }
    }

    fn relay(&self, tcp: TcpStream, delivery: Delivery, outcome: Option<Placement>) -> AcceptedDelivery {
        self.counts.delivered(delivery);
        AcceptedDelivery::Relay(tcp, delivery, outcome)
    }

    /// Relays a refused connection, so that the relay replies with the refusal. The dispatcher is not asked again. A
    /// TLS connection that does not end here gets no reply.
    async fn relay_refusal(&self, tcp: TcpStream, delivery: Delivery, refusal: Refusal) -> AcceptedDelivery {
        if begins_with_tls(&tcp).await {
            self.counts.delivered(delivery);
            return AcceptedDelivery::Done;
        }
        self.relay(tcp, delivery, Some(Err(refusal)))
    }

    /// Returns the decision that came with the connection, or asks for a new one.
    async fn start_request(&self, pending: Option<PendingAccept>, request: Request) -> Placement {
        if let Some(outcome) = pending.and_then(|pending| pending.outcome) {
            return outcome;
        }
        let mut lease = Lease::new(self.decider.clone());
        let decision = match lease.arrive(self.decider.clock.now(), request)? {
            Some(decision) => decision,
            None => lease.wait().await?,
        };
        Ok(StartedRequest { lease, request, decision })
    }

    /// Peeks at the first bytes, for as long as a header may take.
    async fn peek(&self, tcp: &TcpStream) -> PeekedRequest {
        let mut bytes = vec![0; PEEK_FIRST_BYTES];
        let deadline = tokio::time::Instant::now() + self.timeouts.header;
        let mut rest_until = None;
        loop {
            let peeked = tokio::time::timeout_at(deadline, tcp.peek(&mut bytes)).await;
            let Ok(Ok(length @ 1..)) = peeked else {
                return PeekedRequest { first_bytes: FirstBytes::Partial, header: None };
            };
            if length == bytes.len() && length < PEEK_BYTES {
                bytes.resize(PEEK_BYTES, 0);
                continue;
            }
            let client = tcp.peer_addr().ok().map(|client| client.ip());
            let first_bytes = match opening::parse(&bytes[..length]) {
                Opening::Http(header) => {
                    let text = self.observers.access.is_some().then(|| self.history.texts.create(&header));
                    let text = text.flatten().map(Arc::new);
                    return PeekedRequest {
                        first_bytes: FirstBytes::Http1,
                        header: Some((self.request(&header, &*header, client), text)),
                    };
                }
                Opening::Tls(name) => {
                    let first_bytes = if self.config.tls { FirstBytes::Tls } else { FirstBytes::TlsHere };
                    let request = self.request_by_name(&name, client);
                    return PeekedRequest { first_bytes, header: Some((request, None)) };
                }
                Opening::Unusable(first_bytes) => first_bytes,
            };
            // Bytes that the relay cannot handle are waited for as long as a header may take.
            let patience =
                if bytes[0] == opening::HANDSHAKE { self.timeouts.header } else { self.config.header_wait };
            let until = *rest_until.get_or_insert(tokio::time::Instant::now() + patience);
            if first_bytes != FirstBytes::Partial
                || length == bytes.len()
                || tokio::time::Instant::now() >= until
            {
                return PeekedRequest { first_bytes, header: None };
            }
            // Unread bytes keep the socket readable, so readiness does not tell when more arrive.
            tokio::time::sleep(PEEK_PAUSE).await;
        }
    }

    /// Returns the port at nodes for spliced TLS connections: the port that the client used, as with `cookie`.
    /// Returns `None` if all listen addresses have the same port, and the node's own port is used.
    fn node_port(&self, local: SocketAddr) -> Option<u16> {
        let port = local.port();
        self.services.iter().any(|service| service.port() != port).then_some(port)
    }

    async fn splice(
        &self,
        tcp: TcpStream,
        started: StartedRequest,
        (delivery, port): (Delivery, Option<u16>),
    ) -> AcceptedDelivery {
        let Some(node) = self.decider.nodes.get(started.decision.node).and_then(|node| node.to_arc()) else {
            return self.relay(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
        };
        let mut address = node.resolved;
        address.set_port(port.unwrap_or(address.port()));
        let connected = tokio::time::timeout(self.timeouts.connect, TcpStream::connect(address)).await;
        let back = match connected {
            Ok(Ok(back)) => back,
            // Nothing was read, so the relay can try this node again, or another one.
            Ok(Err(_)) | Err(_) => {
                return self.relay(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
            }
        };
        let _ = back.set_nodelay(true);
        let Ok(pipes) = splice::Pipes::new() else {
            return self.relay(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
        };
        self.counts.delivered(delivery);
        self.decider.metrics.handed_off(started.decision, started.request);
        self.decider.metrics.node_connected(started.decision.node);
        let began = self.decider.clock.now();
        let (sent, ended) = splice::splice_both(tcp, back, pipes, self.timeouts.node_read).await;
        if let Err(error) = ended {
            tracing::debug!(%error, node = &*node.name, "handoff: splice failed");
        }
        let now = self.decider.clock.now();
        let end = crate::metrics::HandoffEnd { node: started.decision.node, bytes: sent, total: now - began };
        self.decider.metrics.handoff_ended(&end);
        let StartedRequest { mut lease, .. } = started;
        lease.release(now);
        AcceptedDelivery::Done
    }
}
