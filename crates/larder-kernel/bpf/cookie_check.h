/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Checks the cookie in a first segment, on the front-end and on nodes alike. The including program has a table `keys`. */
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
    COOKIE_UNCHECKED, /* a cookie without timestamps, and too many of them were bad */
};

/* A cookie without timestamps proves 24 bits only. So a host gives up checking such cookies for the rest of a second in
 * which PLAIN_BAD_MAX were bad: of 500 a second one is believed in 4.7 hours. Packets on the addresses of a known connection
 * have a number of their own, PLAIN_KNOWN_BAD_MAX: most are that connection's, come in no order, and prove nothing. */
#define PLAIN_NS 1000000000ULL
/* Clients without timestamps are left to the stack for so long after that, where it can answer them. */
#define PLAIN_REST_NS 10000000000ULL

struct plain_checks {
    __u64 since_ns;     /* CLOCK_MONOTONIC; start of the second */
    __u64 exhausted_ns; /* when checks last ran out; 0: never */
    __u64 bad;
};

/* Whose addresses a packet has. */
enum { ADDRESSES_FREE, ADDRESSES_KNOWN, ADDRESSES_MAX };

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, ADDRESSES_MAX);
    __type(key, __u32);
    __type(value, struct plain_checks);
} plain_checks SEC(".maps");

static __always_inline struct plain_checks *plain_checks_of(__u32 addresses) {
    return bpf_map_lookup_elem(&plain_checks, &addresses);
}

/* 1 if another cookie without timestamps may be checked. Once none may, processors share a line that nobody writes. */
static __always_inline int plain_may_check(struct plain_checks *checks, __u32 addresses, __u64 now) {
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

/* 1 if checks of new clients' cookies without timestamps have run out of late. */
static __always_inline int plain_rests(void) {
    struct plain_checks *checks = plain_checks_of(ADDRESSES_FREE);
    __u64 at = checks ? checks->exhausted_ns : 0;
    return at && bpf_ktime_get_ns() - at < PLAIN_REST_NS;
}

static __always_inline void cookie_input_of(const struct packet *p, __u32 client_isn, __u32 low, __u32 clock,
                                            struct cookie_input *in) {
    __builtin_memcpy(in->client, p->client, 16);
    __builtin_memcpy(in->server, p->server, 16);
    in->client_port = bpf_ntohs(p->client_port_be);
    in->server_port = bpf_ntohs(p->server_port_be);
    in->client_isn = client_isn;
    in->low = low & 0xff;
    in->clock = clock;
}

/* What a first segment says of its cookie: the input of the hash, and the bits of the hash that the segment proves. Returns
 * the bits to compare, 0 if the segment contradicts itself: timestamps are there if and only if the cookie says so. */
static __always_inline __u64 cookie_claim(const struct packet *p, const struct timestamps *ts, struct cookie_input *in,
                                          __u64 *proof) {
    __u32 cookie = p->ack - 1, timestamps = cookie & COOKIE_TIMESTAMPS ? 1 : 0;
    if (timestamps != ts->present || (timestamps && ts->echo >> ECHO_BITS))
        return 0;
    cookie_input_of(p, p->seq - 1, cookie, timestamps ? echo_clock(ts->echo) : 0, in);
    *proof = cookie >> 8;
    if (!timestamps)
        return PROOF_MASK_PLAIN;
    *proof |= (__u64)(ts->echo & ((1U << ECHO_HASH_BITS) - 1)) << 24;
    return PROOF_MASK;
}

/* Whether a packet acknowledges a cookie made with one of the two live keys: then it is the first of a connection. A slot
 * without a key believes nothing. `mask` selects the bits of the hash that are compared. Returns an enum cookie_verdict. */
APART int cookie_verdict(const struct packet *p, const struct timestamps *ts, __u32 addresses, __u64 mask) {
    __u32 zero = 0;
    struct keys *live = bpf_map_lookup_elem(&keys, &zero);
    struct plain_checks *checks = plain_checks_of(addresses);
    if (!p || !ts || !live || !checks)
        return COOKIE_BAD;
    struct cookie_input in;
    __u64 proof = 0, bits = cookie_claim(p, ts, &in, &proof);
    if (!bits)
        return COOKIE_BAD;
    int plain = bits == PROOF_MASK_PLAIN;
    if (plain && !plain_may_check(checks, addresses, bpf_ktime_get_ns()))
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
