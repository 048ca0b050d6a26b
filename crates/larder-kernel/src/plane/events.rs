//! Events of the programs.

use super::ring::Ring;
use crate::FlowKey;
use crate::abi::{Event, Flow, event_kind};
use zerocopy::FromBytes;

/// An event of the forwarding plane. Events arrive in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaneEvent<'a> {
    /// A packet of a held connection. It was not sent anywhere: if the reader does not forward it, the client
    /// retransmits it.
    Punt {
        /// The connection.
        key: FlowKey,
        /// Whether the packet opened the connection here.
        first: bool,
        /// Hash under which the fast path looks up the target. Only with the first packet, and only if it is a GET with
        /// two complete lines that name the host.
        head_hash: Option<u64>,
        /// Time of arrival. This and all times here: nanoseconds of `CLOCK_MONOTONIC`.
        at_ns: u64,
        /// The Ethernet frame, for [`super::Plane::forward`].
        packet: &'a [u8],
    },
    /// The fast path has opened a connection and forwards it.
    Opened {
        /// The connection.
        key: FlowKey,
        /// The node's slot.
        node: u16,
        /// Route of the decision that was used.
        route: u16,
        /// Service class of that decision.
        class: u8,
        /// Target of that decision.
        target: u64,
        /// Time of the event.
        at_ns: u64,
    },
    /// A copy of a later packet with payload of a handed-off connection, one in sixteen.
    Sample {
        /// The connection.
        key: FlowKey,
        /// Time of the event.
        at_ns: u64,
        /// The Ethernet frame.
        packet: &'a [u8],
    },
    /// A connection that was marked as idle has sent payload again, or shows activity after its end.
    Resumed {
        /// The connection.
        key: FlowKey,
        /// The node's slot.
        node: u16,
        /// Time of the event.
        at_ns: u64,
    },
    /// The client has sent a FIN or a RST, or has opened a new connection on the same addresses. Once per connection.
    Ended {
        /// The connection.
        key: FlowKey,
        /// The node's slot; [`crate::abi::NO_NODE`] while the connection is held.
        node: u16,
        /// See [`crate::abi::flow_flag`].
        flags: u8,
        /// Totals of the connection.
        account: FlowTotals,
        /// Time of the event.
        at_ns: u64,
    },
}

/// Totals of a connection that the plane has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowTotals {
    /// Bytes that the client has acknowledged, modulo 2^32, including the node's FIN.
    pub acknowledged: u32,
    /// The client's packets with payload.
    pub requests: u32,
}

impl FlowTotals {
    /// Returns the current totals of a connection. `None` if no packet was forwarded.
    pub fn of(flow: &Flow) -> Option<Self> {
        let acknowledged = flow.last_ack.wrapping_sub(flow.first_ack);
        (flow.packets > 0).then_some(Self { acknowledged, requests: flow.requests })
    }
}

/// Decodes a record of the ring. Returns `None` for an unknown one.
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
        event_kind::SAMPLE => {
            let packet = rest.get(..usize::try_from(event.packet_bytes).ok()?)?;
            Some(PlaneEvent::Sample { key, at_ns, packet })
        }
        event_kind::RESUMED => Some(PlaneEvent::Resumed { key, node: event.node, at_ns }),
        event_kind::ENDED => {
            let [low, high] = [event.target, event.target >> 32].map(|half| half as u32);
            let account = FlowTotals { acknowledged: low, requests: high };
            Some(PlaneEvent::Ended { key, node: event.node, flags: event.flags, account, at_ns })
        }
        _ => None,
    }
}

/// Passes up to `limit` events to `visit`. Returns their number.
pub(super) fn read(ring: &mut Ring, limit: usize, mut visit: impl FnMut(PlaneEvent<'_>)) -> usize {
    ring.read(limit, |record| {
        if let Some(event) = decode(record) {
            visit(event);
        }
    })
}
