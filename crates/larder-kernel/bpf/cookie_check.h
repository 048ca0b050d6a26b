/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Checks the cookie in a first segment, on the switch and on nodes. The including program defines a map `keys`. */
#pragma once
#include "abi.h"
#include "cookie.h"
#include "counters.h"
#include "packet.h"

/* The timestamp option of a packet. */
struct timestamps {
    __u32 value;
    __u32 echo;
    __u32 present;
};

enum cookie_verdict {
    COOKIE_BAD,
    COOKIE_GOOD,
    COOKIE_UNCHECKED, /* a cookie without timestamps, after too many bad ones */
};

/* A cookie without timestamps proves only 24 bits. Therefore a host stops checking such cookies for the rest of a
 * second in which PLAIN_BAD_MAX were bad: at 500 guesses per second, one is accepted in 4.7 hours. Packets on the
 * addresses of a known connection have a separate limit, PLAIN_KNOWN_BAD_MAX: most of them belong to that connection,
 * may be out of order, and carry no cookie. */
#define PLAIN_NS 1000000000ULL
/* Time after the limit was reached during which SYNs without timestamps are left to the stack, where the stack can
 * answer them. */
#define PLAIN_EXHAUSTED_NS 10000000000ULL

struct plain_checks {
    __u64 since_ns;     /* start of the current second, CLOCK_MONOTONIC */
    __u64 exhausted_ns; /* time at which the limit was last reached; 0: never */
    __u64 bad;
};

/* Whether a connection on a packet's addresses is known. */
enum { ADDRESSES_FREE, ADDRESSES_KNOWN, ADDRESSES_MAX };

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, ADDRESSES_MAX);
    __type(key, __u32);
    __type(value, struct plain_checks);
} plain_checks SEC(".maps");

static __always_inline struct plain_checks *find_plain_checks(__u32 addresses) {
    return bpf_map_lookup_elem(&plain_checks, &addresses);
}

/* Returns 1 if another cookie without timestamps may be checked. Once the limit is reached, processors share a cache
 * line that none of them writes. */
static __always_inline int plain_check_allowed(struct plain_checks *checks, __u32 addresses, __u64 now) {
    __u64 since = *(volatile __u64 *)&checks->since_ns;
    if (now - since >= PLAIN_NS) {
        if (__sync_val_compare_and_swap(&checks->since_ns, since, now) == since)
            *(volatile __u64 *)&checks->bad = 0;
        return 1;
    }
    if (*(volatile __u64 *)&checks->bad < (addresses == ADDRESSES_KNOWN ? PLAIN_KNOWN_BAD_MAX : PLAIN_BAD_MAX))
        return 1;
    if (now - *(volatile __u64 *)&checks->exhausted_ns >= PLAIN_NS / 10)
        *(volatile __u64 *)&checks->exhausted_ns = now;
    return 0;
}

/* Returns 1 if the limit for new clients without timestamps was reached recently. */
static __always_inline int plain_checks_exhausted(void) {
    struct plain_checks *checks = find_plain_checks(ADDRESSES_FREE);
    __u64 at = checks ? checks->exhausted_ns : 0;
    return at && bpf_ktime_get_ns() - at < PLAIN_EXHAUSTED_NS;
}

static __always_inline void make_cookie_input(const struct packet *p, __u32 client_isn, __u32 low, __u32 clock,
                                            struct cookie_input *in) {
    __builtin_memcpy(in->client, p->client, 16);
    __builtin_memcpy(in->server, p->server, 16);
    in->client_port = bpf_ntohs(p->client_port_be);
    in->server_port = bpf_ntohs(p->server_port_be);
    in->client_isn = client_isn;
    in->low = low & 0xff;
    in->clock = clock;
}

/* Reads the cookie of a first segment: the input of the hash, and in `proof` the bits of the hash that the segment
 * carries. Returns the mask of these bits, or 0 if the segment is inconsistent: it must have timestamps exactly if the
 * cookie says so. */
static __always_inline __u64 cookie_claim(const struct packet *p, const struct timestamps *ts, struct cookie_input *in,
                                          __u64 *proof) {
    __u32 cookie = p->ack - 1, timestamps = cookie & COOKIE_TIMESTAMPS ? 1 : 0;
    if (timestamps != ts->present || (timestamps && ts->echo >> ECHO_BITS))
        return 0;
    make_cookie_input(p, p->seq - 1, cookie, timestamps ? echo_clock(ts->echo) : 0, in);
    *proof = cookie >> 8;
    if (!timestamps)
        return PROOF_MASK_PLAIN;
    *proof |= (__u64)(ts->echo & ((1U << ECHO_HASH_BITS) - 1)) << 24;
    return PROOF_MASK;
}

/* Checks whether a packet acknowledges a cookie of one of the two live keys, and is thus the first of a connection. An
 * empty key slot accepts nothing. `mask` selects the bits of the hash that are compared. Returns an enum
 * cookie_verdict. */
GLOBAL_FUNC int cookie_verdict(const struct packet *p, const struct timestamps *ts, __u32 addresses, __u64 mask) {
    __u32 zero = 0;
    struct keys *live = bpf_map_lookup_elem(&keys, &zero);
    struct plain_checks *checks = find_plain_checks(addresses);
    if (!p || !ts || !live || !checks)
        return COOKIE_BAD;
    struct cookie_input in;
    __u64 proof = 0, bits = cookie_claim(p, ts, &in, &proof);
    if (!bits)
        return COOKIE_BAD;
    int plain = bits == PROOF_MASK_PLAIN;
    if (plain && !plain_check_allowed(checks, addresses, bpf_ktime_get_ns()))
        return COOKIE_UNCHECKED;
    bits &= mask;
#pragma clang loop unroll(disable)
    for (__u32 i = 0; i < 2; i++) {
        __u64 k0 = live->k[i][0], k1 = live->k[i][1];
        if ((k0 | k1) && !((cookie_hash(&in, p->ipv6, k0, k1) ^ proof) & bits))
            return COOKIE_GOOD;
    }
    if (plain)
        __sync_fetch_and_add(&checks->bad, 1);
    return COOKIE_BAD;
}
