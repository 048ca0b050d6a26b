/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Lets a listener accept a connection from the cookie in its first segment, and removes an old socket on the same
 * addresses. */
#pragma once
/* Bad cookies without timestamps that a node checks per second. Few arrive, because the switch has checked them
 * already. */
#define PLAIN_BAD_MAX 100
#define PLAIN_KNOWN_BAD_MAX 100
#include "node_maps.h"
#include "packet.h"
#include "cookie_check.h"

#define OPTION_BYTES_MAX 40
#define OPTION_END 0
#define OPTION_NOP 1
#define OPTION_TIMESTAMP 8
#define OPTION_TIMESTAMP_BYTES 10
#define TCP_HEADER_BYTES_MAX 60
#define KILLS_MAX 3
/* No segment is delayed for longer. The clock of SYN-ACKs wraps after eight minutes at the earliest. */
#define OVERTAKEN_NS 60000000000ULL

/* Reads the timestamp option (RFC 7323) at any position. */
GLOBAL_FUNC int timestamps_read(struct __sk_buff *skb, const struct packet *p, struct timestamps *out) {
    __u8 options[64] = {};
    if (!p || !out)
        return 0;
    __u64 bytes = p->header_bytes - sizeof(struct tcphdr);
    __u32 from = l4_at(p) + sizeof(struct tcphdr);
    asm volatile("" : "+r"(bytes));
    if (bytes < OPTION_TIMESTAMP_BYTES || bytes > OPTION_BYTES_MAX || bpf_skb_load_bytes(skb, from, options, bytes))
        return 0;
    /* Tests each offset in turn, so that the verifier need not follow all chains of lengths. Bytes after the end are
     * 0. */
    __u32 next = 0;
#pragma unroll
    for (__u32 at = 0; at <= OPTION_BYTES_MAX - OPTION_TIMESTAMP_BYTES; at++) {
        if (at != next)
            continue;
        __u8 kind = options[at], length = options[at + 1];
        if (kind == OPTION_TIMESTAMP && length == OPTION_TIMESTAMP_BYTES) {
            __u32 words[2];
            __builtin_memcpy(words, options + at + 2, sizeof(words));
            out->value = bpf_ntohl(words[0]);
            out->echo = bpf_ntohl(words[1]);
            out->present = 1;
            return 1;
        }
        if (kind == OPTION_END || (kind != OPTION_NOP && length < 2))
            return 0;
        next = at + (kind == OPTION_NOP ? 1 : length);
    }
    return 0;
}

/* Whether the packet carries a valid cookie. The switch has checked its age; a node cannot, but its keys expire. */
GLOBAL_FUNC int proves_cookie(struct __sk_buff *skb, const struct packet *p, __u32 addresses) {
    struct timestamps ts = {};
    if (!p || (p->flags & (TCP_SYN | TCP_RST | TCP_ACK)) != TCP_ACK)
        return 0;
    timestamps_read(skb, p, &ts);
    int verdict = cookie_verdict(p, &ts, addresses, PROOF_MASK);
    if (verdict == COOKIE_UNCHECKED && addresses == ADDRESSES_FREE)
        count(COUNT_PLAIN_LIMITED);
    return verdict == COOKIE_GOOD;
}

/* Reads the SYN's options from the cookie. The kernel accepts no segment size below 1220 bytes over IPv6; every link
 * there carries that much (RFC 8200 section 5). */
static __always_inline void cookie_attributes(struct __sk_buff *skb, const struct packet *p,
                                              struct bpf_tcp_req_attrs *attributes) {
    __u32 cookie = p->ack - 1, zero = 0, wscale = cookie & 15;
    struct timestamps ts = {};
    attributes->mss = cookie_mss(cookie >> 6 & 3, p->ipv6);
    if (p->ipv6 && attributes->mss < 1220)
        attributes->mss = 1220;
    attributes->sack_ok = cookie >> 5 & 1;
    if (wscale != COOKIE_NO_WSCALE) {
        attributes->wscale_ok = 1;
        attributes->snd_wscale = wscale;
        attributes->rcv_wscale = COOKIE_WSCALE;
    }
    if (!(cookie >> 4 & 1) || !timestamps_read(skb, p, &ts))
        return;
    attributes->tstamp_ok = 1;
    attributes->rcv_tsval = ts.value;
    attributes->rcv_tsecr = ts.echo;
    /* The kernel counts on from the echoed timestamp, so this tag is in all later ones. */
    __u32 *top = bpf_map_lookup_elem(&tag, &zero);
    if (top && *top)
        attributes->rcv_tsecr = (ts.echo & 0xffffff) | *top << 24;
}

/* Timestamp of the SYN-ACK that a first segment echoes. 0: no timestamps, or not a switch's. */
static __always_inline __u32 syn_ack_echo(struct __sk_buff *skb, const struct packet *p) {
    struct timestamps ts = {};
    return timestamps_read(skb, p, &ts) && !(ts.echo >> ECHO_BITS) ? ts.echo : 0;
}

/* Whether a first segment belongs to an older connection than `conn`, because it was delayed. Its cookie is valid and
 * does not tell its age, but the time of the SYN-ACK that it echoes does. (RFC 7323 section 5 compares the client's
 * clock, which may start anew with each connection.) Without timestamps, the previous connection is recognised by its
 * sequence number. */
static __always_inline int is_older_first_segment(struct __sk_buff *skb, const struct packet *p,
                                                  const struct conn *conn) {
    if (!conn || !(conn->flags & (CONN_COOKIE | CONN_KILLING)) || conn->first_seq == p->seq)
        return 0;
    if (conn->flags & CONN_HAS_PREVIOUS && conn->previous_seq == p->seq)
        return 1;
    if (bpf_ktime_get_ns() - conn->opened_ns >= OVERTAKEN_NS)
        return 0;
    __u32 echo = syn_ack_echo(skb, p);
    return echo && conn->echo && clock_difference(echo_clock(echo), echo_clock(conn->echo)) < 0;
}

/* Notes that a connection is open on this host. A previous one on the same addresses whose end was not seen is reported
 * as closed. */
GLOBAL_FUNC int conn_open(struct __sk_buff *skb, const struct flow_key *key, const struct packet *p, __u32 flags) {
    if (!key || !p)
        return 0;
    __u64 now = bpf_ktime_get_ns();
    struct conn fresh = {.flags = flags, .first_seq = p->seq, .opened_ns = now, .seen_ns = now};
    fresh.echo = syn_ack_echo(skb, p);
    struct conn *old = bpf_map_lookup_elem(&conns, key);
    if (old) {
        int same = old->first_seq == p->seq && (old->flags & (CONN_COOKIE | CONN_KILLING));
        if (!same && !(old->flags & CONN_KILLING))
            conn_close(key, old);
        if (same && (flags & CONN_KILLING))
            fresh.kills = old->kills + 1;
        if (same) {
            fresh.flags |= old->flags & CONN_HAS_PREVIOUS;
            fresh.previous_seq = old->previous_seq;
        } else if (old->flags & (CONN_COOKIE | CONN_KILLING)) {
            fresh.flags |= CONN_HAS_PREVIOUS;
            fresh.previous_seq = old->first_seq;
        }
    }
    return bpf_map_update_elem(&conns, key, &fresh, BPF_ANY) == 0;
}

/* Removes the old socket on the addresses of a new connection. A copy of the packet's header goes ahead as a RST with
 * exactly the sequence number that the old socket expects (RFC 5961 section 3.2); then the packet itself is received
 * again. The copy has no options, because an old timestamp would save the socket (PAWS). */
GLOBAL_FUNC int kill_stale_socket(struct __sk_buff *skb, const struct packet *p, __u32 expected) {
    __u32 was[TCP_HEADER_BYTES_MAX / 4] = {}, rst[TCP_HEADER_BYTES_MAX / 4];
    if (!p)
        return VERDICT_DROP;
    __u32 at = l4_at(p);
    __u64 bytes = p->header_bytes;
    asm volatile("" : "+r"(bytes));
    if (bytes < sizeof(struct tcphdr) || bytes > TCP_HEADER_BYTES_MAX || bpf_skb_load_bytes(skb, at, was, bytes))
        return VERDICT_DROP;
    __builtin_memcpy(rst, was, sizeof(rst));
    rst[1] = bpf_htonl(expected);
    ((__u8 *)rst)[13] = TCP_RST;
#pragma unroll
    for (__u32 i = 5; i < TCP_HEADER_BYTES_MAX / 4; i++)
        if (i * 4 < bytes)
            rst[i] = 0x01010101 * OPTION_NOP;
    __s64 difference = bpf_csum_diff(was, sizeof(was), rst, sizeof(rst), 0);
    if (difference < 0 || bpf_skb_store_bytes(skb, at, rst, bytes, 0) ||
        bpf_l4_csum_replace(skb, at + __builtin_offsetof(struct tcphdr, check), 0, difference, 0))
        return VERDICT_DROP;
    bpf_clone_redirect(skb, skb->ifindex, BPF_F_INGRESS);
    if (bpf_skb_store_bytes(skb, at, was, bytes, 0))
        return VERDICT_DROP;
    count(COUNT_STALE_KILLED);
    return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Whether a packet with a valid cookie begins another connection than that of the socket. Known exactly while the
 * connection is in the table; else decided as in RFC 6191. */
static __always_inline int begins_new_connection(struct __sk_buff *skb, const struct packet *p, const struct conn *conn,
                                          __u32 expected, int newer_timestamp) {
    if (is_older_first_segment(skb, p, conn))
        return 0;
    if (conn && conn->flags & CONN_KILLING)
        return conn->first_seq != p->seq || conn->kills < KILLS_MAX;
    if (conn && conn->flags & CONN_COOKIE)
        return conn->first_seq != p->seq;
    return (__s32)(p->seq - expected) > 0 || newer_timestamp;
}
