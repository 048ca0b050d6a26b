/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* A bad link, at tc egress of an interface: loses, duplicates and delays packets by what `shapes` says for it. A packet
 * that is to come later is taken off, copied into a ring with the time it is due, and sent again by user space, marked,
 * so that it is not treated twice. What befalls the k-th packet of a flow depends only on seed, addresses and k.
 *
 * Delay in the kernel needs a qdisc that heeds skb->tstamp (fq, etf) or netem; few kernels are built without all of
 * them, but ours has to work there too. */
#include <linux/pkt_cls.h>
#include "packet.h"

#define INTERFACES_MAX 256
#define FLOWS_MAX 65536
#define RING_BYTES (32 << 20)
/* Lengths of a delayed frame: most are short, and each takes its room whole. */
#define SHORT_BYTES 1600
#define LONG_BYTES 9216
/* Of packets that have been treated: "shap". */
#define TREATED 0x73686170

/* What happens to packets that leave by an interface. Mirrored in src/lib.rs. */
struct shape {
    __u64 seed;
    __u64 delay_ns;     /* of every packet */
    __u64 jitter_ns;    /* on top, 0 to this */
    __u64 reorder_ns;   /* on top, for some */
    __u32 loss_ppm;
    __u32 duplicate_ppm;
    __u32 reorder_ppm;
    __u32 drop_nth;     /* this packet of each TCP flow is lost, counted from 1; 0: none */
};
_Static_assert(sizeof(struct shape) == 48, "shape");

enum count { SEEN, LOST, NTH_LOST, DUPLICATED, DELAYED, TOO_LONG, RING_FULL, COUNTS };

/* Before a delayed frame. */
struct delayed {
    __u64 due_ns; /* CLOCK_MONOTONIC */
    __u32 ifindex;
    __u32 bytes;
};

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, INTERFACES_MAX);
    __type(key, __u32);
    __type(value, struct shape);
} shapes SEC(".maps");

/* Packets seen of a flow, by the hash of its addresses and interface. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, FLOWS_MAX);
    __type(key, __u64);
    __type(value, __u64);
} seen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, COUNTS);
    __type(key, __u32);
    __type(value, __u64);
} counts SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, RING_BYTES);
} delayed SEC(".maps");

static __always_inline void count(__u32 which) {
    __u64 *n = bpf_map_lookup_elem(&counts, &which);
    if (n)
        __sync_fetch_and_add(n, 1);
}

/* SplitMix64's output function (Steele, Lea, Flood, OOPSLA 2014). */
static __always_inline __u64 mix(__u64 x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
}

static __always_inline __u64 next(__u64 *state) {
    *state += 0x9e3779b97f4a7c15ULL;
    return mix(*state);
}

static __always_inline int happens(__u64 *state, __u32 ppm) {
    return (next(state) >> 32) % 1000000 < ppm;
}

static __always_inline __u64 flow_hash(const struct packet *p, __u32 ifindex) {
    __u64 words[4];
    __builtin_memcpy(words, p->client, 16);
    __builtin_memcpy(words + 2, p->server, 16);
    __u64 h = mix((__u64)p->client_port_be << 48 | (__u64)p->server_port_be << 32 | ifindex);
    for (int i = 0; i < 4; i++)
        h = mix(h ^ words[i]);
    return h;
}

/* What is not TCP, tunnels above all, is a flow by its hosts and protocol. */
static __always_inline void read_addresses(void *data, void *end, struct packet *p) {
    struct iphdr *v4 = data + sizeof(struct ethhdr);
    struct ipv6hdr *v6 = data + sizeof(struct ethhdr);
    __builtin_memset(p, 0, sizeof(*p));
    if ((void *)(v4 + 1) > end)
        return;
    if (v4->version == 4) {
        map_v4(p->client, v4->saddr);
        map_v4(p->server, v4->daddr);
        p->client_port_be = v4->protocol;
    } else if ((void *)(v6 + 1) <= end) {
        __builtin_memcpy(p->client, &v6->saddr, 16);
        __builtin_memcpy(p->server, &v6->daddr, 16);
        p->client_port_be = v6->nexthdr;
    }
}

/* Which packet of its flow this is, from 1; 0 if the table is at its limit. */
static __always_inline __u32 number(__u64 flow) {
    __u64 *packets = bpf_map_lookup_elem(&seen, &flow);
    if (!packets) {
        __u64 none = 0;
        bpf_map_update_elem(&seen, &flow, &none, BPF_NOEXIST);
        packets = bpf_map_lookup_elem(&seen, &flow);
        if (!packets)
            return 0;
    }
    return __sync_fetch_and_add(packets, 1) + 1;
}

/* Copies the frame into a slot of `room` bytes. 0 if there was none. */
static __always_inline int put_off(struct __sk_buff *skb, __u64 due_ns, const __u32 room) {
    struct delayed *slot = bpf_ringbuf_reserve(&delayed, sizeof(*slot) + room, 0);
    if (!slot)
        return 0;
    /* A frame is never empty. The verifier must see both bounds on the very register that is passed. */
    __u64 beyond_first = (__u32)(skb->len - 1);
    asm volatile("" : "+r"(beyond_first));
    if (beyond_first >= room || bpf_skb_load_bytes(skb, 0, slot + 1, beyond_first + 1)) {
        bpf_ringbuf_discard(slot, 0);
        return 0;
    }
    slot->due_ns = due_ns;
    slot->ifindex = skb->ifindex;
    slot->bytes = beyond_first + 1;
    bpf_ringbuf_submit(slot, 0);
    return 1;
}

static __always_inline int delay(struct __sk_buff *skb, __u64 by_ns) {
    if (skb->len > LONG_BYTES || skb->gso_size) {
        count(TOO_LONG);
        return TC_ACT_OK;
    }
    __u64 due_ns = bpf_ktime_get_ns() + by_ns;
    int put = skb->len <= SHORT_BYTES ? put_off(skb, due_ns, SHORT_BYTES) : put_off(skb, due_ns, LONG_BYTES);
    count(put ? DELAYED : RING_FULL);
    return TC_ACT_SHOT;
}

SEC("tc") int shape(struct __sk_buff *skb) {
    if (skb->mark == TREATED) {
        skb->mark = 0;
        return TC_ACT_OK;
    }
    __u32 ifindex = skb->ifindex;
    struct shape *shape = bpf_map_lookup_elem(&shapes, &ifindex);
    if (!shape)
        return TC_ACT_OK;
    if (skb->protocol != bpf_htons(ETH_P_IP) && skb->protocol != bpf_htons(ETH_P_IPV6))
        return TC_ACT_OK;
    struct packet packet = {};
    bpf_skb_pull_data(skb, L4_AT_V6 + sizeof(struct tcphdr));
    void *data = (void *)(long)skb->data, *end = (void *)(long)skb->data_end;
    int is_tcp = packet_parse(data, end, &packet) == PARSED_TCP;
    if (!is_tcp)
        read_addresses(data, end, &packet);
    __u64 flow = flow_hash(&packet, ifindex);
    __u32 nth = number(flow);
    if (!nth)
        return TC_ACT_OK;
    __u64 random = shape->seed ^ mix(flow ^ nth);
    count(SEEN);
    if (is_tcp && shape->drop_nth == nth) {
        count(NTH_LOST);
        return TC_ACT_SHOT;
    }
    if (happens(&random, shape->loss_ppm)) {
        count(LOST);
        return TC_ACT_SHOT;
    }
    if (happens(&random, shape->duplicate_ppm)) {
        skb->mark = TREATED;
        if (bpf_clone_redirect(skb, ifindex, 0) == 0)
            count(DUPLICATED);
        skb->mark = 0;
    }
    __u64 by_ns = shape->delay_ns;
    if (shape->jitter_ns)
        by_ns += next(&random) % (shape->jitter_ns + 1);
    if (happens(&random, shape->reorder_ppm))
        by_ns += shape->reorder_ns;
    return by_ns ? delay(skb, by_ns) : TC_ACT_OK;
}

char _license[] SEC("license") = "GPL";
