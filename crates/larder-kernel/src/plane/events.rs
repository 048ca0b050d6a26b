//! What the programs tell.

use super::ring::Ring;
use crate::FlowKey;
use crate::abi::{Event, Flow, event_kind};
use zerocopy::FromBytes;

/// What the forwarding plane tells, in the order in which it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneEvent<'a> {
    /// A packet of a held connection. It went nowhere: who reads this passes it on, or the client sends it again.
    Punt {
        /// The connection.
        key: FlowKey,
        /// The packet that opened the connection here.
        first: bool,
        /// Under which the fast path looks for the target; only with the first packet, and only if it is a GET whose
        /// first two lines are whole and say the host.
        head_hash: Option<u64>,
        /// When it came. `CLOCK_MONOTONIC`, ns, as all times here.
        at_ns: u64,
        /// The Ethernet frame, for [`super::Plane::forward`].
        packet: &'a [u8],
    },
    /// The fast path has opened a connection and passes it on.
    Opened {
        /// The connection.
        key: FlowKey,
        /// Its node.
        node: u16,
        /// The route of the decision it used.
        route: u16,
        /// The service class of that decision.
        class: u8,
        /// The target of that decision.
        target: u64,
        /// When.
        at_ns: u64,
    },
    /// A copy of a later packet with payload of a handed-off connection; one of sixteen is shown.
    Later {
        /// The connection.
        key: FlowKey,
        /// When.
        at_ns: u64,
        /// The Ethernet frame.
        packet: &'a [u8],
    },
    /// A connection that was marked as idle has a packet with payload again.
    Woke {
        /// The connection.
        key: FlowKey,
        /// Its node.
        node: u16,
        /// When.
        at_ns: u64,
    },
    /// The client has ended its side, or all, or begun anew on the same addresses. Once per connection.
    Ended {
        /// The connection.
        key: FlowKey,
        /// Its node; [`crate::abi::NO_NODE`] while it is held.
        node: u16,
        /// See [`crate::abi::flow_flag`].
        flags: u8,
        /// What it was.
        account: Account,
        /// When.
        at_ns: u64,
    },
}

/// What the plane has seen of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes that the client has acknowledged, modulo 2^32, the node's FIN included.
    pub acknowledged: u32,
    /// The client's packets with payload.
    pub requests: u32,
}

impl Account {
    /// Of a connection as it stands; `None` while nothing of it was forwarded.
    pub fn of(flow: &Flow) -> Option<Self> {
        let acknowledged = flow.last_ack.wrapping_sub(flow.first_ack);
        (flow.packets > 0).then_some(Self { acknowledged, requests: flow.requests })
    }
}

/// A record of the ring; `None` if it is none of ours.
fn decode(record: &[u8]) -> Option<PlaneEvent<'_>> {
    let (event, rest) = Event::read_from_prefix(record).ok()?;
    let (key, at_ns) = (FlowKey::from(event.flow), event.at_ns);
    match event.kind {
        event_kind::PUNT => Some(PlaneEvent::Punt {
            key,
            first: event.first == 1,
            head_hash: (event.target != 0).then_some(event.target),
            at_ns,
            packet: rest.get(..usize::try_from(event.packet_bytes).ok()?)?,
        }),
        event_kind::OPENED => Some(PlaneEvent::Opened {
            key,
            node: event.node,
            route: event.route,
            class: event.class,
            target: event.target,
            at_ns,
        }),
        event_kind::LATER => {
            let packet = rest.get(..usize::try_from(event.packet_bytes).ok()?)?;
            Some(PlaneEvent::Later { key, at_ns, packet })
        }
        event_kind::WOKE => Some(PlaneEvent::Woke { key, node: event.node, at_ns }),
        event_kind::ENDED => {
            let [low, high] = [event.target, event.target >> 32].map(|half| half as u32);
            let account = Account { acknowledged: low, requests: high };
            Some(PlaneEvent::Ended { key, node: event.node, flags: event.flags, account, at_ns })
        }
        _ => None,
    }
}

/// Hands up to `limit` events to `take`. Returns how many.
pub(super) fn read(ring: &mut Ring, limit: usize, mut take: impl FnMut(PlaneEvent<'_>)) -> usize {
    ring.read(limit, |record| {
        if let Some(event) = decode(record) {
            take(event);
        }
    })
}
