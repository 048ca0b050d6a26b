/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The cookie: numbers in a SYN-ACK that prove that a switch answered the SYN, and that carry the SYN's options.
 *
 *   initial sequence number                      timestamp, if the client offered timestamps
 *   31             8 7   6  5   4  3    0        31       24 23 22     12 11           0
 *   | hash, 24 bits |mss |sack|ts| wscale |      | node's tag | 0 | clock | hash, 12 bits |
 *
 * A wscale of 15 means that the client offered none. The client returns the sequence number in the handshake's last
 * packet and in the first segment, and the timestamp too. The first segment therefore proves 36 bits of the hash, or 24
 * bits without timestamps. With two live keys, a forged segment is accepted with a probability of 2^-35 or 2^-23;
 * docs/reference/handoff.md describes the consequences.
 *
 * The hash is SipHash-2-4 (Aumasson and Bernstein, INDOCRYPT 2012) over addresses and ports, the client's initial
 * sequence number, the low byte and the clock. Only the switches and their nodes know its key. src/cookie.rs is the
 * same in Rust. */
#pragma once
#include <linux/types.h>

#define COOKIE_WSCALE 7 /* window scale offered to every client; the receive window is then at most 8 MB */
#define COOKIE_NO_WSCALE 15
#define COOKIE_TIMESTAMPS 0x10 /* bit of the low byte: the client offered timestamps */
#define ECHO_BITS 23           /* bits of the timestamp that the cookie uses; the node's tag is above them */
#define ECHO_HASH_BITS 12      /* low bits of them that hold a part of the hash */
#define CLOCK_BITS (ECHO_BITS - ECHO_HASH_BITS)
#define CLOCK_MASK ((1U << CLOCK_BITS) - 1)
/* Bits of the hash that are compared: 24 in the sequence number, then 12 in the timestamp. */
#define PROOF_MASK ((1ULL << (24 + ECHO_HASH_BITS)) - 1)
#define PROOF_MASK_PLAIN 0xffffffULL

struct cookie_input {
    __u8 client[16]; /* as in struct flow_key */
    __u8 server[16];
    __u16 client_port; /* this and all below in host order */
    __u16 server_port;
    __u32 client_isn;
    __u32 low;   /* low byte of the sequence number */
    __u32 clock; /* clock in the timestamp; 0 without timestamps */
};

#define COOKIE_ROTL(x, b) (((x) << (b)) | ((x) >> (64 - (b))))
#define COOKIE_ROUND                                                                                                   \
    do {                                                                                                               \
        v0 += v1; v1 = COOKIE_ROTL(v1, 13); v1 ^= v0; v0 = COOKIE_ROTL(v0, 32);                                        \
        v2 += v3; v3 = COOKIE_ROTL(v3, 16); v3 ^= v2;                                                                  \
        v0 += v3; v3 = COOKIE_ROTL(v3, 21); v3 ^= v0;                                                                  \
        v2 += v1; v1 = COOKIE_ROTL(v1, 17); v1 ^= v2; v2 = COOKIE_ROTL(v2, 32);                                        \
    } while (0)
#define COOKIE_WORD(w)                                                                                                 \
    do {                                                                                                               \
        __u64 word = (w);                                                                                              \
        v3 ^= word; COOKIE_ROUND; COOKIE_ROUND; v0 ^= word;                                                            \
    } while (0)

/* Input words, little endian: client (2), server (2), client_isn << 32 | client_port << 16 | server_port, clock << 8 |
 * low; then SipHash's last word with the length 48 in its top byte. For IPv4 the addresses are one word: client << 32 |
 * server, both in host order, and the length is 24. */
static __always_inline __u64 cookie_hash(const struct cookie_input *in, int ipv6, __u64 k0, __u64 k1) {
    __u64 v0 = 0x736f6d6570736575ULL ^ k0, v1 = 0x646f72616e646f6dULL ^ k1;
    __u64 v2 = 0x6c7967656e657261ULL ^ k0, v3 = 0x7465646279746573ULL ^ k1;
    if (ipv6) {
        __u64 a[4];
        __builtin_memcpy(a, in->client, 16);
        __builtin_memcpy(a + 2, in->server, 16);
        COOKIE_WORD(a[0]);
        COOKIE_WORD(a[1]);
        COOKIE_WORD(a[2]);
        COOKIE_WORD(a[3]);
    } else {
        __u32 c, s;
        __builtin_memcpy(&c, in->client + 12, 4);
        __builtin_memcpy(&s, in->server + 12, 4);
        COOKIE_WORD((__u64)__builtin_bswap32(c) << 32 | __builtin_bswap32(s));
    }
    COOKIE_WORD((__u64)in->client_isn << 32 | (__u32)in->client_port << 16 | in->server_port);
    COOKIE_WORD(in->clock << 8 | in->low);
    COOKIE_WORD((__u64)(ipv6 ? 48 : 24) << 56);
    v2 ^= 0xff;
    COOKIE_ROUND; COOKIE_ROUND; COOKIE_ROUND; COOKIE_ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}

/* Sequence number that carries a hash. */
static __always_inline __u32 cookie_number(__u64 hash, __u32 low) {
    return (__u32)(hash & 0xffffff) << 8 | low;
}

/* Timestamp that carries a hash. */
static __always_inline __u32 cookie_echo(__u64 hash, __u32 clock) {
    return clock << ECHO_HASH_BITS | (__u32)(hash >> 24 & ((1U << ECHO_HASH_BITS) - 1));
}

static __always_inline __u32 echo_clock(__u32 echo) {
    return echo >> ECHO_HASH_BITS & CLOCK_MASK;
}

/* Signed difference of two clock values. */
static __always_inline __s32 clock_difference(__u32 later, __u32 earlier) {
    return (__s32)((later - earlier) << (32 - CLOCK_BITS)) >> (32 - CLOCK_BITS);
}

/* Maximum segment sizes that a cookie can encode for IPv4 and IPv6. The largest one not above the client's is used. */
static __always_inline __u32 cookie_mss_index(__u32 mss, int ipv6) {
    if (ipv6) return mss >= 1440 ? 3 : mss >= 1360 ? 2 : mss >= 1220 ? 1 : 0;
    return mss >= 1460 ? 3 : mss >= 1400 ? 2 : mss >= 1300 ? 1 : 0;
}
static __always_inline __u32 cookie_mss(__u32 index, int ipv6) {
    if (ipv6) return index == 3 ? 1440 : index == 2 ? 1360 : index == 1 ? 1220 : 536;
    return index == 3 ? 1460 : index == 2 ? 1400 : index == 1 ? 1300 : 536;
}
