/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Forwards a packet to a node. On the same layer 2, the Ethernet addresses are rewritten and the hop limit is
 * decremented, as in a router (ipvs direct routing does the same): a node that sends packets back then cannot cause an
 * endless loop. Across networks, the packet goes unchanged behind an outer header, which has its own hop limit. */
#pragma once
#include <linux/udp.h>
#include "front_io.h"

/* Returns 0 if the hop limit is used up. */
INLINE int decrement_hop_limit(struct ethhdr *eth, void *end, const struct packet *p) {
    if (p->ipv6) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->hop_limit <= 1)
            return 0;
        ip->hop_limit--;
    } else {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->ttl <= 1)
            return 0;
        /* RFC 1624: the sum changes by one in the high byte of its word. */
        __u32 sum = ip->check + bpf_htons(0x0100);
        ip->check = sum + (sum >= 0xffff);
        ip->ttl--;
    }
    return 1;
}

/* Source port of the outer UDP header, constant per connection: receivers spread load by it (RFC 7348 section 5). */
INLINE __be16 outer_port_be(const struct packet *p) {
    __u64 a, b;
    __builtin_memcpy(&a, p->client, 8);
    __builtin_memcpy(&b, p->client + 8, 8);
    __u64 mixed = (a ^ b ^ (__u64)p->client_port_be << 48) * 0x9e3779b97f4a7c15ULL;
    return bpf_htons(0xc000 | (mixed >> 50));
}

INLINE long make_room(void *ctx, int xdp, const struct node_link *link, __u32 room) {
    if (xdp)
        return bpf_xdp_adjust_head(ctx, -(int)room);
    __u64 flags = link->outer_ipv6 ? BPF_F_ADJ_ROOM_ENCAP_L3_IPV6 : BPF_F_ADJ_ROOM_ENCAP_L3_IPV4;
    if (link->kind != LINK_IPIP)
        flags |= BPF_F_ADJ_ROOM_ENCAP_L4_UDP;
    if (link->kind == LINK_VXLAN)
        flags |= BPF_F_ADJ_ROOM_ENCAP_L2(ETH_HLEN) | BPF_F_ADJ_ROOM_ENCAP_L2_ETH;
    return bpf_skb_adjust_room(ctx, room, BPF_ADJ_ROOM_MAC, flags);
}

INLINE int outer_udp(struct udphdr *udp, void *end, const struct packet *p, __u32 bytes) {
    if ((void *)(udp + 1) > end)
        return 0;
    udp->source = outer_port_be(p);
    udp->len = bpf_htons(bytes);
    return 1;
}

/* Fills in lengths, checksum and source port of the outer headers. `bytes` is the length after the outer Ethernet
 * header. */
INLINE int finish_outer_headers(void *ctx, int xdp, const struct node_link *link, const struct packet *p, __u32 bytes) {
    void *end = frame_end(ctx, xdp), *l4;
    struct ethhdr *eth = frame_start(ctx, xdp);
    __u32 l3;
    if (link->outer_ipv6) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end)
            return 0;
        l3 = sizeof(*ip);
        ip->payload_len = bpf_htons(bytes - l3);
        if (link->kind == LINK_IPIP)
            ip->nexthdr = p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
        l4 = ip + 1;
    } else {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end)
            return 0;
        l3 = sizeof(*ip);
        ip->tot_len = bpf_htons(bytes);
        if (link->kind == LINK_IPIP)
            ip->protocol = p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
        ip->check = 0;
        ip->check = csum_fold((__u32)bpf_csum_diff(0, 0, (__be32 *)ip, sizeof(*ip), 0));
        l4 = ip + 1;
    }
    if (link->kind == LINK_IPIP)
        return 1;
    if (link->kind == LINK_GUE) {
        /* The byte after flags and header length is the inner protocol (draft-ietf-intarea-gue section 3.1). */
        __u8 *gue = l4 + sizeof(struct udphdr);
        if ((void *)(gue + 4) > end)
            return 0;
        gue[1] = p->ipv6 ? IPPROTO_IPV6 : IPPROTO_IPIP;
    }
    return outer_udp(l4, end, p, bytes - l3);
}

/* Prepends the outer headers. */
INLINE int encapsulate(void *ctx, int xdp, const struct packet *p, const struct node_link *link) {
    __u32 header = link->header_bytes, vxlan = link->kind == LINK_VXLAN;
    __u32 inner = l4_at(p) + p->header_bytes + p->payload_bytes - ETH_HLEN;
    if (header < ETH_HLEN + sizeof(struct iphdr) || header > ENCAP_BYTES_MAX)
        return 0;
    if (make_room(ctx, xdp, link, vxlan ? header : header - ETH_HLEN))
        return 0;
    if (frame_store(ctx, xdp, 0, (void *)link->header, clamp(header, ENCAP_BYTES_MAX)))
        return 0;
    if (vxlan) {
        struct ethhdr eth;
        __builtin_memcpy(eth.h_dest, link->mac, ETH_ALEN);
        __builtin_memcpy(eth.h_source, link->source_mac, ETH_ALEN);
        eth.h_proto = p->ipv6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);
        if (frame_store(ctx, xdp, header, &eth, sizeof(eth)))
            return 0;
        inner += sizeof(eth);
    }
    return finish_outer_headers(ctx, xdp, link, p, header - ETH_HLEN + inner);
}

INLINE int forward(void *ctx, int xdp, const struct packet *p, __u16 node) {
    __u32 slot = node;
    struct node_link *link = bpf_map_lookup_elem(&links, &slot);
    if (!link || link->kind == LINK_NONE) {
        count(COUNT_NO_LINK);
        return drop(xdp);
    }
    if (link->kind == LINK_L2) {
        void *end = frame_end(ctx, xdp);
        struct ethhdr *eth = frame_start(ctx, xdp);
        if ((void *)(eth + 1) > end || !decrement_hop_limit(eth, end, p)) {
            count(COUNT_MALFORMED);
            return drop(xdp);
        }
        __builtin_memcpy(eth->h_dest, link->mac, ETH_ALEN);
        __builtin_memcpy(eth->h_source, link->source_mac, ETH_ALEN);
    } else if (!encapsulate(ctx, xdp, p, link)) {
        count(COUNT_NO_LINK);
        return drop(xdp);
    }
    count(COUNT_FORWARDED);
    return send_by(ctx, xdp, link->ifindex);
}
