/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Replies to a client that reuse the received packet: the SYN-ACK with a cookie, and the RST. A reply is never longer
 * than the received packet. So no driver needs to provide room, and a forged source address gives no amplification. */
#pragma once
#include "front_options.h"

struct reply {
    struct tcphdr tcp;
    __u32 options[8]; /* five used */
};

/* Sum over the pseudo header. It does not depend on the direction. */
INLINE __u64 pseudo_sum(const struct packet *p, __u32 tcp_bytes) {
    __u64 sum = bpf_htons(IPPROTO_TCP) + bpf_htons(tcp_bytes);
    if (p->ipv6) {
        sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)p->client, 16, 0);
        sum += (__u32)bpf_csum_diff(0, 0, (__be32 *)p->server, 16, 0);
    } else {
        __u32 client, server;
        __builtin_memcpy(&client, p->client + 12, 4);
        __builtin_memcpy(&server, p->server + 12, 4);
        sum += client;
        sum += server;
    }
    return sum;
}

/* Returns 1 if the packet's checksum is still partial: the field then holds the sum of the pseudo header
 * (CHECKSUM_PARTIAL of linux/skbuff.h), and the kernel completes it when it sends. A reply in the same buffer must
 * leave it partial too. One in 65536 complete checksums looks partial; that reply is lost, and the client asks
 * again. */
INLINE int checksum_is_partial(const struct packet *p, __u16 check) {
    return config.checksums_partial && check == (__u16)~csum_fold(pseudo_sum(p, p->header_bytes + p->payload_bytes));
}

INLINE void swap_mac(struct ethhdr *eth) {
    __u8 mac[ETH_ALEN];
    __builtin_memcpy(mac, eth->h_source, ETH_ALEN);
    __builtin_memcpy(eth->h_source, eth->h_dest, ETH_ALEN);
    __builtin_memcpy(eth->h_dest, mac, ETH_ALEN);
}

/* Writes the IP header from the server to the client. Returns 0 if the frame is too short. */
INLINE int reply_ip(void *ctx, int xdp, const struct packet *p, __u32 tcp_bytes) {
    void *end = frame_end(ctx, xdp);
    struct ethhdr *eth = frame_start(ctx, xdp);
    if ((void *)(eth + 1) > end)
        return 0;
    if (p->ipv6) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end)
            return 0;
        *(__be32 *)ip = bpf_htonl(6u << 28);
        ip->payload_len = bpf_htons(tcp_bytes);
        ip->hop_limit = 64;
        __builtin_memcpy(&ip->saddr, p->server, 16);
        __builtin_memcpy(&ip->daddr, p->client, 16);
    } else {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end)
            return 0;
        ip->tos = 0;
        ip->tot_len = bpf_htons(sizeof(*ip) + tcp_bytes);
        ip->id = 0; /* RFC 6864: unused in an atomic datagram */
        ip->frag_off = bpf_htons(0x4000);
        ip->ttl = 64;
        __builtin_memcpy(&ip->saddr, p->server + 12, 4);
        __builtin_memcpy(&ip->daddr, p->client + 12, 4);
        ip->check = 0;
        ip->check = csum_fold((__u32)bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
    }
    swap_mac(eth);
    return 1;
}

/* Turns the packet into the reply and sends it back. `r` holds flags, numbers and options. `tcp_bytes` is 20 to 40. */
INLINE int reply_send(void *ctx, int xdp, const struct packet *p, struct reply *r, __u32 tcp_bytes) {
    __u32 have = frame_bytes(ctx, xdp), want = l4_at(p) + tcp_bytes;
    __u16 check = 0;
    if (config.checksums_partial && frame_load(ctx, xdp, l4_at(p) + 16, &check, sizeof(check)))
        return drop(xdp);
    int partial = checksum_is_partial(p, check);
    if (want < ETH_ZLEN)
        want = have < ETH_ZLEN ? have : ETH_ZLEN; /* keep the padding of short frames */
    if (want > have || want < l4_at(p) + tcp_bytes) {
        count(COUNT_MALFORMED);
        return drop(xdp);
    }
    if (want < have && (xdp ? bpf_xdp_adjust_tail(ctx, (int)want - (int)have) : bpf_skb_change_tail(ctx, want, 0)))
        return drop(xdp);
    if (!reply_ip(ctx, xdp, p, tcp_bytes))
        return drop(xdp);
    r->tcp.source = p->server_port_be;
    r->tcp.dest = p->client_port_be;
    r->tcp.doff = tcp_bytes / 4;
    __u64 sum = pseudo_sum(p, tcp_bytes);
    if (partial)
        r->tcp.check = ~csum_fold(sum);
    else
        r->tcp.check = csum_fold(sum + (__u32)bpf_csum_diff(0, 0, (__be32 *)r, 40, 0));
    if (frame_store(ctx, xdp, l4_at(p), r, clamp(tcp_bytes, 40)))
        return drop(xdp);
    return send_back(ctx, xdp);
}

/* Writes the options of a SYN-ACK, a subset of the SYN's: MSS; SACK permitted and timestamps, or one of them; window
 * scale. Returns their length, which is at most that of the SYN's options.
 *
 * The timestamp `echo` is the second part of the cookie (cookie.h). Its top byte is 0; a node puts its tag there when
 * it accepts the connection. The next bit is 0 too, so that the tag stays valid for 2^23 ms = 2.3 h while the node's
 * clock counts on. */
INLINE __u32 syn_ack_options(const struct options *o, __u16 mss, __u32 echo, __u32 *words) {
    __u32 used = 0, others = (o->timestamps ? 3 : o->sack ? 1 : 0) + (o->wscale != COOKIE_NO_WSCALE);
    if (o->has_mss || (others + 1) * 4 <= o->length)
        words[used++ & 7] = bpf_htonl(0x02040000 | mss);
    if (o->timestamps) {
        words[used++ & 7] = bpf_htonl(o->sack ? 0x0402080a : 0x0101080a);
        words[used++ & 7] = bpf_htonl(echo);
        words[used++ & 7] = o->tsval_be;
    } else if (o->sack) {
        words[used++ & 7] = bpf_htonl(0x01010402);
    }
    if (o->wscale != COOKIE_NO_WSCALE)
        words[used++ & 7] = bpf_htonl(0x01030300 | COOKIE_WSCALE);
    return used * 4;
}
