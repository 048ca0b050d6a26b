/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Strays: data that belong to no connection, carry no valid cookie and echo no node's tag. The client gets a RST (RFC
 * 9293 section 3.10.7.1) once it is certain that no node has the connection:
 *
 *   the first segment of a connection with an expired cookie    at once
 *   [resets] any other that is repeated after STRAY_AGAIN_NS    at the repetition
 *
 * Before that, the segment may have overtaken the first one of its connection, or be a probe that is sent because the
 * first one was lost (RFC 8985 section 7); such a probe comes after two round trips, and once. The work for strays is
 * limited per processor, because anybody can send such packets. */
#pragma once
#include "front_cookie.h"

#define STRAYS_MAX 8192
#define STRAY_AGAIN_NS 3000000000ULL
#define STRAY_FORGET_NS 60000000000ULL

/* Limits per processor in a tenth of a second: strays that are examined, and strays that are answered. */
#define LOOK_NS 100000000ULL
#define LOOKS_MAX 1000
#define ANSWERS_MAX 100
/* A bad cookie leads to further work, such as a socket lookup. Limit of such packets per processor in LOOK_NS. */
#define BAD_MAX 10000

/* src/plane/tests/stray.rs has the same layout. */
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

struct budget {
    __u64 since_ns;
    __u32 looks;
    __u32 answers;
    __u32 bad; /* packets of no connection with a bad cookie */
    __u32 zero;
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct budget);
} budgets SEC(".maps");

/* Returns 1 if the packet is the first of a connection whose cookie was made with an expired key. */
GLOBAL_FUNC int cookie_expired(const struct packet *p, const struct timestamps *ts) {
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

/* Returns 1 if this segment has come before, and long enough ago. */
GLOBAL_FUNC int stray_is_repeated(const struct packet *p, const struct flow_key *key) {
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

/* Remaining budget of this processor for the current tenth of a second. */
INLINE struct budget *current_budget(void) {
    __u32 zero = 0;
    struct budget *budget = bpf_map_lookup_elem(&budgets, &zero);
    __u64 now = bpf_ktime_get_ns();
    if (budget && now - budget->since_ns >= LOOK_NS) {
        budget->since_ns = now;
        budget->looks = 0;
        budget->answers = 0;
        budget->bad = 0;
    }
    return budget;
}

/* Returns 1 if this processor has seen too many bad cookies and must drop another one at once. */
INLINE int bad_cookie_budget_exhausted(void) {
    struct budget *budget = current_budget();
    return !budget || budget->bad++ >= BAD_MAX;
}

/* Handles a packet of no connection on a listen address with cookies. */
INLINE int stray(void *ctx, int xdp, const struct packet *p, const struct timestamps *ts, const struct flow_key *key,
             const struct service *service) {
    struct budget *budget = current_budget();
    if (!budget || !(p->payload_bytes || p->flags & TCP_FIN) || (p->flags & (TCP_ACK | TCP_RST)) != TCP_ACK)
        return drop(xdp);
    if (budget->looks >= LOOKS_MAX || budget->answers >= ANSWERS_MAX) {
        count(COUNT_RESET_LIMITED);
        return drop(xdp);
    }
    budget->looks++;
    if (cookie_expired(p, ts))
        count(COUNT_EXPIRED);
    else if (!(service->flags & SERVICE_RESETS) || !stray_is_repeated(p, key))
        return drop(xdp);
    budget->answers++;
    return reply_reset(ctx, xdp, p);
}
