/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Uncommon packets: TCP packets of handed-off connections that packet_parse() cannot read, because they have IPv4
 * options, IPv6 extension headers, or are fragments. On the same layer 2 they are forwarded without being noted, and
 * the node's stack reads them. A packet that opens or ends a connection must be seen by the programs, and the other end
 * of a tunnel accepts only common packets: such packets are dropped and counted, and the client retransmits what is
 * lost. Packets of no connection, and of connections that stay on this host, go to the stack. */
#pragma once
#include "front_forward.h"

#define FRAGMENTS_MAX 1024
#define FRAGMENT_NS 30000000000ULL /* how long a host keeps fragments (RFC 791) */
#define EXTENSIONS_MAX 4
#define IP_MORE_OR_OFFSET 0x3fff
#define IP_FRAGMENT_OFFSET 0x1fff

/* Key of a fragmented packet. */
struct fragment_key {
    __u8 client[16];
    __u8 server[16];
    __u32 id;
};

struct fragment {
    __u64 since_ns;
    __u32 node; /* destination of its fragments; NO_NODE: the first fragment has not come yet */
    __u32 zero;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, FRAGMENTS_MAX);
    __type(key, struct fragment_key);
    __type(value, struct fragment);
} fragments SEC(".maps");

struct uncommon {
    __u32 l4;       /* offset of the TCP header or of the fragment's data in the frame */
    __u32 id;       /* of the fragmented packet */
    __u8 fragment;  /* 1 if it is a fragment */
    __u8 first;     /* 1 if it has the TCP header */
    __u8 zero[2];
};

INLINE int uncommon_v4(const struct ethhdr *eth, void *end, struct packet *p, struct uncommon *u) {
    const struct iphdr *ip = (void *)(eth + 1);
    if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl < 5 ||
        bpf_ntohs(ip->tot_len) < ip->ihl * 4)
        return 0;
    map_v4(p->client, ip->saddr);
    map_v4(p->server, ip->daddr);
    p->payload_bytes = bpf_ntohs(ip->tot_len) - sizeof(*ip);
    u->l4 = ETH_HLEN + ip->ihl * 4;
    u->id = ip->id;
    u->fragment = ip->frag_off & bpf_htons(IP_MORE_OR_OFFSET) ? 1 : 0;
    u->first = ip->frag_off & bpf_htons(IP_FRAGMENT_OFFSET) ? 0 : 1;
    return 1;
}

/* Follows the extension headers (RFC 8200 section 4) to the TCP header. */
INLINE int uncommon_v6(void *ctx, int xdp, const struct ethhdr *eth, void *end, struct packet *p, struct uncommon *u) {
    const struct ipv6hdr *ip = (void *)(eth + 1);
    if ((void *)(ip + 1) > end)
        return 0;
    __u8 next = ip->nexthdr, header[8];
    __builtin_memcpy(p->client, &ip->saddr, 16);
    __builtin_memcpy(p->server, &ip->daddr, 16);
    p->ipv6 = 1;
    p->payload_bytes = bpf_ntohs(ip->payload_len);
    u->l4 = L4_AT_V6;
    u->first = 1;
#pragma unroll
    for (int i = 0; i < EXTENSIONS_MAX; i++) {
        if (next == IPPROTO_TCP || !u->first)
            break;
        if (next != IPPROTO_HOPOPTS && next != IPPROTO_ROUTING && next != IPPROTO_DSTOPTS && next != IPPROTO_FRAGMENT)
            return 0;
        if (frame_load(ctx, xdp, u->l4, header, sizeof(header)))
            return 0;
        if (next == IPPROTO_FRAGMENT) {
            u->fragment = 1;
            u->first = header[2] || header[3] & 0xf8 ? 0 : 1;
            __builtin_memcpy(&u->id, header + 4, 4);
            u->l4 += sizeof(header);
        } else {
            u->l4 += 8 + header[1] * 8;
        }
        next = header[0];
    }
    return next == IPPROTO_TCP;
}

/* Returns 1 if the frame is an uncommon TCP packet. */
INLINE int uncommon_read(void *ctx, int xdp, struct packet *p, struct uncommon *u) {
    void *end = frame_end(ctx, xdp);
    struct ethhdr *eth = frame_start(ctx, xdp);
    if ((void *)(eth + 1) > end)
        return 0;
    if (eth->h_proto == bpf_htons(ETH_P_IP) ? !uncommon_v4(eth, end, p, u)
                                            : eth->h_proto != bpf_htons(ETH_P_IPV6) ||
                                                  !uncommon_v6(ctx, xdp, eth, end, p, u))
        return 0;
    return frame_holds(ctx, xdp, l4_at(p) + p->payload_bytes);
}

INLINE void fragment_key_of(const struct packet *p, const struct uncommon *u, struct fragment_key *key) {
    __builtin_memcpy(key->client, p->client, 16);
    __builtin_memcpy(key->server, p->server, 16);
    key->id = u->id;
}

/* Notes where the further fragments of a packet go. One that came before the first has gone to the stack. */
INLINE void fragment_note(const struct packet *p, const struct uncommon *u, __u16 node) {
    struct fragment_key key;
    __u64 now = bpf_ktime_get_ns();
    struct fragment fresh = {.since_ns = now, .node = node};
    fragment_key_of(p, u, &key);
    struct fragment *before = bpf_map_lookup_elem(&fragments, &key);
    if (before && before->node == NO_NODE && now - before->since_ns < FRAGMENT_NS && node != NO_NODE)
        count(COUNT_UNCOMMON_LOST);
    bpf_map_update_elem(&fragments, &key, &fresh, BPF_ANY);
}

/* Handles a fragment without the TCP header. */
INLINE int handle_later_fragment(void *ctx, int xdp, const struct packet *p, const struct uncommon *u) {
    struct fragment_key key;
    fragment_key_of(p, u, &key);
    struct fragment *known = bpf_map_lookup_elem(&fragments, &key);
    if (!known || bpf_ktime_get_ns() - known->since_ns >= FRAGMENT_NS) {
        fragment_note(p, u, NO_NODE);
        return pass(xdp);
    }
    if (known->node >= NODES_MAX)
        return pass(xdp);
    count(COUNT_UNCOMMON);
    return forward(ctx, xdp, p, known->node);
}

INLINE int drop_uncommon(int xdp) {
    count(COUNT_UNCOMMON_LOST);
    return drop(xdp);
}
