/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The switch's maps, and its events to user space. Sizes marked "config" are set before loading. */
#pragma once
#include "abi.h"
#include "cookie.h"
#include "counters.h"
#include "packet.h"

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536); /* config */
    __type(key, struct flow_key);
    __type(value, struct flow);
} flows SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 16384); /* config */
    __type(key, __u64);
    __type(value, struct target);
} targets SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, SERVICES_MAX);
    __type(key, struct service_key);
    __type(value, struct service);
} services SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, NODES_MAX);
    __type(key, __u32);
    __type(value, struct node_link);
} links SEC(".maps");

/* Node slot by tag; NO_NODE if no node has the tag. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 256);
    __type(key, __u32);
    __type(value, __u32);
} tags SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(map_flags, BPF_F_MMAPABLE);
    __uint(max_entries, NODES_MAX + 1);
    __type(key, __u32);
    __type(value, struct gate);
} gates SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct keys);
} keys SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct expired_keys);
} expired SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20); /* config */
} events SEC(".maps");

/* Data that does not fit on the stack. Programs on one processor do not interrupt each other here: all run in
 * softirq. */
struct scratch {
    struct event event;
    __u8 packet[PUNT_BYTES_MAX]; /* directly after its event, as in the ring */
    __u8 head[HEAD_HASH_BYTES_MAX + 8];
};

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct scratch);
} scratches SEC(".maps");

/* Set before loading. src/plane/programs.rs writes it by these offsets. */
struct front_config {
    __u32 hold_packets; /* packets of one held connection that are punted to user space */
    __u32 checksums_partial; /* 1 if packets may have partial checksums: not in native XDP */
    __u32 clock_ms; /* added to the kernel's clock, so that switches and restarts share one time */
    __u32 clock_shift; /* unit of the clock in SYN-ACKs: 2^clock_shift ms */
    __u64 proof_mask; /* bits of a cookie's hash that are compared; fewer in tests */
};
const volatile struct front_config config = {.hold_packets = 64, .clock_shift = 10, .proof_mask = PROOF_MASK};

static __always_inline struct scratch *scratch(void) {
    __u32 zero = 0;
    return bpf_map_lookup_elem(&scratches, &zero);
}

/* Events without a packet are not urgent: user space polls every few milliseconds, and is woken when this many have
 * gathered. */
#define WAKE_AT_BYTES (128 * (sizeof(struct event) + BPF_RINGBUF_HDR_SZ))
/* Above this fill level every event wakes user space, because the ring is about to overflow. */
#define WAKE_ALWAYS_BYTES 262144

/* Sends an event without a packet. Returns 0 if the ring has no room. */
static __always_inline int emit_event(__u8 kind, const struct flow_key *key, __u8 flags, __u16 node,
                                const struct target *target) {
    struct event event = {.kind = kind, .flags = flags, .node = node, .flow = *key, .at_ns = bpf_ktime_get_ns()};
    if (target) {
        event.route = target->route;
        event.class_ = target->class_;
        event.target = target->id;
    }
    __u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA);
    int gathered = waiting >= WAKE_AT_BYTES && waiting < WAKE_AT_BYTES + sizeof(event) + BPF_RINGBUF_HDR_SZ;
    __u64 wake = gathered || waiting > WAKE_ALWAYS_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
    if (!bpf_ringbuf_output(&events, &event, sizeof(event), wake))
        return 1;
    count(COUNT_EVENT_LOST);
    return 0;
}
