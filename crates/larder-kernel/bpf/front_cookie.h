/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Cookies of this front-end: made for a SYN, checked in an acknowledgement (RFC 4987 section 3.6 has the idea). */
#pragma once
/* Bad cookies without timestamps that a front-end checks in a second; see cookie_check.h. */
#define PLAIN_BAD_MAX 500
#define PLAIN_KNOWN_BAD_MAX 100
#include "front_reply.h"
/* needs the table of keys above */
#include "cookie_check.h"

/* A cookie is good if its clock is at most a quarter of the clock's range old, or as much ahead: user space sets the unit so
 * that this is as long as a key is believed. */
#define CLOCK_RECENT ((1 << CLOCK_BITS) / 4)

/* The clock in SYN-ACKs, in units of 2^clock_shift ms. */
IN __u32 clock_now(void) {
    return ((__u32)(bpf_ktime_get_ns() / 1000000) + config.clock_ms) >> config.clock_shift & CLOCK_MASK;
}

IN __u64 clock_recent_ns(void) {
    return ((__u64)CLOCK_RECENT << config.clock_shift) * 1000000;
}

IN void timestamps_of(void *ctx, int xdp, const struct packet *p, struct timestamps *ts) {
    struct options o;
    options_read(ctx, xdp, p, &o);
    ts->value = bpf_ntohl(o.tsval_be);
    ts->echo = o.tsecr;
    ts->present = o.timestamps;
}

/* The timestamp of the SYN-ACK that a first segment echoes. 0: no timestamps, or none of a front-end. */
IN __u32 echo_of(const struct timestamps *ts) {
    return ts->present && !(ts->echo >> ECHO_BITS) ? ts->echo : 0;
}

/* Whether the packet acknowledges a recent SYN-ACK that carried a cookie for its addresses, and is the first behind it.
 * What costs nothing is looked at first. Returns an enum cookie_verdict. */
IN int cookie_check(const struct packet *p, const struct timestamps *ts, __u32 addresses) {
    if (ts->present) {
        __s32 age = clock_difference(clock_now(), echo_clock(ts->echo));
        if (ts->echo >> ECHO_BITS || age > CLOCK_RECENT || age < -CLOCK_RECENT)
            return COOKIE_BAD;
    }
    return cookie_verdict(p, ts, addresses, config.proof_mask);
}

/* The cookie for a SYN: the hash, made with the current key. */
APART __u64 cookie_for_syn(const struct packet *p, __u32 low, __u32 clock) {
    __u32 zero = 0;
    struct keys *k = bpf_map_lookup_elem(&keys, &zero);
    if (!k || !p)
        return 0;
    struct cookie_input in;
    cookie_input_of(p, p->seq, low, clock, &in);
    __u32 slot = k->current & 1;
    return cookie_hash(&in, p->ipv6, k->k[slot][0], k->k[slot][1]);
}

/* Answers a SYN without keeping anything. The timestamp is part of the cookie. */
IN int syn_answer(void *ctx, int xdp, const struct packet *p, const struct service *service) {
    struct options o;
    struct reply r = {};
    options_read(ctx, xdp, p, &o);
    /* What its cookie would prove could not be checked for now. */
    if (!o.timestamps && plain_rests())
        return pass(xdp);
    __u32 low = cookie_mss_index(o.mss, p->ipv6) << 6 | o.sack << 5 | o.timestamps << 4 | o.wscale;
    __u32 clock = o.timestamps ? clock_now() : 0;
    __u64 hash = cookie_for_syn(p, low, clock);
    r.tcp.seq = bpf_htonl(cookie_number(hash, low));
    r.tcp.ack_seq = bpf_htonl(p->seq + 1);
    r.tcp.syn = 1;
    r.tcp.ack = 1;
    r.tcp.window = bpf_htons(65535);
    __u32 options_bytes = syn_ack_options(&o, service->mss, cookie_echo(hash, clock), r.options);
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
