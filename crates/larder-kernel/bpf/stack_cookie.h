/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* SYN cookies of the kernel itself (net/ipv4/syncookies.c, net/ipv6/syncookies.c). The stack uses them if it answers
 * SYNs and its backlog is full. */
#pragma once
#include "packet.h"

/* Headers as bpf_tcp_check_syncookie() reads them: addresses, ports, numbers and flags. */
struct headers {
    union {
        struct iphdr v4;
        struct ipv6hdr v6;
    };
    struct tcphdr tcp;
};

/* Returns 1 if the packet acknowledges a SYN cookie of the stack, for which it keeps no socket. The kernel checks this
 * only if it has sent SYN cookies recently. */
static __always_inline int stack_cookie(struct bpf_sock *listener, const struct packet *p) {
    struct headers h = {};
    if (p->ipv6) {
        h.v6.version = 6;
        __builtin_memcpy(&h.v6.saddr, p->client, 16);
        __builtin_memcpy(&h.v6.daddr, p->server, 16);
    } else {
        h.v4.version = 4;
        __builtin_memcpy(&h.v4.saddr, p->client + 12, 4);
        __builtin_memcpy(&h.v4.daddr, p->server + 12, 4);
    }
    h.tcp.source = p->client_port_be;
    h.tcp.dest = p->server_port_be;
    h.tcp.seq = bpf_htonl(p->seq);
    h.tcp.ack_seq = bpf_htonl(p->ack);
    h.tcp.ack = p->flags & TCP_ACK ? 1 : 0;
    h.tcp.rst = p->flags & TCP_RST ? 1 : 0;
    __u32 bytes = p->ipv6 ? sizeof(h.v6) : sizeof(h.v4);
    return !bpf_tcp_check_syncookie(listener, &h, bytes, &h.tcp, sizeof(h.tcp));
}
