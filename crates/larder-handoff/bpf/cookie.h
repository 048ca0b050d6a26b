/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The cookie: an initial sequence number that proves a SYN was answered here, and carries what its options said.
 *
 *   31            8 7   6  5   4  3    0
 *   | SipHash-2-4  |mss |sack|ts| wscale |        wscale 15: the client offered none
 *
 * The hash is over the connection's addresses and ports, the client's initial sequence number and the low byte, with a
 * key that only the front-end and its nodes know (SipHash: Aumasson and Bernstein, INDOCRYPT 2012). src/cookie.rs is
 * the same in Rust. */
#pragma once
#include <linux/types.h>

#define COOKIE_WSCALE 7 /* the receive window scale promised to every client; its window is at most 8 MB */
#define COOKIE_NO_WSCALE 15

struct cookie_input {
    __u8 client[16]; /* as in struct flow_key */
    __u8 server[16];
    __u16 client_port; /* host order, as all below */
    __u16 server_port;
    __u32 client_isn;
    __u32 low; /* the low byte */
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

/* Words, little endian: client (2), server (2), client_isn << 32 | client_port << 16 | server_port, low; then the
 * closing word of SipHash with the length 48 in its top byte. For IPv4 the two address words are one:
 * client << 32 | server, both in host order, and the length is 24. */
static __always_inline __u32 cookie_make(const struct cookie_input *in, int ipv6, __u64 k0, __u64 k1) {
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
    COOKIE_WORD(in->low);
    COOKIE_WORD((__u64)(ipv6 ? 48 : 24) << 56);
    v2 ^= 0xff;
    COOKIE_ROUND; COOKIE_ROUND; COOKIE_ROUND; COOKIE_ROUND;
    return (__u32)((v0 ^ v1 ^ v2 ^ v3) & 0xffffff) << 8 | (in->low & 0xff);
}

/* The maximum segment sizes a cookie can name, IPv4 and IPv6: the largest not above the client's. */
static __always_inline __u32 cookie_mss_index(__u32 mss, int ipv6) {
    if (ipv6) return mss >= 1440 ? 3 : mss >= 1360 ? 2 : mss >= 1220 ? 1 : 0;
    return mss >= 1460 ? 3 : mss >= 1400 ? 2 : mss >= 1300 ? 1 : 0;
}
static __always_inline __u32 cookie_mss(__u32 index, int ipv6) {
    if (ipv6) return index == 3 ? 1440 : index == 2 ? 1360 : index == 1 ? 1220 : 536;
    return index == 3 ? 1460 : index == 2 ? 1400 : index == 1 ? 1300 : 536;
}
