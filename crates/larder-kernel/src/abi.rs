//! What the programs in the kernel and this library agree on: the mirror of `bpf/abi.h`, field by field.
//!
//! Numbers are in host order unless a name ends in `_be`; times are nanoseconds of `CLOCK_MONOTONIC`. The tests compile
//! nothing: they hold every size and offset against the numbers of the C structs, which `bpf/abi.h` asserts too.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Listen addresses at most.
pub const SERVICES_MAX: u16 = 64;
/// Node slots; their numbers are those of the dispatcher.
pub const NODES_MAX: u16 = 1024;
/// Stands for no node.
pub const NO_NODE: u16 = u16::MAX;
/// Room for an outer header.
pub const ENCAP_BYTES_MAX: usize = 72;
/// The most of one packet that goes to user space, Ethernet header included.
pub const PUNT_BYTES_MAX: usize = 2048;
/// The most of a head that the fast path reads: request line and Host line together.
pub const HEAD_HASH_BYTES_MAX: usize = 512;
/// Keys of cookies that are remembered when they are believed no more.
pub const EXPIRED_KEYS: usize = 8;

/// Values of [`Flow::state`].
pub mod flow_state {
    /// To user space, until it is decided.
    pub const HOLD: u8 = 1;
    /// To its node.
    pub const NODE: u8 = 2;
    /// To this host's own stack.
    pub const LOCAL: u8 = 3;
    /// Its node is dead: every packet is answered with a reset.
    pub const RESET: u8 = 4;
}

/// Bits of [`Flow::flags`].
pub mod flow_flag {
    /// The client has sent a FIN.
    pub const CLIENT_FIN: u8 = 1;
    /// The client has sent a RST.
    pub const CLIENT_RST: u8 = 2;
    /// A SYN has come on these addresses since.
    pub const SYN_SEEN: u8 = 4;
    /// Opened by the fast path.
    pub const FAST: u8 = 8;
    /// Its end has been told.
    pub const TOLD: u8 = 16;
    /// This host's stack has answered such a SYN.
    pub const ANSWERED: u8 = 32;
    /// The next packet with payload, or one that goes on after the end, clears it and is told.
    pub const IDLE: u8 = 64;
    /// The client has acknowledged something of the reply.
    pub const ACKED: u8 = 128;
    /// In [`Flow::flags_rest`]: entered from a node's list, and no packet has come since for which this host's stack has no socket.
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
    /// Packets of unknown connections go where their timestamp's tag says.
    pub const TAGS: u16 = 4;
    /// Packets that belong to nothing are dropped rather than passed to the stack.
    pub const GRACE: u16 = 8;
    /// No new connections.
    pub const CLOSED: u16 = 16;
    /// On a node: packets without a socket are kept for the socket that is to come.
    pub const STASH: u16 = 32;
    /// On a node: SYNs go to the stack, as this host is the front-end itself.
    pub const SYNS: u16 = 64;
    /// With [`GRACE`]: data that belong to nothing, and come again and again, are answered with a reset.
    pub const RESETS: u16 = 128;
    /// For tests: a SYN on the addresses of a known connection begins no other.
    pub const NO_REUSE: u16 = 256;
}

/// Values of [`NodeLink::kind`].
pub mod link_kind {
    /// No way to the node.
    pub const NONE: u8 = 0;
    /// Same layer 2: the destination address is rewritten.
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
    /// A packet of a held connection follows.
    pub const PUNT: u8 = 1;
    /// The fast path has opened a connection.
    pub const OPENED: u8 = 2;
    /// The client has ended its side, or all.
    pub const ENDED: u8 = 3;
    /// A packet for a connection that is not on the node yet, or frozen, follows.
    pub const STASH: u8 = 4;
    /// A connection has ended on the node.
    pub const CLOSED: u8 = 5;
    /// A connection marked idle has a request again, or goes on after its end.
    pub const WOKE: u8 = 6;
    /// A copy of a later packet with payload of a handed-off connection follows.
    pub const LATER: u8 = 7;
}

/// A connection's addresses, as `struct flow_key`.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    FromBytes,
    IntoBytes,
    Immutable,
    KnownLayout,
)]
#[repr(C)]
pub struct RawFlowKey {
    /// IPv4 as `::ffff:a.b.c.d`.
    pub client: [u8; 16],
    /// In network order.
    pub client_port_be: [u8; 2],
    /// Number of the listen address.
    pub service: u16,
}

// The programs are built for little-endian machines: there the low byte of a word is its first.
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
    /// Bits that only the kernel uses. There `flags` is a word of 32 bits, for atomic instructions, of which this is the rest.
    pub flags_rest: [u8; 3],
    /// Timestamp of the SYN-ACK that the client's first packet answers; 0: not known.
    pub first_echo: u32,
    /// Sequence number of the client's first byte.
    pub first_seq: u32,
    /// Behind the last byte or FIN seen from the client.
    pub last_seq: u32,
    /// The last acknowledgement seen from the client.
    pub last_ack: u32,
    /// Sequence number of the SYN that came meanwhile.
    pub syn_seq: u32,
    /// Packets handed to user space while held.
    pub held: u32,
    /// Packets forwarded.
    pub packets: u32,
    /// Packets with payload.
    pub requests: u32,
    /// The reply's first sequence number.
    pub first_ack: u32,
    /// `last_ack` when the latest packet with payload came: while they are equal nothing of its reply was seen.
    pub asked_ack: u32,
    /// When the last packet came.
    pub seen_ns: u64,
    /// When the connection was opened.
    pub opened_ns: u64,
    /// What a client acknowledges that has the SYN-ACK of this host's stack.
    pub answer_seq: u32,
    /// What that SYN-ACK acknowledges.
    pub answer_ack: u32,
    /// Behind what the client had sent when this host's socket was frozen; 0: there was none.
    pub frozen_seq: u32,
    /// Not 0: the client's host has reset just that, as it has no such connection any more.
    pub denied: u32,
    /// Behind what the client has sent in order; 0: not known.
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

/// What is done on a listen address, as `struct service`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Service {
    /// Below [`SERVICES_MAX`].
    pub id: u16,
    /// See [`service_flag`].
    pub flags: u16,
    /// Offered to clients. Bytes.
    pub mss: u16,
    /// Always 0.
    pub zero: u16,
}

/// How a node is reached, as `struct node_link`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct NodeLink {
    /// See [`link_kind`].
    pub kind: u8,
    /// The node's tag in timestamps; 0 if it has none.
    pub tag: u8,
    /// Length of `header`. Bytes.
    pub header_bytes: u16,
    /// The interface by which packets leave.
    pub ifindex: u32,
    /// The next hop's address.
    pub mac: [u8; 6],
    /// The leaving interface's address.
    pub source_mac: [u8; 6],
    /// 1 if the outer header is IPv6.
    pub outer_ipv6: u8,
    /// Always 0.
    pub zero: [u8; 3],
    /// Everything before the inner packet, with lengths, checksum and source port 0.
    pub header: [u8; ENCAP_BYTES_MAX],
}

/// How many connections a node has, as `struct gate`: `base + (opened - seen)`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Gate {
    /// Connections the fast path has opened. Written by the kernel only.
    pub opened: u64,
    /// Of those, how many are counted into `base`.
    pub seen: u32,
    /// Connections the dispatcher knows of.
    pub base: u32,
    /// The fast path opens none from here on.
    pub limit: u32,
    /// 0: the fast path opens none.
    pub usable: u32,
}

/// A decision the fast path may use again, as `struct target`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Target {
    /// Until when.
    pub expires_ns: u64,
    /// The dispatcher's target id.
    pub id: u64,
    /// The node's slot.
    pub node: u16,
    /// The route.
    pub route: u16,
    /// The listen address.
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
    /// Two keys for cookies.
    pub k: [[u64; 2]; 2],
    /// The key of the head's hash.
    pub hash: [u64; 2],
    /// Which of `k` makes cookies.
    pub current: u32,
    /// Always 0.
    pub zero: u32,
}

/// Former keys of cookies, as `struct expired_keys`. All zero: none.
#[derive(Clone, Copy, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct ExpiredKeys {
    /// A cookie made with one of them is ours and too old.
    pub k: [[u64; 2]; EXPIRED_KEYS],
}

/// What the kernel tells, as `struct event`.
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
    /// The route of a target.
    pub route: u16,
    /// The service class of a target.
    pub class: u8,
    /// 1 if this packet opened the flow.
    pub first: u8,
    /// When.
    pub at_ns: u64,
    /// A target's id, the hash of a head, or the sequence number of a closed connection's first byte.
    pub target: u64,
}

/// Number of counters the programs keep room for.
pub const COUNTERS_MAX: usize = 64;

/// How many of them a front-end's programs use.
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

    /// The numbers stand in `bpf/abi.h` as assertions on the C structs.
    #[test]
    fn structs_are_laid_out_as_in_the_kernel() {
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
