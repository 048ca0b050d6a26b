/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* ABI between the node program and src/guard/abi.rs, in addition to abi.h. */
#pragma once
#include <linux/types.h>

#define TUNNELS_MAX 256      /* tunnel ends: one per switch and protocol */
#define FROZEN_MAX 16384     /* connections frozen at the same time */
#define STRAYS_MAX 8192      /* unknown connections that sent a packet */
#define STASH_BYTES_MAX 65600 /* of one packet with its Ethernet header: the maximum that the kernel merges */

/* Source and destination of encapsulated packets. Addresses as in struct flow_key; a remote of all zeros matches
 * any. */
struct tunnel_key {
    __u8 local[16];
    __u8 remote[16];
    __be16 port_be; /* UDP destination port; 0 for IP in IP */
    __u8 protocol;  /* of the outer IP header: 4, 41 or 17 */
    __u8 zero;
};

struct tunnel {
    __u8 kind; /* enum link_kind */
    __u8 zero[3];
    __u32 vni; /* VXLAN network identifier */
};

/* A connection that has, or had, a socket on this host. */
#define CONN_COOKIE 1     /* accepted from a cookie: first_seq is valid */
#define CONN_CLIENT_FIN 2 /* the client has sent a FIN */
#define CONN_NODE_FIN 4   /* the server has sent a FIN */
#define CONN_ENDED 8      /* both have, or a RST has passed; the close is reported */
#define CONN_KILLING 16   /* the socket of a previous connection on the same addresses is being removed */
#define CONN_HAS_PREVIOUS 32 /* previous_seq is valid */

struct conn {
    __u32 flags;
    __u32 first_seq; /* sequence number of the client's first byte; valid with CONN_COOKIE or CONN_KILLING */
    __u32 kills;     /* attempts to remove the previous socket */
    __u32 waits;     /* packets requeued because the first one had not made the socket yet */
    __u32 echo;      /* timestamp of the SYN-ACK that the first segment answers; 0: unknown */
    __u32 previous_seq; /* first_seq of the previous connection on the same addresses */
    __u64 opened_ns; /* CLOCK_MONOTONIC */
    __u64 seen_ns;   /* time of the client's last packet */
};

_Static_assert(sizeof(struct tunnel_key) == 36, "tunnel_key");
_Static_assert(sizeof(struct tunnel) == 8, "tunnel");
_Static_assert(sizeof(struct conn) == 40 && __builtin_offsetof(struct conn, opened_ns) == 24, "conn");
