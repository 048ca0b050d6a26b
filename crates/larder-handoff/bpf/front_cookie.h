/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Cookies of this front-end: made for a SYN, believed in an acknowledgement (RFC 4987 section 3.6 has the idea). */
#pragma once
#include "front_reply.h"

IN void cookie_of(const struct packet *p, __u32 client_isn, __u32 low, struct cookie_input *in) {
    __builtin_memcpy(in->client, p->client, 16);
    __builtin_memcpy(in->server, p->server, 16);
    in->client_port = bpf_ntohs(p->client_port_be);
    in->server_port = bpf_ntohs(p->server_port_be);
    in->client_isn = client_isn;
    in->low = low & 0xff;
}

/* 1 if the packet acknowledges a SYN-ACK that carried a cookie for its addresses, and is the first behind it. */
APART int cookie_believed(const struct packet *p) {
    __u32 zero = 0, cookie;
    struct keys *k = bpf_map_lookup_elem(&keys, &zero);
    if (!k || !p)
        return 0;
    struct cookie_input in;
    cookie = p->ack - 1;
    cookie_of(p, p->seq - 1, cookie, &in);
    __u32 slot = k->current & 1;
    if (cookie_make(&in, p->ipv6, k->k[slot][0], k->k[slot][1]) == cookie)
        return 1;
    slot ^= 1;
    return cookie_make(&in, p->ipv6, k->k[slot][0], k->k[slot][1]) == cookie;
}

APART __u32 cookie_for_syn(const struct packet *p, __u32 low) {
    __u32 zero = 0;
    struct keys *k = bpf_map_lookup_elem(&keys, &zero);
    if (!k || !p)
        return 0;
    struct cookie_input in;
    cookie_of(p, p->seq, low, &in);
    __u32 slot = k->current & 1;
    return cookie_make(&in, p->ipv6, k->k[slot][0], k->k[slot][1]);
}

/* Answers a SYN without keeping anything. */
IN int syn_answer(void *ctx, int xdp, const struct packet *p, const struct service *service) {
    struct options o;
    struct reply r = {};
    options_read(ctx, xdp, p, &o);
    __u32 low = cookie_mss_index(o.mss, p->ipv6) << 6 | o.sack << 5 | o.timestamps << 4 | o.wscale;
    r.tcp.seq = bpf_htonl(cookie_for_syn(p, low));
    r.tcp.ack_seq = bpf_htonl(p->seq + 1);
    r.tcp.syn = 1;
    r.tcp.ack = 1;
    r.tcp.window = bpf_htons(65535);
    __u32 options_bytes = syn_ack_options(&o, service->mss, r.options);
    if (options_bytes + 20 > p->header_bytes) {
        count(COUNT_MALFORMED);
        return drop(xdp);
    }
    count(COUNT_SYN_ACK);
    return reply_send(ctx, xdp, p, &r, 20 + options_bytes);
}

/* Answers a packet of a connection that is no more (RFC 9293 section 3.10.7.1: the number is what the packet
 * acknowledges). What cannot be answered so, and a RST, is dropped. */
IN int reset_answer(void *ctx, int xdp, const struct packet *p) {
    struct reply r = {};
    if (p->flags & TCP_RST || !(p->flags & TCP_ACK))
        return drop(xdp);
    r.tcp.seq = bpf_htonl(p->ack);
    r.tcp.rst = 1;
    count(COUNT_RESET);
    return reply_send(ctx, xdp, p, &r, 20);
}
