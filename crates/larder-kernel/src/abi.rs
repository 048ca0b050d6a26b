//! ABI between the kernel programs and this library: the mirror of `bpf/abi.h`, field by field.
//!
//! Numbers are in host order unless a name ends in `_be`. Times are nanoseconds of `CLOCK_MONOTONIC`. The tests compare
//! all sizes and offsets with the numbers that `bpf/abi.h` asserts of the C structs.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Maximum number of listen addresses.
pub const SERVICES_MAX: u16 = 64;
/// Number of node slots. Slots are numbered as in the dispatcher.
pub const NODES_MAX: u16 = 1024;
/// Slot number that stands for no node.
pub const NO_NODE: u16 = u16::MAX;
/// Room for an outer header. Bytes.
pub const ENCAP_BYTES_MAX: usize = 72;
/// Maximum length of a punted packet with its Ethernet header. Bytes.
pub const PUNT_BYTES_MAX: usize = 2048;
/// Maximum length of the request line and the Host line that the fast path reads. Bytes.
pub const HEAD_HASH_BYTES_MAX: usize = 512;
/// Number of expired cookie keys that are remembered.
pub const EXPIRED_KEYS: usize = 8;

/// Values of [`Flow::state`].
pub mod flow_state {
    /// Packets go to user space until the dispatcher has decided.
    pub const HOLD: u8 = 1;
    /// Packets go to the connection's node.
    pub const NODE: u8 = 2;
    /// Packets go to this host's stack.
    pub const LOCAL: u8 = 3;
    /// The node is dead, and every packet is answered with a reset.
    pub const RESET: u8 = 4;
}

/// Bits of [`Flow::flags`].
pub mod flow_flag {
    /// The client has sent a FIN.
    pub const CLIENT_FIN: u8 = 1;
    /// The client has sent a RST.
    pub const CLIENT_RST: u8 = 2;
    /// A new SYN has come on these addresses.
    pub const SYN_SEEN: u8 = 4;
    /// Opened by the fast path.
    pub const FAST: u8 = 8;
    /// User space has been told that the client has ended.
    pub const END_REPORTED: u8 = 16;
    /// This host's stack has answered a new SYN on these addresses.
    pub const STACK_SYN_ACK: u8 = 32;
    /// The connection counts as idle. The next packet with payload, or one that shows activity after the end, clears
    /// the flag and is reported.
    pub const IDLE: u8 = 64;
    /// The client has acknowledged a part of the reply.
    pub const ACKED: u8 = 128;
    /// In [`Flow::flags_rest`]: the entry comes from a node's listing, and no packet without a socket on this host has
    /// come since.
    ///
    /// [`Flow::flags_rest`]: super::Flow::flags_rest
    pub const LISTED: [u8; 3] = [2, 0, 0];
}

/// Bits of [`Service::flags`].
pub mod service_flag {
    /// SYNs are answered with a cookie.
    pub const COOKIE: u16 = 1;
    /// Known targets are forwarded without asking user space.
    pub const FAST: u16 = 2;
    /// Packets of unknown connections go to the node whose tag their timestamp echoes.
    pub const TAGS: u16 = 4;
    /// Packets of no connection are dropped rather than passed to the stack.
    pub const GRACE: u16 = 8;
    /// No new connections are accepted.
    pub const CLOSED: u16 = 16;
    /// On a node: packets without a socket are kept until a connection is restored.
    pub const STASH: u16 = 32;
    /// On a node: SYNs go to the stack, because this host is the switch itself.
    pub const SYNS: u16 = 64;
    /// With [`GRACE`]: repeated data of no connection are answered with a reset.
    pub const RESETS: u16 = 128;
    /// For tests: a SYN on the addresses of a known connection does not replace it.
    pub const NO_REUSE: u16 = 256;
}

/// Values of [`NodeLink::kind`].
pub mod link_kind {
    /// There is no link to the node.
    pub const NONE: u8 = 0;
    /// Same layer 2: the destination MAC address is rewritten.
    pub const L2: u8 = 1;
    /// IP in IP.
    pub const IPIP: u8 = 2;
    /// Generic UDP encapsulation.
    pub const GUE: u8 = 3;
    /// VXLAN.
    pub const VXLAN: u8 = 4;
}

/// Values of [`Event::kind`].
pub mod event_kind {
    /// A packet of a held connection. The packet follows.
    pub const PUNT: u8 = 1;
    /// The fast path has opened a connection.
    pub const OPENED: u8 = 2;
    /// The client has sent a FIN or a RST.
    pub const ENDED: u8 = 3;
    /// A packet of a connection that has no socket on the node yet, or is frozen. The packet follows.
    pub const STASH: u8 = 4;
    /// A connection has closed on the node.
    pub const CLOSED: u8 = 5;
    /// A connection marked idle has sent payload, or shows activity after its end.
    pub const RESUMED: u8 = 6;
    /// A copy of a later packet with payload of a handed-off connection. The packet follows.
    pub const SAMPLE: u8 = 7;
}

/// Key of a connection, as `struct flow_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct RawFlowKey {
    /// IPv4 as `::ffff:a.b.c.d`.
    pub client: [u8; 16],
    /// In network order.
    pub client_port_be: [u8; 2],
    /// Number of the listen address.
    pub service: u16,
}

// The programs are built for little-endian machines, where the low byte of a word comes first.
const _: () = assert!(cfg!(target_endian = "little"), "the programs are little-endian");

/// A connection, as `struct flow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Flow {
    /// See [`flow_state`].
    pub state: u8,
    /// Always 0.
    pub zero: u8,
    /// The node's slot.
    pub node: u16,
    /// See [`flow_flag`].
    pub flags: u8,
    /// Flags that only the kernel uses. In C, `flags` is a word of 32 bits, for atomic instructions, and this is its
    /// rest.
    pub flags_rest: [u8; 3],
    /// Timestamp of the SYN-ACK that the client's first packet answers; 0 if unknown.
    pub first_echo: u32,
    /// Sequence number of the client's first byte.
    pub first_seq: u32,
    /// Sequence number after the client's last byte or FIN.
    pub last_seq: u32,
    /// The client's last acknowledgement.
    pub last_ack: u32,
    /// Sequence number of the new SYN on these addresses.
    pub syn_seq: u32,
    /// Packets punted to user space while held.
    pub held: u32,
    /// Packets forwarded.
    pub packets: u32,
    /// Packets with payload.
    pub requests: u32,
    /// The reply's first sequence number.
    pub first_ack: u32,
    /// `last_ack` at the latest packet with payload. While the two are equal, the client has acknowledged nothing of
    /// the reply to it.
    pub request_ack: u32,
    /// Time of the last packet.
    pub seen_ns: u64,
    /// Time at which the connection was opened.
    pub opened_ns: u64,
    /// Acknowledgement that a client sends after the SYN-ACK of this host's stack.
    pub stack_seq: u32,
    /// Acknowledgement in that SYN-ACK.
    pub stack_ack: u32,
    /// Sequence number after the client's bytes when this host's socket was frozen; 0 if it never was.
    pub frozen_seq: u32,
    /// Not 0 if the client's host has reset exactly `frozen_seq`, because it no longer has the connection.
    pub denied: u32,
    /// Sequence number after the bytes received in order; 0 if unknown.
    pub next_seq: u32,
    /// Always 0.
    pub zero2: u32,
}

/// A listen address, as `struct service_key`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ServiceKey {
    /// IPv4 as `::ffff:a.b.c.d`.
    pub address: [u8; 16],
    /// In network order.
    pub port_be: [u8; 2],
    /// Always 0.
    pub zero: u16,
}

/// Settings of a listen address, as `struct service`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Service {
    /// Below [`SERVICES_MAX`].
    pub id: u16,
    /// See [`service_flag`].
    pub flags: u16,
    /// Maximum segment size offered to clients. Bytes.
    pub mss: u16,
    /// Always 0.
    pub zero: u16,
}

/// The link to a node, as `struct node_link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeLink {
    /// See [`link_kind`].
    pub kind: u8,
    /// The node's tag in timestamps; 0 if it has none.
    pub tag: u8,
    /// Length of `header`. Bytes.
    pub header_bytes: u16,
    /// The outgoing interface.
    pub ifindex: u32,
    /// MAC address of the next hop.
    pub mac: [u8; 6],
    /// MAC address of the outgoing interface.
    pub source_mac: [u8; 6],
    /// 1 if the outer header is IPv6.
    pub outer_ipv6: u8,
    /// Always 0.
    pub zero: [u8; 3],
    /// Template of the outer headers, with lengths, checksum and source port 0.
    pub header: [u8; ENCAP_BYTES_MAX],
}

/// Limit of a node's connections for the fast path, as `struct gate`. Active connections are `base + (opened - seen)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Gate {
    /// Connections that the fast path has ever opened. Written only by the kernel.
    pub opened: u64,
    /// Number of them that `base` includes.
    pub seen: u32,
    /// Connections that the dispatcher knows of.
    pub base: u32,
    /// The fast path opens a connection only while fewer than this are active.
    pub limit: u32,
    /// 0 if the fast path opens no connections.
    pub usable: u32,
}

/// A decision that the fast path may use again, as `struct target`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Target {
    /// Time at which it expires.
    pub expires_ns: u64,
    /// The dispatcher's target id.
    pub id: u64,
    /// The node's slot.
    pub node: u16,
    /// The route's number.
    pub route: u16,
    /// Number of the listen address.
    pub service: u16,
    /// The service class.
    pub class: u8,
    /// Always 0.
    pub zero: u8,
}

/// The live keys, as `struct keys`.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Keys {
    /// The two cookie keys.
    pub k: [[u64; 2]; 2],
    /// Key of the head's hash.
    pub hash: [u64; 2],
    /// Index in `k` of the key for new cookies.
    pub current: u32,
    /// Always 0.
    pub zero: u32,
}

/// Expired cookie keys, as `struct expired_keys`. All zero: none.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExpiredKeys {
    /// Keys whose cookies are ours but too old.
    pub k: [[u64; 2]; EXPIRED_KEYS],
}

/// An event of the programs, as `struct event`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Event {
    /// See [`event_kind`].
    pub kind: u8,
    /// See [`flow_flag`].
    pub flags: u8,
    /// The node's slot.
    pub node: u16,
    /// Length of the packet that follows. Bytes.
    pub packet_bytes: u32,
    /// The connection.
    pub flow: RawFlowKey,
    /// The target's route.
    pub route: u16,
    /// The target's service class.
    pub class: u8,
    /// Punt: 1 if this packet opened the flow. Stash: 1 if the connection is frozen.
    pub first: u8,
    /// Time of the event.
    pub at_ns: u64,
    /// A target's id, the hash of a head, or the first sequence number of a closed connection; see `bpf/abi.h`.
    pub target: u64,
}

/// Number of counters that the programs have room for.
pub const COUNTERS_MAX: usize = 64;

/// Number of counters that the switch's programs use.
pub const FRONT_COUNTERS: usize = 30;

/// Names of the counters, in the order of `enum counter`.
pub const COUNTERS: [&str; 37] = [
    "syn",
    "syn_ack",
    "handshake_ack",
    "bad_cookie",
    "fast",
    "punted",
    "punt_lost",
    "held",
    "hold_full",
    "forwarded",
    "by_tag",
    "local",
    "reset",
    "reused",
    "unknown",
    "gate_closed",
    "event_lost",
    "egress_dropped",
    "malformed",
    "no_link",
    "expired",
    "reset_limited",
    "implausible",
    "later_skipped",
    "cookie_limited",
    "plain_limited",
    "inexact_end",
    "uncommon",
    "uncommon_lost",
    "other_node",
    "accepted",
    "refused",
    "stashed",
    "stash_lost",
    "stale_killed",
    "decapsulated",
    "closed",
];

#[cfg(test)]
mod tests {
    use super::*;
    use std::mem::{offset_of, size_of};

    /// `bpf/abi.h` asserts the same numbers of the C structs.
    #[test]
    fn structs_match_the_c_layout() {
        assert_eq!(size_of::<RawFlowKey>(), 20);
        assert_eq!((size_of::<Flow>(), offset_of!(Flow, flags), offset_of!(Flow, seen_ns)), (88, 4, 48));
        assert_eq!(size_of::<ServiceKey>(), 20);
        assert_eq!(size_of::<Service>(), 8);
        assert_eq!((size_of::<NodeLink>(), offset_of!(NodeLink, header)), (96, 24));
        assert_eq!((size_of::<Gate>(), offset_of!(Gate, limit)), (24, 16));
        assert_eq!((size_of::<Target>(), offset_of!(Target, node)), (24, 16));
        assert_eq!((size_of::<Keys>(), offset_of!(Keys, current)), (56, 48));
        assert_eq!(size_of::<ExpiredKeys>(), 128);
        assert_eq!((size_of::<Event>(), offset_of!(Event, flow), offset_of!(Event, at_ns)), (48, 8, 32));
        assert!(COUNTERS.len() <= COUNTERS_MAX);
    }
}
