/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What the node's program and src/guard/abi.rs agree on, beside abi.h. */
#pragma once
#include <linux/types.h>

#define TUNNELS_MAX 256      /* tunnel ends; one for each front-end and protocol */
#define FROZEN_MAX 16384     /* connections frozen at a time */
#define STRAYS_MAX 8192      /* connections that a packet came for and that are not known */
#define STASH_BYTES_MAX 65600 /* of one packet, Ethernet header included: as much as the kernel merges */

/* Where encapsulated packets come from and go to. Addresses as in struct flow_key; remote all zero: from anybody. */
struct tunnel_key {
    __u8 local[16];
    __u8 remote[16];
    __be16 port_be; /* UDP's destination port; 0 for IP in IP */
    __u8 protocol;  /* of the outer IP header: 4, 41 or 17 */
    __u8 zero;
};

struct tunnel {
    __u8 kind; /* enum link_kind */
    __u8 zero[3];
    __u32 vni; /* VXLAN network */
};

/* A connection that has a socket here, or had one. */
#define CONN_COOKIE 1     /* first_seq is the client's: accepted from a cookie */
#define CONN_CLIENT_FIN 2 /* the client has ended its side */
#define CONN_NODE_FIN 4   /* the server has ended its side */
#define CONN_ENDED 8      /* both, or a RST; told */
#define CONN_KILLING 16   /* its socket's predecessor on the same addresses is being removed */
#define CONN_FORMER 32    /* former_seq is valid */

struct conn {
    __u32 flags;
    __u32 first_seq; /* sequence number of the client's first byte; valid with CONN_COOKIE or CONN_KILLING */
    __u32 kills;     /* tries to remove a predecessor */
    __u32 waits;     /* packets put behind the first one, which had made no socket yet */
    __u32 echo;      /* timestamp of the SYN-ACK that the first segment answers; 0: not known */
    __u32 former_seq; /* first_seq of the connection before on the same addresses */
    __u64 opened_ns; /* CLOCK_MONOTONIC */
    __u64 seen_ns;   /* last packet from the client */
};

_Static_assert(sizeof(struct tunnel_key) == 36, "tunnel_key");
_Static_assert(sizeof(struct tunnel) == 8, "tunnel");
_Static_assert(sizeof(struct conn) == 40 && __builtin_offsetof(struct conn, opened_ns) == 24, "conn");
