/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The TCP options of a packet (RFC 9293 section 3.1, RFC 7323, RFC 2018). */
#pragma once
#include "cookie.h"
#include "front_io.h"

struct options {
    __u8 bytes[48]; /* 40 used; the rest lets reads past the end go unchecked */
    __u32 length;
    __u32 at;
    __u32 tsval_be;
    __u32 tsecr;
    __u16 mss;
    __u8 has_mss;
    __u8 wscale; /* COOKIE_NO_WSCALE: none */
    __u8 sack;
    __u8 timestamps;
    __u8 zero[2];
};

static long option_next(__u32 i, void *context) {
    struct options *o = context;
    __u32 at = o->at;
    if (at >= o->length || at >= 40)
        return 1;
    at &= 0x3f;
    if (at > 39)
        return 1;
    __u8 kind = o->bytes[at], length = o->bytes[at + 1];
    if (kind == 0)
        return 1;
    if (kind == 1) {
        o->at = at + 1;
        return 0;
    }
    if (length < 2 || at + length > o->length)
        return 1;
    if (kind == 2 && length == 4 && at <= 36) {
        o->mss = (__u16)o->bytes[at + 2] << 8 | o->bytes[at + 3];
        o->has_mss = 1;
    } else if (kind == 3 && length == 3) {
        __u8 scale = o->bytes[at + 2];
        o->wscale = scale > 14 ? 14 : scale;
    } else if (kind == 4 && length == 2) {
        o->sack = 1;
    } else if (kind == 8 && length == 10 && at <= 30) {
        __u32 tsecr_be;
        __builtin_memcpy(&o->tsval_be, o->bytes + at + 2, 4);
        __builtin_memcpy(&tsecr_be, o->bytes + at + 6, 4);
        o->tsecr = bpf_ntohl(tsecr_be);
        o->timestamps = 1;
    }
    o->at = at + length;
    return 0;
}

/* Parses the copied bytes. */
GLOBAL_FUNC int options_parse(struct options *o) {
    if (!o)
        return 0;
    struct options here = *o; /* the callback accepts only stack memory */
    bpf_loop(40, option_next, &here, 0);
    *o = here;
    return 1;
}

/* Reads the options. Unreadable options count as absent. */
INLINE void options_read(void *ctx, int xdp, const struct packet *p, struct options *o) {
    __builtin_memset(o, 0, sizeof(*o));
    o->mss = 536; /* RFC 9293 section 3.7.1. IPv6 allows 1220, but a client without the option gets this */
    o->wscale = COOKIE_NO_WSCALE;
    __u32 length = p->header_bytes - 20;
    if (!length || length > 40)
        return;
    if (frame_load(ctx, xdp, l4_at(p) + 20, o->bytes, clamp(length, 40)))
        return;
    o->length = length;
    options_parse(o);
}
