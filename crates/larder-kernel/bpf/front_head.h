/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Hash of a request's first two lines, which the fast path uses to recognise a target: SipHash-2-4 over the segment's
 * bytes from its start through the newline of the second line. The first line must begin with "GET ", the second with
 * "Host:" or "host:", and both must lie in the segment and within HEAD_HASH_BYTES_MAX. The hash is keyed, so that
 * clients cannot construct collisions. */
#pragma once
#include "cookie.h"
#include "front_io.h"

/* Mixes the number of the listen address into the hash (2^64 over the golden ratio). */
#define SERVICE_HASH_MULTIPLIER 0x9e3779b97f4a7c15ULL

struct head_scan {
    __u64 v[4];
    __u64 last; /* the word with the final newline, zeroed after it */
    __u32 second_at; /* offset of the second line; 0: not found yet */
    __u32 end; /* offset after the second line; 0: not found */
    __u32 bytes;
    __u32 zero;
};

INLINE void head_mix(struct head_scan *h, __u64 input) {
    __u64 v0 = h->v[0], v1 = h->v[1], v2 = h->v[2], v3 = h->v[3];
    COOKIE_WORD(input);
    h->v[0] = v0, h->v[1] = v1, h->v[2] = v2, h->v[3] = v3;
}

/* Index of the lowest byte with the value 0x80 in a word. */
INLINE __u32 lowest_byte(__u64 marks) {
    return (((marks & -marks) >> 7) * 0x0001020304050607ULL) >> 56;
}

static long head_word(__u32 i, void *context) {
    struct head_scan *h = context;
    struct scratch *s = scratch();
    if (!s || i >= HEAD_HASH_BYTES_MAX / 8 || i * 8 >= h->bytes)
        return 1;
    __u64 word;
    __builtin_memcpy(&word, s->head + i * 8, 8);
    __u64 x = word ^ 0x0a0a0a0a0a0a0a0aULL, low = 0x7f7f7f7f7f7f7f7fULL;
    __u64 newlines = ~(((x & low) + low) | x | low); /* 0x80 in every byte that is a newline, exact */
    if (newlines && !h->second_at) {
        h->second_at = i * 8 + lowest_byte(newlines) + 1;
        newlines &= newlines - 1;
    }
    if (newlines) {
        __u32 at = lowest_byte(newlines);
        h->end = i * 8 + at + 1;
        h->last = at == 7 ? word : word & ((1ULL << (at * 8 + 8)) - 1);
        return 1;
    }
    head_mix(h, word);
    return 0;
}

/* Whether the second line is the Host field. */
INLINE int is_host(const struct scratch *s, __u32 at) {
    if (at > HEAD_HASH_BYTES_MAX - 5)
        return 0;
    const __u8 *b = s->head + at;
    return (b[0] == 'H' || b[0] == 'h') && b[1] == 'o' && b[2] == 's' && b[3] == 't' && b[4] == ':';
}

/* Returns the hash, or 0 if the segment has none. The segment must have payload. */
INLINE __u64 head_hash(void *ctx, int xdp, const struct packet *p) {
    __u32 zero = 0, bytes = p->payload_bytes;
    struct scratch *s = scratch();
    struct keys *k = bpf_map_lookup_elem(&keys, &zero);
    if (!s || !k || bytes < 16)
        return 0;
    if (bytes > HEAD_HASH_BYTES_MAX)
        bytes = HEAD_HASH_BYTES_MAX;
    if (frame_load(ctx, xdp, l4_at(p) + p->header_bytes, s->head, clamp(bytes, HEAD_HASH_BYTES_MAX)))
        return 0;
    if (s->head[0] != 'G' || s->head[1] != 'E' || s->head[2] != 'T' || s->head[3] != ' ')
        return 0;
    struct head_scan h = {.bytes = bytes};
    h.v[0] = 0x736f6d6570736575ULL ^ k->hash[0];
    h.v[1] = 0x646f72616e646f6dULL ^ k->hash[1];
    h.v[2] = 0x6c7967656e657261ULL ^ k->hash[0];
    h.v[3] = 0x7465646279746573ULL ^ k->hash[1];
    bpf_loop(HEAD_HASH_BYTES_MAX / 8, head_word, &h, 0);
    if (!h.end || h.end > bytes || !is_host(s, h.second_at))
        return 0;
    __u64 length = (__u64)h.end << 56;
    if (h.end % 8) {
        head_mix(&h, h.last | length);
    } else {
        head_mix(&h, h.last);
        head_mix(&h, length);
    }
    __u64 v0 = h.v[0], v1 = h.v[1], v2 = h.v[2], v3 = h.v[3];
    v2 ^= 0xff;
    COOKIE_ROUND; COOKIE_ROUND; COOKIE_ROUND; COOKIE_ROUND;
    return v0 ^ v1 ^ v2 ^ v3;
}
