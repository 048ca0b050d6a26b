//! An accepted connection, before anything of it is read: how it is delivered.
//!
//! A connection that the plane has held comes with its decision ([`Edge::placed`]). Of any other one the first bytes are
//! looked at without taking them (`MSG_PEEK`); the dispatcher is asked only where the answer may be a move or a splice.

use super::edge::{Edge, Placed};
use super::first::{self, First};
use super::mechanism::{Delivery, DeliveryReason, FirstBytes, Mechanism, MechanismSetting};
use super::moving::Moved;
use super::splice;
use super::text::Text;
use crate::lease::{Lease, Placement, StartedRequest};
use larder_core::{Refusal, Request};
use larder_kernel::FlowKey;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;

/// The most of a header that is looked at. Bytes.
const PEEK_BYTES: usize = 16 << 10;
/// What most headers fit into. Bytes.
const PEEK_FIRST_BYTES: usize = 2 << 10;
/// How often an incomplete header is looked at again.
const PEEK_PAUSE: Duration = Duration::from_millis(1);

/// What is to be done with an accepted connection.
pub(crate) enum Entered {
    /// It is relayed: its first request has been decided or refused, or not yet.
    Relay(TcpStream, Delivery, Option<Placement>),
    /// It has been dealt with.
    Done,
}

/// Whether the first byte is that of a TLS handshake.
async fn begins_with_tls(tcp: &TcpStream) -> bool {
    let mut byte = [0; 1];
    // It was handed to this host's stack before it was accepted.
    let peeked = tokio::time::timeout(PEEK_PAUSE, tcp.peek(&mut byte)).await;
    matches!(peeked, Ok(Ok(1))) && byte[0] == first::HANDSHAKE
}

/// What the first bytes ask for.
struct Seen {
    first_bytes: FirstBytes,
    asked: Option<(Request, Option<Arc<Text>>)>,
}

impl Edge {
    /// Decides how an accepted connection is delivered, and delivers it unless it is relayed.
    pub(crate) async fn enter(self: &Arc<Self>, tcp: TcpStream, client: SocketAddr) -> Entered {
        let local = tcp.local_addr().ok();
        let placed = local.and_then(|local| self.placed(client, local));
        let seen = match &placed {
            Some(Placed { delivery, outcome: Some(Err(refusal)), .. }) => {
                let (delivery, refusal) = (*delivery, *refusal);
                return self.refused(tcp, delivery, refusal).await;
            }
            Some(Placed { delivery, outcome: None, .. })
                if delivery.mechanism == Mechanism::Relay && !begins_with_tls(&tcp).await =>
            {
                let delivery = *delivery;
                return self.relayed(tcp, delivery, None);
            }
            None if self.config.setting == MechanismSetting::Relay && !self.config.tls => {
                return self.relayed(tcp, Delivery::relay(DeliveryReason::Configured), None);
            }
            _ => self.look(&tcp).await,
        };
        if let Some(delivery) = self.facts(seen.first_bytes, true).before_node()
            && delivery.mechanism == Mechanism::Relay
        {
            return self.relayed(tcp, delivery, placed.and_then(|placed| placed.outcome));
        }
        let Some((request, text)) = seen.asked else {
            return self.relayed(tcp, Delivery::relay(DeliveryReason::Unreadable), None);
        };
        if let Some(delivery) = self.facts_of(request.route, seen.first_bytes, true).before_node()
            && delivery.mechanism == Mechanism::Relay
        {
            return self.relayed(tcp, delivery, placed.and_then(|placed| placed.outcome));
        }
        let started = match self.started(placed, request).await {
            Ok(started) => started,
            Err(refusal) => {
                return self.refused(tcp, Delivery::relay(DeliveryReason::Refused), refusal).await;
            }
        };
        let setting = self.facts_of(started.request.route, seen.first_bytes, true).before_node();
        let delivery = setting
            .unwrap_or_else(|| self.delivery(started.request, started.decision.node, seen.first_bytes, true));
        match delivery.mechanism {
            Mechanism::Splice => {
                let port =
                    local.filter(|_| seen.first_bytes == FirstBytes::Tls).and_then(|local| self.port(local));
                self.splice(tcp, started, (delivery, port)).await
            }
            Mechanism::Repair => {
                let Some(service) = local.and_then(|local| self.service(local)) else {
                    return self.relayed(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
                };
                match self.move_socket(FlowKey::new(client, service), tcp, started, text).await {
                    Moved::Gone | Moved::Lost => Entered::Done,
                    Moved::Stays(tcp, started) => {
                        self.relayed(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)))
                    }
                }
            }
            Mechanism::Relay | Mechanism::Cookie => self.relayed(tcp, delivery, Some(Ok(started))),
        }
    }

    fn relayed(&self, tcp: TcpStream, delivery: Delivery, outcome: Option<Placement>) -> Entered {
        self.counts.delivered(delivery);
        Entered::Relay(tcp, delivery, outcome)
    }

    /// The dispatcher has refused, perhaps after a long wait, and is not asked again: the relay says so. There is nothing
    /// to say in TLS that is not ended here.
    async fn refused(&self, tcp: TcpStream, delivery: Delivery, refusal: Refusal) -> Entered {
        if begins_with_tls(&tcp).await {
            self.counts.delivered(delivery);
            return Entered::Done;
        }
        self.relayed(tcp, delivery, Some(Err(refusal)))
    }

    /// The decision that came with the connection, or a new one.
    async fn started(&self, placed: Option<Placed>, request: Request) -> Placement {
        if let Some(outcome) = placed.and_then(|placed| placed.outcome) {
            return outcome;
        }
        let mut lease = Lease::new(self.decider.clone());
        let decision = match lease.arrive(self.decider.clock.now(), request)? {
            Some(decision) => decision,
            None => lease.wait().await?,
        };
        Ok(StartedRequest { lease, request, decision })
    }

    /// Looks at the first bytes, for as long as a header may be awaited.
    async fn look(&self, tcp: &TcpStream) -> Seen {
        let mut bytes = vec![0; PEEK_FIRST_BYTES];
        let deadline = tokio::time::Instant::now() + self.timeouts.header;
        let mut rest_until = None;
        loop {
            let peeked = tokio::time::timeout_at(deadline, tcp.peek(&mut bytes)).await;
            let Ok(Ok(length @ 1..)) = peeked else {
                return Seen { first_bytes: FirstBytes::Partial, asked: None };
            };
            if length == bytes.len() && length < PEEK_BYTES {
                bytes.resize(PEEK_BYTES, 0);
                continue;
            }
            let client = tcp.peer_addr().ok().map(|client| client.ip());
            let first_bytes = match first::read(&bytes[..length]) {
                First::Http(asked) => {
                    let text = self.observers.access.is_some().then(|| self.learned.texts.of(&asked));
                    let text = text.flatten().map(Arc::new);
                    return Seen {
                        first_bytes: FirstBytes::Http1,
                        asked: Some((self.request(&asked, &*asked, client), text)),
                    };
                }
                First::Tls(name) => {
                    let first_bytes = if self.config.tls { FirstBytes::Tls } else { FirstBytes::TlsHere };
                    let request = self.request_by_name(&name, client);
                    return Seen { first_bytes, asked: Some((request, None)) };
                }
                First::No(first_bytes) => first_bytes,
            };
            // What the relay cannot speak is waited for as long as a header may take.
            let patience =
                if bytes[0] == first::HANDSHAKE { self.timeouts.header } else { self.config.header_wait };
            let until = *rest_until.get_or_insert(tokio::time::Instant::now() + patience);
            if first_bytes != FirstBytes::Partial
                || length == bytes.len()
                || tokio::time::Instant::now() >= until
            {
                return Seen { first_bytes, asked: None };
            }
            // What is there stays readable, so that readiness says nothing of what is missing.
            tokio::time::sleep(PEEK_PAUSE).await;
        }
    }

    /// Where nodes speak what clients of `local` do, if that is not at their own port: what is passed through unopened comes
    /// to the port that the client came to, as by `cookie`, unless the switch has but one.
    fn port(&self, local: SocketAddr) -> Option<u16> {
        let port = local.port();
        self.services.iter().any(|service| service.port() != port).then_some(port)
    }

    async fn splice(
        &self,
        tcp: TcpStream,
        started: StartedRequest,
        (delivery, port): (Delivery, Option<u16>),
    ) -> Entered {
        let Some(node) = self.decider.nodes.get(started.decision.node).and_then(|node| node.to_arc()) else {
            return self.relayed(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
        };
        let mut address = node.resolved;
        address.set_port(port.unwrap_or(address.port()));
        let connected = tokio::time::timeout(self.timeouts.connect, TcpStream::connect(address)).await;
        let back = match connected {
            Ok(Ok(back)) => back,
            // Nothing has been read, so that the relay can try this node again, and others.
            Ok(Err(_)) | Err(_) => {
                return self.relayed(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
            }
        };
        let _ = back.set_nodelay(true);
        let Ok(pipes) = splice::Pipes::new() else {
            return self.relayed(tcp, Delivery::relay(DeliveryReason::Failed), Some(Ok(started)));
        };
        self.counts.delivered(delivery);
        self.decider.metrics.handed(started.decision, started.request);
        self.decider.metrics.node_connected(started.decision.node);
        let began = self.decider.clock.now();
        let (sent, ended) = splice::both_ways(tcp, back, pipes, self.timeouts.node_read).await;
        if let Err(error) = ended {
            tracing::debug!(%error, node = &*node.name, "a spliced connection broke");
        }
        let now = self.decider.clock.now();
        let end = crate::metrics::HandedEnd { node: started.decision.node, bytes: sent, total: now - began };
        self.decider.metrics.handed_ended(&end);
        let StartedRequest { mut lease, .. } = started;
        lease.release(now);
        Entered::Done
    }
}
