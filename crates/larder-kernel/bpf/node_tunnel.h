/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Removes the outer headers of packets that a switch in another network has sent: IP in IP (RFC 2003, RFC 2473),
 * generic UDP encapsulation (draft-ietf-intarea-gue-09, variants 0 and 1) and VXLAN (RFC 7348). The kernel's tunnel
 * devices are not needed. Outer headers with options, extensions or fragments are left to the stack. */
#pragma once
#include "node_maps.h"
#include "packet.h"
#include <linux/udp.h>

enum decap_result { DECAP_NONE, DECAP_DONE, DECAP_BAD };

/* Finds the tunnel of an outer header. Sets *at to the offset after it. */
static __always_inline struct tunnel *tunnel_find(struct __sk_buff *skb, struct tunnel_key *key, __u32 *at) {
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    struct ethhdr *eth = data;
    if ((void *)(eth + 1) > end)
        return 0;
    struct udphdr *udp;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->protocol == IPPROTO_TCP || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
            return 0;
        key->protocol = ip->protocol;
        map_v4(key->local, ip->daddr);
        map_v4(key->remote, ip->saddr);
        udp = (void *)(ip + 1);
        *at = L4_AT_V4;
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->nexthdr == IPPROTO_TCP)
            return 0;
        key->protocol = ip->nexthdr;
        __builtin_memcpy(key->local, &ip->daddr, 16);
        __builtin_memcpy(key->remote, &ip->saddr, 16);
        udp = (void *)(ip + 1);
        *at = L4_AT_V6;
    } else {
        return 0;
    }
    if (key->protocol == IPPROTO_UDP) {
        if ((void *)(udp + 1) > end)
            return 0;
        key->port_be = udp->dest;
        *at += sizeof(*udp);
    } else if (key->protocol != IPPROTO_IPIP && key->protocol != IPPROTO_IPV6) {
        return 0;
    }
    struct tunnel *tunnel = bpf_map_lookup_elem(&tunnels, key);
    if (tunnel)
        return tunnel;
    __builtin_memset(key->remote, 0, 16);
    return bpf_map_lookup_elem(&tunnels, key);
}

/* Returns the protocol of the inner packet in host order, or 0 if it is not IP. Sets *at to its offset. */
static __always_inline __u16 tunnel_inner(struct __sk_buff *skb, const struct tunnel *tunnel, __u8 protocol,
                                            __u32 *at) {
    __u8 head[8];
    if (tunnel->kind == LINK_IPIP)
        return protocol == IPPROTO_IPIP ? ETH_P_IP : protocol == IPPROTO_IPV6 ? ETH_P_IPV6 : 0;
    if (protocol != IPPROTO_UDP || bpf_skb_load_bytes(skb, *at, head, 8))
        return 0;
    if (tunnel->kind == LINK_GUE) {
        if (head[0] >> 6 == 1) /* variant 1: the inner packet, whose version tells its protocol */
            return head[0] >> 4 == 4 ? ETH_P_IP : head[0] >> 4 == 6 ? ETH_P_IPV6 : 0;
        if (head[0] & 0xe0) /* another variant, or a control message */
            return 0;
        *at += 4 + (head[0] & 0x1f) * 4;
        return head[1] == IPPROTO_IPIP ? ETH_P_IP : head[1] == IPPROTO_IPV6 ? ETH_P_IPV6 : 0;
    }
    if (tunnel->kind != LINK_VXLAN || !(head[0] & 0x08))
        return 0;
    if (((__u32)head[4] << 16 | (__u32)head[5] << 8 | head[6]) != tunnel->vni)
        return 0;
    __be16 inner;
    if (bpf_skb_load_bytes(skb, *at + 8 + 12, &inner, 2))
        return 0;
    *at += 8 + sizeof(struct ethhdr);
    return inner == bpf_htons(ETH_P_IP) ? ETH_P_IP : inner == bpf_htons(ETH_P_IPV6) ? ETH_P_IPV6 : 0;
}

/* Whether an inner packet is a router's message that a packet of one of our services was too big (RFC 1191, RFC 8201).
 * Without it, a connection over a path with a smaller MTU would stall. The stack verifies it. */
static __noinline int is_too_big_of_service(struct __sk_buff *skb) {
    __u8 address[16];
    __be16 port_be;
    __u32 icmp_at = skb->protocol == bpf_htons(ETH_P_IP) ? L4_AT_V4 : L4_AT_V6, quoted_at = icmp_at + 8;
    __u8 about[2], protocol;
    __be32 v4;
    if (bpf_skb_load_bytes(skb, icmp_at, about, 2))
        return 0;
    if (icmp_at == L4_AT_V4) {
        if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + 9, &protocol, 1) || protocol != IPPROTO_ICMP ||
            about[0] != 3 || about[1] != 4 || bpf_skb_load_bytes(skb, quoted_at + 12, &v4, 4) ||
            bpf_skb_load_bytes(skb, quoted_at + sizeof(struct iphdr), &port_be, 2))
            return 0;
        map_v4(address, v4);
    } else {
        if (bpf_skb_load_bytes(skb, sizeof(struct ethhdr) + 6, &protocol, 1) || protocol != IPPROTO_ICMPV6 ||
            about[0] != 2 || bpf_skb_load_bytes(skb, quoted_at + 8, address, 16) ||
            bpf_skb_load_bytes(skb, quoted_at + sizeof(struct ipv6hdr), &port_be, 2))
            return 0;
    }
    return find_service(address, port_be) != 0;
}

/* Removes the outer headers, but keeps the outer Ethernet header, whose destination is this host. */
GLOBAL_FUNC int tunnel_decap(struct __sk_buff *skb) {
    struct tunnel_key key = {};
    __u32 at = 0;
    struct tunnel *tunnel = tunnel_find(skb, &key, &at);
    if (!tunnel)
        return DECAP_NONE;
    __u16 inner = tunnel_inner(skb, tunnel, key.protocol, &at);
    if (!inner)
        return DECAP_BAD;
    __s32 outer_bytes = at - sizeof(struct ethhdr);
    if (bpf_skb_adjust_room(skb, -outer_bytes, BPF_ADJ_ROOM_MAC, inner == ETH_P_IP ? DECAP_L3_IPV4 : DECAP_L3_IPV6))
        return DECAP_BAD;
    __be16 inner_be = bpf_htons(inner);
    if (bpf_skb_store_bytes(skb, 12, &inner_be, 2, 0))
        return DECAP_BAD;
    count(COUNT_DECAPSULATED);
    return DECAP_DONE;
}
