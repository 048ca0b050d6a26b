/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Data that belong to nothing here: no connection, no cookie that is believed, no node's tag. The client is told with a
 * RST (RFC 9293 section 3.10.7.1) when it is sure that no node has the connection:
 *
 *   the first segment of a connection whose cookie is ours and too old    at once
 *   [resets] any other that comes again after STRAY_AGAIN_NS              then
 *
 * Before, it may be a segment that has overtaken the first of its connection, or is sent again as a probe because the
 * first was lost (RFC 8985 section 7); such a probe comes after two round trips, and once. What is spent on all this is
 * limited for each processor: anybody can send such packets. */
#pragma once
#include "front_cookie.h"

#define STRAYS_MAX 8192
#define STRAY_AGAIN_NS 3000000000ULL
#define STRAY_FORGET_NS 60000000000ULL

/* A processor looks at so many strays in a tenth of a second, and answers so many. */
#define LOOK_NS 100000000ULL
#define LOOKS_MAX 1000
#define ANSWERS_MAX 100
/* Behind a bad cookie follow a search for a socket and more. A processor does that for so many packets in LOOK_NS. */
#define BAD_MAX 10000

/* src/plane/tests/stray.rs has its layout too. */
struct stray {
    __u64 since_ns;
    __u32 seq;
    __u32 zero;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, STRAYS_MAX);
    __type(key, struct flow_key);
    __type(value, struct stray);
} strays SEC(".maps");

struct allowance {
    __u64 since_ns;
    __u32 looks;
    __u32 answers;
    __u32 bad; /* packets of no connection, their cookies bad */
    __u32 zero;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct allowance);
} allowances SEC(".maps");

/* 1 if the packet is the first of a connection whose cookie was made with a former key. */
APART int cookie_expired(const struct packet *p, const struct timestamps *ts) {
    __u32 zero = 0;
    struct expired_keys *former = bpf_map_lookup_elem(&expired, &zero);
    if (!former || !p || !ts)
        return 0;
    struct cookie_input in;
    __u64 proof = 0, bits = cookie_claim(p, ts, &in, &proof);
    if (!bits)
        return 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < EXPIRED_KEYS; i++) {
        __u64 k0 = former->k[i][0], k1 = former->k[i][1];
        if ((k0 | k1) && !((cookie_hash(&in, p->ipv6, k0, k1) ^ proof) & bits))
            return 1;
    }
    return 0;
}

/* 1 if this segment has come before, and long enough ago. */
APART int stray_comes_again(const struct packet *p, const struct flow_key *key) {
    if (!p || !key)
        return 0;
    __u64 now = bpf_ktime_get_ns();
    struct stray *before = bpf_map_lookup_elem(&strays, key);
    if (before && before->seq == p->seq && now - before->since_ns < STRAY_FORGET_NS)
        return now - before->since_ns > STRAY_AGAIN_NS;
    struct stray fresh = {.since_ns = now, .seq = p->seq};
    bpf_map_update_elem(&strays, key, &fresh, BPF_ANY);
    return 0;
}

/* What this processor may do in this tenth of a second. */
IN struct allowance *allowance_now(void) {
    __u32 zero = 0;
    struct allowance *allowed = bpf_map_lookup_elem(&allowances, &zero);
    __u64 now = bpf_ktime_get_ns();
    if (allowed && now - allowed->since_ns >= LOOK_NS) {
        allowed->since_ns = now;
        allowed->looks = 0;
        allowed->answers = 0;
        allowed->bad = 0;
    }
    return allowed;
}

/* 1 if this processor has seen so many bad cookies that it drops another one at once. */
IN int bad_cookies_abound(void) {
    struct allowance *allowed = allowance_now();
    return !allowed || allowed->bad++ >= BAD_MAX;
}

/* A packet of a listen address with cookies that belongs to nothing. */
IN int stray(void *ctx, int xdp, const struct packet *p, const struct timestamps *ts, const struct flow_key *key,
             const struct service *service) {
    struct allowance *allowed = allowance_now();
    if (!allowed || !(p->payload_bytes || p->flags & TCP_FIN) || (p->flags & (TCP_ACK | TCP_RST)) != TCP_ACK)
        return drop(xdp);
    if (allowed->looks >= LOOKS_MAX || allowed->answers >= ANSWERS_MAX) {
        count(COUNT_RESET_LIMITED);
        return drop(xdp);
    }
    allowed->looks++;
    if (cookie_expired(p, ts))
        count(COUNT_EXPIRED);
    else if (!(service->flags & SERVICE_RESETS) || !stray_comes_again(p, key))
        return drop(xdp);
    allowed->answers++;
    return reset_answer(ctx, xdp, p);
}
