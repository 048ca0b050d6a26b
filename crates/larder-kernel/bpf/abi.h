/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* ABI between the kernel programs and the library in user space. src/abi.rs mirrors every struct and constant here;
 * tests on both sides check sizes and offsets. No struct has implicit padding. Addresses are 16 bytes, IPv4 as
 * ::ffff:a.b.c.d. Ports, addresses and sequence numbers are in host order, except where a name ends in _be. */
#pragma once
#include <linux/types.h>

/* Limits that the verifier must know. */
#define SERVICES_MAX 64        /* listen addresses */
#define NODES_MAX 1024         /* node slots, numbered as in the dispatcher */
#define NO_NODE 0xffff
#define ENCAP_BYTES_MAX 72     /* outer Ethernet + IPv6 + UDP + VXLAN = 70 */
#define PUNT_BYTES_MAX 2048    /* of one punted packet, with its Ethernet header */
#define HEAD_HASH_BYTES_MAX 512 /* request line and Host line together, for the fast path */
#define EXPIRED_KEYS 8         /* expired cookie keys that are remembered */

/* Key of a connection. */
struct flow_key {
    __u8 client[16];
    __be16 client_port_be;
    __u16 service; /* number of the listen address */
};

/* Destination of a connection's packets. */
enum flow_state {
    FLOW_HOLD = 1,  /* user space, until the dispatcher has decided */
    FLOW_NODE = 2,  /* the connection's node */
    FLOW_LOCAL = 3, /* this host's stack */
    FLOW_RESET = 4, /* none: its node is dead, and every packet is answered with a RST */
};

/* Bits of flow.flags. Events and user space see only the low byte. Several processors and user space change the flags
 * concurrently, so use only flow_set_flags and flow_clear_flags. */
#define FLOW_CLIENT_FIN 1 /* the client has sent a FIN */
#define FLOW_CLIENT_RST 2 /* the client has sent a RST */
#define FLOW_SYN_SEEN 4   /* a new SYN has come on these addresses: syn_seq is set */
#define FLOW_STACK_SYN_ACK 32 /* this host's stack has answered that SYN: stack_seq and stack_ack are set */
#define FLOW_FAST 8       /* opened by the fast path */
#define FLOW_END_REPORTED 16 /* user space has been told that the client has ended */
#define FLOW_IDLE 64      /* set by user space, and when the client's end is reported. The next packet with payload, or
                           * one that shows activity after the end, clears it and sends EVENT_RESUMED */
#define FLOW_ACKED 128    /* the client has acknowledged a part of the reply: last_ack is past first_ack */
#define FLOW_MOVED 256    /* user space has moved the connection: its timestamps name the previous node or slot */
#define FLOW_LISTED 512   /* from a node's listing, which may be older than a new connection on the same addresses.
                           * The entry applies to packets for which this host's stack has no socket; the first of them
                           * clears the flag */

struct flow {
    __u8 state; /* enum flow_state */
    __u8 zero;
    __u16 node;
    __u32 flags; /* a whole word, for atomic instructions */
    __u32 first_echo; /* timestamp of the SYN-ACK that the first packet answers; 0: unknown */
    __u32 first_seq; /* sequence number of the client's first byte */
    __u32 last_seq;  /* sequence number after the client's last byte or FIN */
    __u32 last_ack;  /* the client's last acknowledgement */
    __u32 syn_seq;   /* sequence number of the new SYN (FLOW_SYN_SEEN) */
    __u32 held;      /* packets punted to user space while held */
    __u32 packets;   /* packets forwarded */
    __u32 requests;  /* packets with payload: about the requests of an HTTP/1.1 client that does not pipeline */
    __u32 first_ack; /* acknowledgement in the first packet: the reply's first sequence number */
    __u32 request_ack; /* last_ack at the latest packet with payload, or at the client's end */
    __u64 seen_ns;   /* time of the last packet, CLOCK_MONOTONIC */
    __u64 opened_ns;
    __u32 stack_seq; /* acknowledgement that a client sends after this host's SYN-ACK */
    __u32 stack_ack; /* acknowledgement in that SYN-ACK: the sequence number of such a client's first byte */
    __u32 frozen_seq; /* sequence number after the client's bytes when this host's socket was frozen; 0: never frozen */
    __u32 denied;     /* not 0: the client's host has reset exactly frozen_seq, so it no longer has the connection */
    __u32 next_seq;   /* sequence number after the bytes received in order; 0: unknown, use last_seq */
    __u32 zero2;
};

/* A listen address. */
struct service_key {
    __u8 address[16];
    __be16 port_be;
    __u16 zero;
};

#define SERVICE_COOKIE 1   /* answer SYNs with a cookie; otherwise they go to the stack */
#define SERVICE_FAST 2     /* forward known targets without asking user space */
#define SERVICE_TAGS 4     /* forward packets of unknown connections to the node whose tag their timestamp echoes */
#define SERVICE_GRACE 8    /* drop packets of no connection unless the stack has a socket for them */
#define SERVICE_CLOSED 16  /* accept no new connections: SYNs go to the stack */
#define SERVICE_STASH 32   /* node: keep packets without a socket until a connection is restored */
#define SERVICE_SYNS 64    /* node: pass SYNs to the stack, because this host is the switch itself */
#define SERVICE_RESETS 128 /* with GRACE: answer repeated data of no connection with a RST */
#define SERVICE_NO_REUSE 256 /* for tests: a SYN on the addresses of a known connection does not replace it */

struct service {
    __u16 id;    /* below SERVICES_MAX */
    __u16 flags;
    __u16 mss;   /* offered to clients, bytes */
    __u16 zero;
};

/* The link to a node. */
enum link_kind { LINK_NONE = 0, LINK_L2 = 1, LINK_IPIP = 2, LINK_GUE = 3, LINK_VXLAN = 4 };

struct node_link {
    __u8 kind; /* enum link_kind */
    __u8 tag;  /* the node's tag in timestamps; 0: none */
    __u16 header_bytes; /* length of header, for tunnels */
    __u32 ifindex;      /* outgoing interface */
    __u8 mac[6];        /* next hop (LINK_L2) */
    __u8 source_mac[6]; /* of the outgoing interface */
    __u8 outer_ipv6;    /* 1: the outer header is IPv6 */
    __u8 zero[3];
    __u8 header[ENCAP_BYTES_MAX]; /* template of the outer headers, with lengths, checksum and source port 0 */
};

/* Limit of a node's connections for the fast path: active = base + (opened - seen). The program writes only opened, and
 * user space the rest. Slot NODES_MAX is the sum over all nodes. */
struct gate {
    __u64 opened; /* connections that the fast path has ever opened */
    __u32 seen;   /* those of them that base includes */
    __u32 base;   /* connections that the dispatcher knows of */
    __u32 limit;  /* the fast path opens a connection only while active is below this */
    __u32 usable; /* 0: the fast path opens no connections */
};

/* A decision that the fast path may use again. Its key is the hash of the request line, the Host line and the listen
 * address. */
struct target {
    __u64 expires_ns; /* CLOCK_MONOTONIC */
    __u64 id;         /* the dispatcher's target id */
    __u16 node;
    __u16 route;
    __u16 service;
    __u8 class_;
    __u8 zero;
};

/* The two live cookie keys. Cookies are made with slot `current`; cookies of both keys are valid. */
struct keys {
    __u64 k[2][2];
    __u64 hash[2]; /* key of the fast path's hash */
    __u32 current;
    __u32 zero;
};

/* Expired cookie keys: a cookie made with one of them is ours but too old. All zero: none. */
struct expired_keys {
    __u64 k[EXPIRED_KEYS][2];
};

/* Events to user space, in order, through one ring buffer. */
enum event_kind {
    EVENT_PUNT = 1,   /* a packet of a held connection; the packet follows the event */
    EVENT_OPENED = 2, /* the fast path has opened a connection */
    EVENT_ENDED = 3,  /* the client has sent a FIN or a RST */
    EVENT_STASH = 4,  /* node: a packet of a connection that has no socket yet, or is frozen; the packet follows */
    EVENT_CLOSED = 5, /* node: a connection has closed */
    EVENT_SAMPLE = 7, /* a copy of a later packet with payload of a handed-off connection, one in SAMPLE_ONE_IN */
    EVENT_RESUMED = 6, /* a connection marked FLOW_IDLE has sent payload, or shows activity after its end */
};

struct event {
    __u8 kind; /* enum event_kind */
    __u8 flags; /* low byte of flow.flags */
    __u16 node;
    __u32 packet_bytes; /* length of the packet that follows, for EVENT_PUNT, EVENT_STASH and EVENT_SAMPLE */
    struct flow_key flow;
    __u16 route;
    __u8 class_;
    __u8 first; /* EVENT_PUNT: 1 if the packet opened the flow; EVENT_STASH: 1 if the connection is frozen */
    __u64 at_ns;
    /* EVENT_OPENED: the target id. EVENT_ENDED: low half: bytes that the client has acknowledged, 0 if no packet was
     * forwarded; high half: packets with payload. EVENT_PUNT: hash of the head for `targets`, 0 if it has none.
     * EVENT_CLOSED: sequence number of the client's first byte, which distinguishes connections on the same addresses;
     * 0: unknown. */
    __u64 target;
};

/* One in this many packets with payload after a connection's first is copied to user space. */
#define SAMPLE_ONE_IN 16

/* Counters, per processor. Their names are in src/abi.rs. */
enum counter {
    COUNT_SYN, COUNT_SYN_ACK, COUNT_HANDSHAKE_ACK, COUNT_BAD_COOKIE, COUNT_FAST, COUNT_PUNTED, COUNT_PUNT_LOST,
    COUNT_HELD, COUNT_HOLD_FULL, COUNT_FORWARDED, COUNT_BY_TAG, COUNT_LOCAL, COUNT_RESET, COUNT_REUSED, COUNT_UNKNOWN,
    COUNT_GATE_CLOSED, COUNT_EVENT_LOST, COUNT_EGRESS_DROPPED, COUNT_MALFORMED, COUNT_NO_LINK, COUNT_EXPIRED,
    COUNT_RESET_LIMITED, COUNT_IMPLAUSIBLE, COUNT_LATER_SKIPPED, COUNT_COOKIE_LIMITED, COUNT_PLAIN_LIMITED,
    COUNT_INEXACT_END, COUNT_UNCOMMON, COUNT_UNCOMMON_LOST, COUNT_OTHER_NODE,
    /* Counters of a node. */
    COUNT_ACCEPTED, COUNT_REFUSED, COUNT_STASHED, COUNT_STASH_LOST, COUNT_STALE_KILLED, COUNT_DECAPSULATED,
    COUNT_CLOSED,
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
