/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the programs in the kernel and the library in user space agree on. src/abi.rs mirrors every struct and constant
 * here; its tests hold sizes and offsets together. All structs are free of implicit padding. Addresses are 16 bytes,
 * IPv4 as ::ffff:a.b.c.d; ports, addresses and sequence numbers are in network order only where a name ends in _be. */
#pragma once
#include <linux/types.h>

/* Limits that the verifier must know. */
#define SERVICES_MAX 64        /* listen addresses */
#define NODES_MAX 1024         /* node slots; slot numbers are those of the dispatcher */
#define NO_NODE 0xffff
#define ENCAP_BYTES_MAX 72     /* outer Ethernet + IPv6 + UDP + VXLAN = 70 */
#define PUNT_BYTES_MAX 2048    /* of one packet, Ethernet header included */
#define HEAD_HASH_BYTES_MAX 512 /* request line and Host line together, for the fast path */
#define EXPIRED_KEYS 8         /* keys of cookies that are remembered when they are believed no more */

/* A connection as the forwarding plane knows it. */
struct flow_key {
    __u8 client[16];
    __be16 client_port_be;
    __u16 service; /* number of the listen address */
};

/* Where a connection's packets go. */
enum flow_state {
    FLOW_HOLD = 1,  /* to user space, until it is decided */
    FLOW_NODE = 2,  /* to its node */
    FLOW_LOCAL = 3, /* to this host's own stack */
    FLOW_RESET = 4, /* its node is dead: every packet is answered with a RST */
};

/* Bits of flow.flags; those in the low byte are what events and user space have. Processors and user space set them at the same
 * time, so only by flow_mark and flow_unmark. */
#define FLOW_CLIENT_FIN 1 /* the client has sent a FIN */
#define FLOW_CLIENT_RST 2 /* the client has sent a RST */
#define FLOW_SYN_SEEN 4   /* a SYN has come on these addresses since: syn_seq is set, a new connection may follow */
#define FLOW_ANSWERED 32  /* this host's stack has answered such a SYN: answer_seq and answer_ack are set */
#define FLOW_FAST 8       /* opened by the fast path */
#define FLOW_TOLD 16      /* its end has been told to user space */
#define FLOW_IDLE 64      /* set by user space, and when the client's end is told: the next packet with payload, or one that goes on
                           * after the end, clears it and is told (EVENT_WOKE) */
#define FLOW_ACKED 128    /* the client has acknowledged something of the reply: last_ack is past first_ack */
#define FLOW_MOVED 256    /* user space has given the connection to another node or slot: its timestamps name the former one */
#define FLOW_LISTED 512   /* entered from a node's list, which may be older than a new connection on the same addresses: the entry
                           * counts for packets for which this host's stack has no socket, and the first of them clears the flag */

struct flow {
    __u8 state; /* enum flow_state */
    __u8 zero;
    __u16 node;
    __u32 flags; /* a word of its own, for atomic instructions */
    __u32 first_echo; /* timestamp of the SYN-ACK that the first packet answers; 0: not known */
    __u32 first_seq; /* sequence number of the first byte of the client */
    __u32 last_seq;  /* behind the last byte or FIN seen from the client */
    __u32 last_ack;  /* last acknowledgement seen from the client */
    __u32 syn_seq;   /* of the SYN that came meanwhile */
    __u32 held;      /* packets handed to user space while held */
    __u32 packets;   /* forwarded */
    __u32 requests;  /* packets with payload: about the requests of an HTTP/1.1 client that does not pipeline */
    __u32 first_ack; /* acknowledgement of the first packet: the reply's first sequence number */
    __u32 asked_ack; /* last_ack when the latest packet with payload came, or the client's end */
    __u64 seen_ns;   /* CLOCK_MONOTONIC of the last packet */
    __u64 opened_ns;
    __u32 answer_seq; /* what a client acknowledges that has this host's SYN-ACK */
    __u32 answer_ack; /* what that SYN-ACK acknowledges: the number of such a client's first byte */
    __u32 frozen_seq; /* behind what the client had sent when this host's socket was frozen; 0: there was none */
    __u32 denied;     /* not 0: the client's host has reset just that: it has no such connection any more */
    __u32 next_seq;   /* behind what the client has sent in order; 0: not known, last_seq stands for it */
    __u32 zero2;
};

/* A listen address. */
struct service_key {
    __u8 address[16];
    __be16 port_be;
    __u16 zero;
};

#define SERVICE_COOKIE 1   /* SYNs are answered here with a cookie; otherwise they go to the stack */
#define SERVICE_FAST 2     /* known targets are forwarded without asking user space */
#define SERVICE_TAGS 4     /* packets of unknown connections go where the node tag of their timestamp says */
#define SERVICE_GRACE 8    /* packets that belong to nothing are dropped, unless the stack knows them */
#define SERVICE_CLOSED 16  /* no new connections: a SYN goes to the stack */
#define SERVICE_STASH 32   /* node: packets without a socket are kept for the socket that is to come */
#define SERVICE_SYNS 64    /* node: SYNs go to the stack: this host is the front-end itself */
#define SERVICE_RESETS 128 /* with GRACE: data that belong to nothing, and come again and again, are answered with a RST */
#define SERVICE_NO_REUSE 256 /* for tests: a SYN on the addresses of a known connection begins no other */

struct service {
    __u16 id;    /* below SERVICES_MAX */
    __u16 flags;
    __u16 mss;   /* offered to clients */
    __u16 zero;
};

/* How a node is reached. */
enum link_kind { LINK_NONE = 0, LINK_L2 = 1, LINK_IPIP = 2, LINK_GUE = 3, LINK_VXLAN = 4 };

struct node_link {
    __u8 kind; /* enum link_kind */
    __u8 tag;  /* the node's tag in timestamps; 0 = none */
    __u16 header_bytes; /* of header, for the kinds that encapsulate */
    __u32 ifindex;      /* leave by this interface */
    __u8 mac[6];        /* next hop, LINK_L2 */
    __u8 source_mac[6]; /* of the leaving interface */
    __u8 outer_ipv6;    /* the outer header is IPv6 */
    __u8 zero[3];
    __u8 header[ENCAP_BYTES_MAX]; /* template of everything before the inner packet; lengths, checksum, source port 0 */
};

/* How many connections a node has, for the fast path. active = base + (opened - seen). The kernel writes opened only,
 * user space the rest. Slot NODES_MAX is the sum over all nodes. */
struct gate {
    __u64 opened; /* connections the fast path has opened, ever */
    __u32 seen;   /* of those, how many user space has counted into base */
    __u32 base;   /* connections the dispatcher knows of */
    __u32 limit;  /* the fast path opens none from here on */
    __u32 usable; /* 0: the fast path opens none */
};

/* A decision the fast path may use again. Key: hash of the request line and the Host line, with the listen address. */
struct target {
    __u64 expires_ns; /* CLOCK_MONOTONIC */
    __u64 id;         /* the dispatcher's target id */
    __u16 node;
    __u16 route;
    __u16 service;
    __u8 class_;
    __u8 zero;
};

/* Two live keys: slot `current` makes cookies, both are believed. */
struct keys {
    __u64 k[2][2];
    __u64 hash[2]; /* of the fast path's hash */
    __u32 current;
    __u32 zero;
};

/* Former keys: a cookie made with one is ours and too old. All zero: none. */
struct expired_keys {
    __u64 k[EXPIRED_KEYS][2];
};

/* What the kernel tells user space, through one ring buffer, in order. */
enum event_kind {
    EVENT_PUNT = 1,   /* a packet of a held connection; the packet follows the event */
    EVENT_OPENED = 2, /* the fast path has opened a connection */
    EVENT_ENDED = 3,  /* the client has ended its side (FIN) or all (RST) */
    EVENT_STASH = 4,  /* node: a packet for a connection that is not here yet, or is frozen; the packet follows */
    EVENT_CLOSED = 5, /* node: a connection has ended */
    EVENT_LATER = 7,  /* a copy of a later packet with payload of a handed-off connection; one of LATER_ONE_IN */
    EVENT_WOKE = 6,   /* a connection marked FLOW_IDLE has a packet with payload again, or goes on after its end */
};

struct event {
    __u8 kind; /* enum event_kind */
    __u8 flags; /* of the flow */
    __u16 node;
    __u32 packet_bytes; /* for EVENT_PUNT and EVENT_STASH */
    struct flow_key flow;
    __u16 route;
    __u8 class_;
    __u8 first; /* EVENT_PUNT: the packet that opened the flow */
    __u64 at_ns;
    /* EVENT_OPENED: target id; EVENT_ENDED: bytes that the client has acknowledged in the low half, 0 if none was forwarded,
     * and its packets with payload in the high one; EVENT_PUNT: hash of the head for `targets`, 0 if it has none; EVENT_CLOSED: sequence number
     * of the client's first byte, which tells connections on the same addresses apart, 0 if it is not known */
    __u64 target;
};

/* Of the packets with payload that follow a connection's first one, how many are shown to user space. */
#define LATER_ONE_IN 16

/* Counters, per processor; names in src/abi.rs. */
enum counter {
    COUNT_SYN, COUNT_SYN_ACK, COUNT_HANDSHAKE_ACK, COUNT_BAD_COOKIE, COUNT_FAST, COUNT_PUNTED, COUNT_PUNT_LOST,
    COUNT_HELD, COUNT_HOLD_FULL, COUNT_FORWARDED, COUNT_BY_TAG, COUNT_LOCAL, COUNT_RESET, COUNT_REUSED, COUNT_UNKNOWN,
    COUNT_GATE_CLOSED, COUNT_EVENT_LOST, COUNT_EGRESS_DROPPED, COUNT_MALFORMED, COUNT_NO_LINK, COUNT_EXPIRED,
    COUNT_RESET_LIMITED, COUNT_IMPLAUSIBLE, COUNT_LATER_SKIPPED, COUNT_COOKIE_LIMITED, COUNT_PLAIN_LIMITED,
    COUNT_INEXACT_END, COUNT_UNCOMMON, COUNT_UNCOMMON_LOST, COUNT_OTHER_NODE,
    /* on a node */
    COUNT_ACCEPTED, COUNT_REFUSED, COUNT_STASHED, COUNT_STASH_LOST, COUNT_STALE_KILLED, COUNT_DECAPSULATED, COUNT_CLOSED,
    COUNT_MAX = 64,
};

_Static_assert(sizeof(struct flow_key) == 20, "flow_key");
_Static_assert(sizeof(struct flow) == 88 && __builtin_offsetof(struct flow, flags) == 4 &&
                   __builtin_offsetof(struct flow, seen_ns) == 48, "flow");
_Static_assert(sizeof(struct service_key) == 20 && sizeof(struct service) == 8, "service");
_Static_assert(sizeof(struct node_link) == 96 && __builtin_offsetof(struct node_link, header) == 24, "node_link");
_Static_assert(sizeof(struct gate) == 24 && __builtin_offsetof(struct gate, limit) == 16, "gate");
_Static_assert(sizeof(struct target) == 24 && __builtin_offsetof(struct target, node) == 16, "target");
_Static_assert(sizeof(struct keys) == 56 && __builtin_offsetof(struct keys, current) == 48, "keys");
_Static_assert(sizeof(struct expired_keys) == 128, "expired_keys");
_Static_assert(sizeof(struct event) == 48 && __builtin_offsetof(struct event, at_ns) == 32, "event");
