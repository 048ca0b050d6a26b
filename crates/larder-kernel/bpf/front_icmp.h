/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* "Packet too big" from a router on the path to a client (RFC 792 type 3 code 4, RFC 1191; RFC 4443 section 3.2). It
 * refers to a packet that a node has sent with the service's address as source, so it arrives here. The node needs it
 * to send smaller packets (RFC 8899 section 1.1 describes the consequences without it). Other ICMP messages end
 * here. */
#pragma once
#include "front_forward.h"

/* linux/icmp.h and linux/icmpv6.h include headers of the C library. */
struct icmp_too_big {
    __u8 type;
    __u8 code;
    __be16 check;
    __be32 mtu;
};

/* Reads addresses and ports of the quoted packet. The client is its destination. */
INLINE int icmp_quoted(void *data, void *end, struct packet *p) {
    struct ethhdr *eth = data;
    __be16 *ports;
    if ((void *)(eth + 1) > end)
        return 0;
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        struct icmp_too_big *icmp = (void *)(ip + 1);
        struct iphdr *quoted = (void *)(icmp + 1);
        if ((void *)(quoted + 1) > end || ip->protocol != IPPROTO_ICMP || ip->ihl != 5 ||
            ip->frag_off & bpf_htons(0x3fff) || icmp->type != 3 || icmp->code != 4 ||
            quoted->protocol != IPPROTO_TCP || quoted->ihl != 5 || quoted->saddr != ip->daddr)
            return 0;
        map_v4(p->client, quoted->daddr);
        map_v4(p->server, quoted->saddr);
        p->ipv6 = 0;
        p->payload_bytes = bpf_ntohs(ip->tot_len) - sizeof(*ip);
        ports = (void *)(quoted + 1);
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        struct icmp_too_big *icmp = (void *)(ip + 1);
        struct ipv6hdr *quoted = (void *)(icmp + 1);
        if ((void *)(quoted + 1) > end || ip->nexthdr != IPPROTO_ICMPV6 || icmp->type != 2 ||
            quoted->nexthdr != IPPROTO_TCP)
            return 0;
        __builtin_memcpy(p->client, &quoted->daddr, 16);
        __builtin_memcpy(p->server, &quoted->saddr, 16);
        p->ipv6 = 1;
        p->payload_bytes = bpf_ntohs(ip->payload_len);
        ports = (void *)(quoted + 1);
    } else {
        return 0;
    }
    if ((void *)(ports + 2) > end)
        return 0;
    p->server_port_be = ports[0];
    p->client_port_be = ports[1];
    p->header_bytes = 0; /* everything after the IP header counts as payload */
    return 1;
}
