/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The switch's cookies: made for a SYN, and checked in an acknowledgement (the idea: RFC 4987 section 3.6). */
#pragma once
/* Bad cookies without timestamps that a switch checks per second; see cookie_check.h. */
#define PLAIN_BAD_MAX 500
#define PLAIN_KNOWN_BAD_MAX 100
#include "front_reply.h"
/* Needs the map `keys` from above. */
#include "cookie_check.h"

/* A cookie is recent if its clock is at most a quarter of the clock's range behind or ahead. User space chooses the
 * clock's unit so that this is the life of a key. */
#define CLOCK_RECENT ((1 << CLOCK_BITS) / 4)

/* Current clock for SYN-ACKs, in units of 2^clock_shift ms. */
INLINE __u32 clock_now(void) {
    return ((__u32)(bpf_ktime_get_ns() / 1000000) + config.clock_ms) >> config.clock_shift & CLOCK_MASK;
}

INLINE __u64 clock_recent_ns(void) {
    return ((__u64)CLOCK_RECENT << config.clock_shift) * 1000000;
}

INLINE void read_timestamps(void *ctx, int xdp, const struct packet *p, struct timestamps *ts) {
    struct options o;
    options_read(ctx, xdp, p, &o);
    ts->value = bpf_ntohl(o.tsval_be);
    ts->echo = o.tsecr;
    ts->present = o.timestamps;
}

/* Timestamp of the SYN-ACK that a first segment echoes. 0: no timestamps, or not a switch's. */
INLINE __u32 syn_ack_echo(const struct timestamps *ts) {
    return ts->present && !(ts->echo >> ECHO_BITS) ? ts->echo : 0;
}

/* Checks whether the packet is the first after a recent SYN-ACK with a cookie for its addresses. Cheap checks come
 * first. Returns an enum cookie_verdict. */
INLINE int cookie_check(const struct packet *p, const struct timestamps *ts, __u32 addresses) {
    if (ts->present) {
        __s32 age = clock_difference(clock_now(), echo_clock(ts->echo));
        if (ts->echo >> ECHO_BITS || age > CLOCK_RECENT || age < -CLOCK_RECENT)
            return COOKIE_BAD;
    }
    return cookie_verdict(p, ts, addresses, config.proof_mask);
}

/* Hash of the cookie for a SYN, with the current key. */
GLOBAL_FUNC __u64 cookie_for_syn(const struct packet *p, __u32 low, __u32 clock) {
    __u32 zero = 0;
    struct keys *k = bpf_map_lookup_elem(&keys, &zero);
    if (!k || !p)
        return 0;
    struct cookie_input in;
    make_cookie_input(p, p->seq, low, clock, &in);
    __u32 slot = k->current & 1;
    return cookie_hash(&in, p->ipv6, k->k[slot][0], k->k[slot][1]);
}

/* Answers a SYN without keeping state. The timestamp is a part of the cookie. */
INLINE int reply_syn_ack(void *ctx, int xdp, const struct packet *p, const struct service *service) {
    struct options o;
    struct reply r = {};
    options_read(ctx, xdp, p, &o);
    /* Its cookie could not be checked at the moment. */
    if (!o.timestamps && plain_checks_exhausted())
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

/* Answers a packet of a connection that does not exist (RFC 9293 section 3.10.7.1: the RST's number is what the packet
 * acknowledges). Drops a RST, and a packet without an acknowledgement. */
INLINE int reply_reset(void *ctx, int xdp, const struct packet *p) {
    struct reply r = {};
    if (p->flags & TCP_RST || !(p->flags & TCP_ACK))
        return drop(xdp);
    r.tcp.seq = bpf_htonl(p->ack);
    r.tcp.rst = 1;
    count(COUNT_RESET);
    return reply_send(ctx, xdp, p, &r, 20);
}
