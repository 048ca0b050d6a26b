/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The node program's maps, and its events. The sizes of `conns` and `events` are set before loading. */
#pragma once
#include "abi.h"
#include "counters.h"
#include "node_abi.h"
#include "node_kernel.h"
#include "packet.h"
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, SERVICES_MAX);
    __type(key, struct service_key);
    __type(value, struct service);
} services SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, struct keys);
} keys SEC(".maps");

/* Tag in this node's timestamps; 0: none. */
struct {
    __uint(type, BPF_MAP_TYPE_ARRAY);
    __uint(max_entries, 1);
    __type(key, __u32);
    __type(value, __u32);
} tag SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, TUNNELS_MAX);
    __type(key, struct tunnel_key);
    __type(value, struct tunnel);
} tunnels SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_HASH);
    __uint(max_entries, FROZEN_MAX);
    __type(key, struct flow_key);
    __type(value, __u32);
} frozen SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, 65536);
    __type(key, struct flow_key);
    __type(value, struct conn);
} conns SEC(".maps");

/* Time of the first packet of an unknown connection. Separate from `conns`, because anybody can fill it. */
struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, STRAYS_MAX);
    __type(key, struct flow_key);
    __type(value, __u64);
} strays SEC(".maps");

struct {
    __uint(type, BPF_MAP_TYPE_RINGBUF);
    __uint(max_entries, 1 << 20);
} events SEC(".maps");

static __always_inline struct service *find_service(const __u8 address[16], __be16 port_be) {
    struct service_key key = {.port_be = port_be};
    __builtin_memcpy(key.address, address, 16);
    return bpf_map_lookup_elem(&services, &key);
}

/* Closed connections are not urgent: user space polls every few milliseconds, and is woken when this many have
 * gathered. */
#define WAKE_AT_BYTES (128 * (sizeof(struct event) + BPF_RINGBUF_HDR_SZ))
/* Above this fill level every event wakes user space, because the ring is about to overflow. */
#define WAKE_ALWAYS_BYTES 65536

/* Reports once that a connection has closed. */
static __always_inline void conn_close(const struct flow_key *key, struct conn *conn) {
    if (__sync_fetch_and_or(&conn->flags, CONN_ENDED) & CONN_ENDED)
        return;
    count(COUNT_CLOSED);
    struct event *event = bpf_ringbuf_reserve(&events, sizeof(*event), 0);
    if (!event) {
        count(COUNT_EVENT_LOST);
        return;
    }
    __builtin_memset(event, 0, sizeof(*event));
    event->kind = EVENT_CLOSED;
    event->flags = conn->flags;
    event->flow = *key;
    event->at_ns = bpf_ktime_get_ns();
    event->target = conn->flags & CONN_COOKIE ? conn->first_seq : 0;
    __u64 waiting = bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA); /* with this event */
    int gathered = waiting >= WAKE_AT_BYTES && waiting < WAKE_AT_BYTES + sizeof(*event) + BPF_RINGBUF_HDR_SZ;
    __u64 wake = gathered || waiting > WAKE_ALWAYS_BYTES ? BPF_RB_FORCE_WAKEUP : BPF_RB_NO_WAKEUP;
    bpf_ringbuf_submit(event, wake);
}

/* Notes that one side has sent a FIN. */
static __always_inline void conn_fin(const struct flow_key *key, struct conn *conn, __u32 side) {
    __u32 flags = __sync_fetch_and_or(&conn->flags, side) | side;
    if ((flags & CONN_CLIENT_FIN) && (flags & CONN_NODE_FIN))
        conn_close(key, conn);
}

/* Copies a packet into a record of the next larger size class, so that small packets, which are the majority, leave
 * room for many. */
#define STASH_CLASS(limit)                                                                                             \
    if (bytes <= (limit)) {                                                                                            \
        struct {                                                                                                       \
            struct event event;                                                                                        \
            __u8 packet[limit];                                                                                        \
        } *record = bpf_ringbuf_reserve(&events, sizeof(*record), 0);                                                  \
        if (!record)                                                                                                   \
            goto lost;                                                                                                 \
        if (bytes < 1 || bytes > (limit) || bpf_skb_load_bytes(skb, 0, record->packet, bytes)) {                       \
            bpf_ringbuf_discard(record, 0);                                                                            \
            goto lost;                                                                                                 \
        }                                                                                                              \
        event.packet_bytes = bytes;                                                                                    \
        record->event = event;                                                                                         \
        bpf_ringbuf_submit(record, BPF_RB_FORCE_WAKEUP);                                                               \
        count(COUNT_STASHED);                                                                                          \
        return VERDICT_DROP;                                                                                           \
    }

/* Hands a packet to user space. If there is no room, the client retransmits it. */
GLOBAL_FUNC int stash(struct __sk_buff *skb, const struct flow_key *key, __u32 is_frozen) {
    if (!key)
        return VERDICT_DROP;
    __u64 bytes = skb->len;
    struct event event = {.kind = EVENT_STASH, .flow = *key, .first = is_frozen, .at_ns = bpf_ktime_get_ns()};
    /* Hides the value from the compiler, which would drop the checks that the verifier needs. */
    asm volatile("" : "+r"(bytes));
    STASH_CLASS(128)
    STASH_CLASS(512)
    STASH_CLASS(2048)
    STASH_CLASS(16384)
    STASH_CLASS(STASH_BYTES_MAX)
lost:
    count(COUNT_STASH_LOST);
    return VERDICT_DROP;
}
