/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Parses a TCP packet over IPv4 (no options, no fragments) or IPv6 (no extension headers) in an Ethernet frame. All
 * other packets are left to the stack. */
#pragma once
#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* A BPF global function: the verifier checks it once and separately, not with each call. Its arguments can have any
 * value of their type, so it checks its pointers. This shortens the loading of the programs considerably. */
#define GLOBAL_FUNC __attribute__((noinline))

#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_PSH 0x08
#define TCP_ACK 0x10

#define L4_AT_V4 (sizeof(struct ethhdr) + sizeof(struct iphdr))
#define L4_AT_V6 (sizeof(struct ethhdr) + sizeof(struct ipv6hdr))

enum parse_result { PARSED_TCP, PARSED_OTHER, PARSED_BAD };

struct packet {
    __u8 client[16]; /* source, IPv4 mapped */
    __u8 server[16]; /* destination */
    __be16 client_port_be;
    __be16 server_port_be;
    __u32 seq; /* host order */
    __u32 ack;
    __u32 payload_bytes;
    __u16 window_be;
    __u8 flags;
    __u8 header_bytes; /* of TCP, options included: 20 to 60 */
    __u8 ipv6;
};

static __always_inline void map_v4(__u8 out[16], __be32 address) {
    __builtin_memset(out, 0, 10);
    out[10] = out[11] = 0xff;
    __builtin_memcpy(out + 12, &address, 4);
}

/* Offset of the TCP header in the frame. */
static __always_inline __u32 l4_at(const struct packet *p) {
    return p->ipv6 ? L4_AT_V6 : L4_AT_V4;
}

static __always_inline enum parse_result packet_parse(void *data, void *end, struct packet *p) {
    struct ethhdr *eth = data;
    if ((void *)(eth + 1) > end)
        return PARSED_OTHER;
    struct tcphdr *tcp;
    __u32 l3_bytes; /* TCP header and payload, as the IP header says */
    if (eth->h_proto == bpf_htons(ETH_P_IP)) {
        struct iphdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->protocol != IPPROTO_TCP || ip->ihl != 5 || ip->frag_off & bpf_htons(0x3fff))
            return PARSED_OTHER;
        tcp = (void *)(ip + 1);
        if ((void *)(tcp + 1) > end)
            return PARSED_OTHER;
        p->ipv6 = 0;
        map_v4(p->client, ip->saddr);
        map_v4(p->server, ip->daddr);
        l3_bytes = bpf_ntohs(ip->tot_len) - sizeof(*ip);
    } else if (eth->h_proto == bpf_htons(ETH_P_IPV6)) {
        struct ipv6hdr *ip = (void *)(eth + 1);
        if ((void *)(ip + 1) > end || ip->nexthdr != IPPROTO_TCP)
            return PARSED_OTHER;
        tcp = (void *)(ip + 1);
        if ((void *)(tcp + 1) > end)
            return PARSED_OTHER;
        p->ipv6 = 1;
        __builtin_memcpy(p->client, &ip->saddr, 16);
        __builtin_memcpy(p->server, &ip->daddr, 16);
        l3_bytes = bpf_ntohs(ip->payload_len);
    } else {
        return PARSED_OTHER;
    }
    p->client_port_be = tcp->source;
    p->server_port_be = tcp->dest;
    p->seq = bpf_ntohl(tcp->seq);
    p->ack = bpf_ntohl(tcp->ack_seq);
    p->window_be = tcp->window;
    p->flags = ((__u8 *)tcp)[13];
    p->header_bytes = tcp->doff * 4;
    if (p->header_bytes < sizeof(*tcp) || l3_bytes < p->header_bytes || l3_bytes > 0xffff)
        return PARSED_BAD;
    p->payload_bytes = l3_bytes - p->header_bytes;
    return PARSED_TCP;
}

/* Folds a sum to 16 bits and returns its complement. */
static __always_inline __u16 csum_fold(__u64 sum) {
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return ~sum;
}
