/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Packets of known connections, and first packets of new ones. */
#pragma once
#include "front_cookie.h"
#include "front_forward.h"
#include "front_head.h"
#include "front_stray.h"
#include "stack_cookie.h"

/* A packet's numbers are noted only if they are this close to the client's last ones. A forged packet would have to
 * guess both, with a chance of 2^-14. Clients have less data in flight. A packet further ahead, as after a time on
 * another switch, is still forwarded. */
#define PLAUSIBLE_BYTES (16U << 20)

/* Numbers further off are accepted too if the client has continued from them for this long while no packet fitted the
 * old ones. This recovers a connection that was with another switch for a while. An attacker would have to forge them
 * while the client is silent. */
#define JUMP_NS 1000000000ULL
#define JUMPS_MAX 4096

/* Numbers that do not fit a connection's. */
struct jump {
    __u64 since_ns;
    __u64 seen_ns; /* flow.seen_ns at that time; if it has changed, a packet that fits has come since */
    __u32 seq;
    __u32 ack;
};

struct {
    __uint(type, BPF_MAP_TYPE_LRU_HASH);
    __uint(max_entries, JUMPS_MAX);
    __type(key, struct flow_key);
    __type(value, struct jump);
} jumps SEC(".maps");

/* Time for which a tag is valid: a node's clock counts from the 23 bits of the SYN-ACK's timestamp up to the tag in
 * 2^23 ms; less a reserve. */
#define TAG_VALID_NS 7200000000000LL

/* Bytes that a client may have sent after a handshake that this host's stack has answered. */
#define ANSWERED_BYTES 65536

/* Cuts the copy in `s` to a valid packet of PUNT_BYTES_MAX bytes. The client retransmits the rest, as if it were lost.
 * This happens only if the kernel has merged segments, after it has verified them. So the checksum is marked as partial
 * and left to user space. */
INLINE void punt_cut(struct scratch *s, const struct packet *p) {
    __be16 l3_bytes;
    __u32 tcp_bytes = PUNT_BYTES_MAX - l4_at(p);
    __u16 sum = ~csum_fold(pseudo_sum(p, tcp_bytes));
    if (p->ipv6) {
        l3_bytes = bpf_htons(tcp_bytes);
        __builtin_memcpy(s->packet + ETH_HLEN + 4, &l3_bytes, 2);
        s->packet[L4_AT_V6 + 13] &= ~(TCP_FIN | TCP_PSH);
        __builtin_memcpy(s->packet + L4_AT_V6 + 16, &sum, 2);
    } else {
        struct iphdr *ip = (void *)(s->packet + ETH_HLEN);
        __u32 old = ip->tot_len;
        ip->tot_len = bpf_htons(PUNT_BYTES_MAX - ETH_HLEN);
        ip->check = csum_fold((__u16)~ip->check + (__u16)~old + (__u64)ip->tot_len); /* RFC 1624 */
        s->packet[L4_AT_V4 + 13] &= ~(TCP_FIN | TCP_PSH);
        __builtin_memcpy(s->packet + L4_AT_V4 + 16, &sum, 2);
    }
}

/* Puts the packet into the ring. Returns 0 if it does not fit. */
INLINE int punt(void *ctx, int xdp, const struct packet *p, const struct flow_key *key, __u8 kind, __u8 flags,
                int first, __u64 hash) {
    __u32 bytes = l4_at(p) + p->header_bytes + p->payload_bytes;
    int cut = config.checksums_partial && bytes > PUNT_BYTES_MAX;
    struct scratch *s = scratch();
    /* The ring must have room for first packets; samples are dropped before. */
    if (kind == EVENT_SAMPLE &&
        bpf_ringbuf_query(&events, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(&events, BPF_RB_RING_SIZE) / 4) {
        count(COUNT_LATER_SKIPPED);
        return 0;
    }
    if (cut)
        bytes = PUNT_BYTES_MAX;
    if (!s || bytes > PUNT_BYTES_MAX || frame_load(ctx, xdp, 0, s->packet, clamp(bytes, PUNT_BYTES_MAX))) {
        count(COUNT_PUNT_LOST);
        return 0;
    }
    if (cut)
        punt_cut(s, p);
    __builtin_memset(&s->event, 0, sizeof(s->event));
    s->event.kind = kind;
    s->event.flags = flags;
    s->event.node = NO_NODE;
    s->event.packet_bytes = bytes;
    s->event.flow = *key;
    s->event.first = first;
    s->event.at_ns = bpf_ktime_get_ns();
    s->event.target = hash;
    /* A sample is statistics, and user space reads it with the next event. */
    __u64 wake = kind == EVENT_SAMPLE ? BPF_RB_NO_WAKEUP : BPF_RB_FORCE_WAKEUP;
    if (bpf_ringbuf_output(&events, s, sizeof(s->event) + clamp(bytes, PUNT_BYTES_MAX), wake)) {
        count(COUNT_PUNT_LOST);
        return 0;
    }
    count(COUNT_PUNTED);
    return 1;
}

/* Adds an entry to `flows`. Returns 0 if another processor was first or there is no room. */
INLINE int flow_open(const struct packet *p, const struct flow_key *key, __u32 echo, __u8 state, __u8 flags,
                     __u16 node) {
    __u64 now = bpf_ktime_get_ns();
    int fin = p->flags & TCP_FIN ? 1 : 0;
    struct flow flow = {
        .state = state,
        .flags = flags,
        .node = node,
        .first_echo = echo,
        .first_seq = p->seq,
        .last_seq = p->seq + p->payload_bytes + fin,
        .next_seq = p->seq + p->payload_bytes + fin,
        .last_ack = p->ack,
        .first_ack = p->ack,
        .request_ack = p->ack,
        .held = state == FLOW_HOLD,
        .packets = state == FLOW_NODE,
        .requests = p->payload_bytes ? 1 : 0,
        .seen_ns = now,
        .opened_ns = now,
    };
    return !bpf_map_update_elem(&flows, key, &flow, BPF_NOEXIST);
}

/* Returns the previous flags. */
INLINE __u32 flow_set_flags(struct flow *flow, __u32 flags) {
    return __sync_fetch_and_or(&flow->flags, flags);
}

INLINE __u32 flow_clear_flags(struct flow *flow, __u32 flags) {
    return __sync_fetch_and_and(&flow->flags, ~flags);
}

/* Low half: bytes of the reply that the client has acknowledged. High half: its packets with payload. */
INLINE __u64 flow_totals(const struct flow *flow) {
    return (__u64)flow->requests << 32 | (flow->packets ? flow->last_ack - flow->first_ack : 0);
}

/* Reports the end of the client's side once. If the ring has no room, the next packet reports it again. */
INLINE void flow_client_ended(struct flow *flow, const struct flow_key *key) {
    __u32 flags = flow->flags;
    if (!(flags & (FLOW_CLIENT_FIN | FLOW_CLIENT_RST)) || flags & FLOW_END_REPORTED ||
        flow_set_flags(flow, FLOW_END_REPORTED) & FLOW_END_REPORTED)
        return;
    /* The client may still take its reply, or the end may be forged. Activity is then reported as EVENT_RESUMED. */
    flow->request_ack = flow->last_ack;
    flow_set_flags(flow, flags & (FLOW_ACKED | FLOW_CLIENT_RST) ? FLOW_IDLE : 0);
    struct target account = {.id = flow_totals(flow)};
    if (!emit_event(EVENT_ENDED, key, flags, flow->node, &account))
        flow_clear_flags(flow, FLOW_END_REPORTED);
}

/* Reports that a connection is no longer idle. If the ring has no room, the next packet reports it again. */
INLINE void flow_resumed(struct flow *flow, const struct flow_key *key) {
    if (flow->flags & FLOW_IDLE && flow_clear_flags(flow, FLOW_IDLE) & FLOW_IDLE &&
        !emit_event(EVENT_RESUMED, key, flow->flags, flow->node, 0))
        flow_set_flags(flow, FLOW_IDLE);
}

INLINE int is_near(__u32 number, __u32 last) {
    return number - last + PLAUSIBLE_BYTES < 2 * PLAUSIBLE_BYTES;
}

/* Returns 1 if a packet's numbers, which do not fit the connection's, are accepted nevertheless. */
GLOBAL_FUNC int jump_confirmed(const struct packet *p, const struct flow_key *key, const struct flow *flow) {
    if (!p || !key || !flow)
        return 0;
    __u64 now = bpf_ktime_get_ns();
    __u32 end = p->seq + p->payload_bytes;
    struct jump *jump = bpf_map_lookup_elem(&jumps, key);
    if (!jump || jump->seen_ns != flow->seen_ns || !is_near(p->seq, jump->seq) || !is_near(p->ack, jump->ack)) {
        struct jump fresh = {.since_ns = now, .seen_ns = flow->seen_ns, .seq = end, .ack = p->ack};
        bpf_map_update_elem(&jumps, key, &fresh, BPF_ANY);
        return 0;
    }
    if ((__s32)(end - jump->seq) > 0)
        jump->seq = end;
    if ((__s32)(p->ack - jump->ack) > 0)
        jump->ack = p->ack;
    return now - jump->since_ns >= JUMP_NS;
}

/* Sequence number of the client's next byte, counting only bytes received in order. */
INLINE __u32 next_expected_seq(const struct flow *flow) {
    return flow->next_seq ? flow->next_seq : flow->last_seq;
}

/* Notes bytes and ends that come in order. A RST or FIN ends the connection here only if its number is exactly the next
 * one (RFC 5961 section 3.2 asks the same of a socket). Any other is forwarded and counted: the node's socket judges
 * it, and the node reports when the connection has closed. Returns 1 if the client has sent new bytes. */
INLINE int flow_advance(struct flow *flow, const struct packet *p, int fresh) {
    __u32 behind = p->seq + p->payload_bytes, next = fresh ? p->seq : next_expected_seq(flow);
    int goes_on = 0;
    if (p->flags & TCP_RST) {
        if (p->seq == next && !fresh)
            flow_set_flags(flow, FLOW_CLIENT_RST);
        else
            count(COUNT_INEXACT_END);
        return 0;
    }
    if ((__s32)(p->seq - next) <= 0 && (__s32)(behind - next) > 0) {
        next = behind;
        goes_on = 1;
    }
    if (p->flags & TCP_FIN) {
        if (behind == next) {
            next++;
            flow_set_flags(flow, FLOW_CLIENT_FIN);
        } else if (behind + 1 != next) { /* not a retransmission of the same FIN */
            count(COUNT_INEXACT_END);
        }
    }
    flow->next_seq = next;
    return goes_on;
}

/* Notes a packet of a known connection. */
INLINE void flow_note(struct flow *flow, const struct flow_key *key, const struct packet *p) {
    __u32 end = p->seq + p->payload_bytes + (p->flags & TCP_FIN ? 1 : 0);
    int fresh = !flow->packets && !flow->held && !flow->last_seq;
    int acks = p->flags & TCP_ACK ? 1 : 0;
    /* The last acknowledgement may be unknown for a connection that user space has added. */
    if (!fresh && (!is_near(p->seq, flow->last_seq) || (acks && flow->last_ack && !is_near(p->ack, flow->last_ack)))) {
        /* A FIN or RST does not count: it may be forged. */
        if (!acks || p->flags & (TCP_FIN | TCP_RST) || !jump_confirmed(p, key, flow)) {
            count(COUNT_IMPLAUSIBLE);
            return;
        }
        flow->last_seq = p->seq;
        flow->next_seq = p->seq;
        flow->last_ack = p->ack;
        flow->request_ack = p->ack;
        if (p->ack != flow->first_ack)
            flow_set_flags(flow, FLOW_ACKED);
    }
    int was_reset = flow->flags & FLOW_CLIENT_RST ? 1 : 0;
    int goes_on = flow_advance(flow, p, fresh);
    if (!(p->flags & TCP_RST) && (fresh || (__s32)(end - flow->last_seq) > 0))
        flow->last_seq = end;
    if (fresh)
        flow->first_ack = p->ack;
    if (acks && (fresh || !flow->last_ack || (__s32)(p->ack - flow->last_ack) > 0)) {
        flow->last_ack = p->ack;
        if (p->ack != flow->first_ack && !(flow->flags & FLOW_ACKED))
            flow_set_flags(flow, FLOW_ACKED);
        goes_on = 1;
        /* An acknowledgement of one more is that of the node's FIN. */
        if (flow->flags & FLOW_CLIENT_FIN && p->ack - flow->request_ack > 1)
            flow_resumed(flow, key);
    }
    /* A client sends nothing after its own RST, so the RST was forged. */
    if (was_reset && goes_on && !(p->flags & TCP_RST))
        flow_resumed(flow, key);
    if (p->payload_bytes) {
        flow->requests++;
        flow->request_ack = flow->last_ack;
        /* It does not retransmit after its own RST either. */
        if (!was_reset)
            flow_resumed(flow, key);
    }
    flow->seen_ns = bpf_ktime_get_coarse_ns();
    flow_client_ended(flow, key);
}

/* Returns 1 if a packet with a valid cookie begins a later connection than `flow`. Otherwise it is a delayed packet of
 * an older one. The time of the SYN-ACK that it answers decides. If that is unknown or equal, a packet whose SYN has
 * been seen is later, else one whose number is after the last one (RFC 6191 uses both, with the client's clock). */
INLINE int flow_is_older(const struct flow *flow, const struct packet *p, const struct timestamps *ts,
                         int follows_syn) {
    __u32 echo = flow->first_echo ? syn_ack_echo(ts) : 0;
    if (echo) {
        /* A valid cookie is not older than this, so it was made later. */
        if (bpf_ktime_get_ns() - flow->opened_ns > clock_recent_ns())
            return 1;
        __s32 later = clock_difference(echo_clock(echo), echo_clock(flow->first_echo));
        if (later)
            return later > 0;
    }
    return follows_syn || (__s32)(p->seq - flow->last_seq) > 0;
}

/* Returns 1 if this host's stack answers SYNs, not this program. */
INLINE int stack_answers(const struct service *service) {
    return !(service->flags & SERVICE_COOKIE) || service->flags & SERVICE_CLOSED;
}

/* Returns 1 if the packet belongs to a new connection on the addresses of `flow`. Only then is the old one given up: a
 * SYN alone may be forged or late, but a packet that acknowledges the answer to it proves the new one. */
INLINE int flow_is_replaced(void *ctx, int xdp, const struct flow *flow, const struct packet *p,
                        const struct service *service) {
    int follows_syn = flow->flags & FLOW_SYN_SEEN && p->seq == flow->syn_seq + 1;
    if (!(p->flags & TCP_ACK) || p->flags & TCP_RST || p->seq == flow->first_seq)
        return 0;
    if (flow->flags & FLOW_STACK_SYN_ACK && p->ack == flow->stack_seq && p->seq - flow->stack_ack < ANSWERED_BYTES)
        return 1;
    /* A connection without a node has nothing to lose. */
    if (stack_answers(service) && follows_syn && flow->state == FLOW_RESET)
        return 1;
    /* Without cookies nothing else proves a new connection. */
    if (!(service->flags & SERVICE_COOKIE))
        return 0;
    int closing = flow->flags & (FLOW_CLIENT_FIN | FLOW_CLIENT_RST) && p->seq != flow->last_seq;
    if (!follows_syn && !closing)
        return 0;
    struct timestamps ts;
    read_timestamps(ctx, xdp, p, &ts);
    return cookie_check(p, &ts, ADDRESSES_KNOWN) == COOKIE_GOOD && flow_is_older(flow, p, &ts, follows_syn);
}

/* Timestamp that a packet echoes, if the option is where stacks usually put it (RFC 7323 appendix A); else 0. */
INLINE __u32 common_echo(void *ctx, int xdp, const struct packet *p) {
    __be32 *option = frame_start(ctx, xdp) + l4_at(p) + sizeof(struct tcphdr);
    if (p->header_bytes < sizeof(struct tcphdr) + 12 || (void *)(option + 3) > frame_end(ctx, xdp) ||
        option[0] != bpf_htonl(0x0101080a))
        return 0;
    return bpf_ntohl(option[2]);
}

/* Node that gets a packet of a connection. If this switch and another one each hold a copy of the first segment, two
 * nodes may accept the connection. The client accepts segments from the node whose timestamps are ahead (PAWS) and
 * drops those of the other one, so its packets follow their timestamps. Nothing is noted: a forged tag misdirects only
 * the forged packet. */
INLINE __u16 flow_node(void *ctx, int xdp, const struct packet *p, const struct flow *flow) {
    /* The coarse clock of seen_ns may be a little behind the one of opened_ns. */
    __s64 age = flow->seen_ns - flow->opened_ns;
    if (!flow->first_echo || flow->flags & FLOW_MOVED || age > TAG_VALID_NS)
        return flow->node;
    __u32 tag = common_echo(ctx, xdp, p) >> 24;
    __u32 *slot = tag ? bpf_map_lookup_elem(&tags, &tag) : 0;
    if (!slot || *slot == flow->node || *slot >= NODES_MAX)
        return flow->node;
    count(COUNT_OTHER_NODE);
    return *slot;
}

INLINE int handle_known_flow(void *ctx, int xdp, const struct packet *p, const struct flow_key *key,
                             struct flow *flow) {
    if (p->flags & TCP_RST && flow->frozen_seq && p->seq - flow->frozen_seq <= 1)
        flow->denied = 1;
    flow_note(flow, key, p);
    switch (flow->state) {
    case FLOW_NODE:
        flow->packets++;
        if (p->payload_bytes && flow->requests > 1 && bpf_get_prandom_u32() % SAMPLE_ONE_IN == 0)
            punt(ctx, xdp, p, key, EVENT_SAMPLE, flow->flags, 0, 0);
        return forward(ctx, xdp, p, flow_node(ctx, xdp, p, flow));
    case FLOW_HOLD:
        if (flow->held >= config.hold_packets) {
            count(COUNT_HOLD_FULL);
            return drop(xdp);
        }
        flow->held++;
        count(COUNT_HELD);
        punt(ctx, xdp, p, key, EVENT_PUNT, flow->flags, 0, 0);
        return drop(xdp);
    case FLOW_RESET:
        return reply_reset(ctx, xdp, p);
    default:
        count(COUNT_LOCAL);
        return pass(xdp);
    }
}

/* Takes a place at a gate, if it is open. */
INLINE int gate_enter(__u32 slot, struct gate **entered) {
    struct gate *gate = bpf_map_lookup_elem(&gates, &slot);
    if (!gate || !gate->usable)
        return 0;
    __u64 opened = __sync_fetch_and_add(&gate->opened, 1);
    __u64 counted = *(volatile __u64 *)&gate->seen; /* seen and base are written together */
    __u32 active = (__u32)(counted >> 32) + ((__u32)opened - (__u32)counted);
    if (active >= gate->limit) {
        __sync_fetch_and_add(&gate->opened, -1);
        return 0;
    }
    *entered = gate;
    return 1;
}

INLINE void gate_leave(struct gate *gate) {
    __sync_fetch_and_add(&gate->opened, -1);
}

/* Opens a connection to the node of a known target. Returns 0 if that is not possible. */
INLINE int fast_open(const struct packet *p, const struct flow_key *key, __u32 echo, __u64 hash, __u16 *node) {
    struct target *target = bpf_map_lookup_elem(&targets, &hash);
    struct gate *of_node, *of_all;
    if (!target || target->service != key->service || target->expires_ns <= bpf_ktime_get_ns())
        return 0;
    __u32 slot = target->node;
    struct node_link *link = bpf_map_lookup_elem(&links, &slot);
    if (!link || link->kind == LINK_NONE)
        return 0;
    if (!gate_enter(slot, &of_node)) {
        count(COUNT_GATE_CLOSED);
        return 0;
    }
    if (!gate_enter(NODES_MAX, &of_all)) {
        gate_leave(of_node);
        count(COUNT_GATE_CLOSED);
        return 0;
    }
    if (flow_open(p, key, echo, FLOW_NODE, FLOW_FAST, slot)) {
        if (emit_event(EVENT_OPENED, key, FLOW_FAST, slot, target)) {
            *node = slot;
            count(COUNT_FAST);
            return 1;
        }
        bpf_map_delete_elem(&flows, key);
    }
    gate_leave(of_all);
    gate_leave(of_node);
    return 0;
}

/* Handles the first segment of a connection with a valid cookie. */
INLINE int handle_first_segment(void *ctx, int xdp, const struct packet *p, __u32 echo, const struct flow_key *key,
                  const struct service *service) {
    __u64 hash = head_hash(ctx, xdp, p);
    /* Each listen address has its own entry: the same request may come to two of them, for example over IPv4 and
     * IPv6. */
    hash = hash ? hash ^ key->service * SERVICE_HASH_MULTIPLIER : 0;
    __u16 node = NO_NODE;
    if (hash && service->flags & SERVICE_FAST && fast_open(p, key, echo, hash, &node)) {
        if (p->flags & TCP_FIN) {
            struct flow *flow = bpf_map_lookup_elem(&flows, key);
            if (flow) {
                flow_set_flags(flow, FLOW_CLIENT_FIN);
                flow_client_ended(flow, key);
            }
        }
        return forward(ctx, xdp, p, node);
    }
    if (!flow_open(p, key, echo, FLOW_HOLD, 0, NO_NODE))
        return drop(xdp); /* another processor has a copy of it; the client retransmits if something is lost */
    if (!punt(ctx, xdp, p, key, EVENT_PUNT, 0, 1, hash)) {
        bpf_map_delete_elem(&flows, key);
        return drop(xdp);
    }
    if (p->flags & TCP_FIN) {
        struct flow *flow = bpf_map_lookup_elem(&flows, key);
        if (flow) {
            flow_set_flags(flow, FLOW_CLIENT_FIN);
            flow_client_ended(flow, key);
        }
    }
    return drop(xdp);
}

/* Finds the node of a connection that is not in the table by the tag in its timestamp. */
INLINE int flow_by_tag(const struct packet *p, const struct timestamps *ts, __u16 *node) {
    __u32 tag = ts->echo >> 24;
    if (!ts->present || !tag || !(p->flags & TCP_ACK))
        return 0;
    __u32 *slot = bpf_map_lookup_elem(&tags, &tag);
    if (!slot || *slot >= NODES_MAX)
        return 0;
    *node = *slot;
    return 1;
}

/* From the kernel's tcp_states.h. */
#define STATE_TIME_WAIT 6
#define STATE_LISTEN 10
#define STATE_NEW_SYN_RECV 12

/* State of the stack's socket for the connection, or of the one that it will make. A listening socket does not count.
 * 0: none. */
INLINE __u32 stack_state(void *ctx, const struct packet *p) {
    struct bpf_sock_tuple tuple = {};
    __u32 bytes;
    if (p->ipv6) {
        __builtin_memcpy(tuple.ipv6.saddr, p->client, 16);
        __builtin_memcpy(tuple.ipv6.daddr, p->server, 16);
        tuple.ipv6.sport = p->client_port_be;
        tuple.ipv6.dport = p->server_port_be;
        bytes = sizeof(tuple.ipv6);
    } else {
        __builtin_memcpy(&tuple.ipv4.saddr, p->client + 12, 4);
        __builtin_memcpy(&tuple.ipv4.daddr, p->server + 12, 4);
        tuple.ipv4.sport = p->client_port_be;
        tuple.ipv4.dport = p->server_port_be;
        bytes = sizeof(tuple.ipv4);
    }
    struct bpf_sock *sock = bpf_skc_lookup_tcp(ctx, &tuple, bytes, BPF_F_CURRENT_NETNS, 0);
    if (!sock)
        return 0;
    __u32 state = sock->state;
    if (state == STATE_LISTEN)
        state = stack_cookie(sock, p) ? STATE_NEW_SYN_RECV : 0;
    bpf_sk_release(sock);
    return state;
}

/* Returns 1 if the entry comes from a node's listing and this host's stack has the connection. The listing is some
 * milliseconds old: since then the client may have closed that connection and opened a new one on the same addresses
 * here. */
INLINE int flow_is_outdated(void *ctx, struct flow *flow, const struct packet *p) {
    if (!(flow->flags & FLOW_LISTED))
        return 0;
    __u32 state = stack_state(ctx, p);
    if (state && state != STATE_TIME_WAIT)
        return 1;
    flow_clear_flags(flow, FLOW_LISTED);
    return 0;
}

/* Handles a packet of an unknown connection that opens none. `verdict` is that on its cookie. */
INLINE int handle_unknown_flow(void *ctx, int xdp, const struct packet *p, const struct timestamps *ts, int verdict,
                    const struct flow_key *key, const struct service *service) {
    __u16 node = NO_NODE;
    /* The stack serves a connection for which it has, or will have, a socket, even if the table has forgotten it. This
     * holds whatever its timestamps are: if the stack has answered the SYN (SERVICE_CLOSED), they are the stack's
     * own. */
    if (service->flags & SERVICE_TAGS && flow_by_tag(p, ts, &node)) {
        __u32 state = stack_state(ctx, p);
        if (!state || state == STATE_TIME_WAIT) {
            /* Not noted: a tag proves nothing, and forged ones would evict real connections from the table. */
            count(COUNT_BY_TAG);
            return forward(ctx, xdp, p, node);
        }
        /* The timestamp looks like a node's, but the connection is the stack's. It is noted, because later only a
         * TIME_WAIT may be left, which could also be of a previous connection. The clock of the stack's timestamps is
         * unknown. */
        if (state != STATE_NEW_SYN_RECV)
            flow_open(p, key, 0, FLOW_LOCAL, FLOW_END_REPORTED, NO_NODE);
    }
    int bad = service->flags & SERVICE_COOKIE && p->flags & TCP_ACK ? 1 : 0;
    count(verdict == COOKIE_UNCHECKED ? COUNT_PLAIN_LIMITED : bad ? COUNT_BAD_COOKIE : COUNT_UNKNOWN);
    if (!(service->flags & SERVICE_GRACE))
        return pass(xdp);
    if (bad && verdict != COOKIE_UNCHECKED && bad_cookie_budget_exhausted()) {
        count(COUNT_COOKIE_LIMITED);
        return drop(xdp);
    }
    if (stack_state(ctx, p))
        return pass(xdp);
    /* An unchecked cookie may be valid, so the client is not reset. */
    if (!(service->flags & SERVICE_COOKIE) || verdict == COOKIE_UNCHECKED)
        return drop(xdp);
    return stray(ctx, xdp, p, ts, key, service);
}

INLINE int handle_new_flow(void *ctx, int xdp, const struct packet *p, const struct flow_key *key,
                const struct service *service) {
    struct timestamps ts;
    int verdict = COOKIE_BAD;
    read_timestamps(ctx, xdp, p, &ts);
    if (service->flags & SERVICE_COOKIE && p->flags & TCP_ACK)
        verdict = cookie_check(p, &ts, ADDRESSES_FREE);
    if (verdict != COOKIE_GOOD)
        return handle_unknown_flow(ctx, xdp, p, &ts, verdict, key, service);
    if (p->flags & TCP_RST) {
        count(COUNT_UNKNOWN);
        return drop(xdp);
    }
    if (p->payload_bytes)
        return handle_first_segment(ctx, xdp, p, syn_ack_echo(&ts), key, service);
    if (p->flags & TCP_FIN) { /* no request will come: the stack closes the connection */
        flow_open(p, key, syn_ack_echo(&ts), FLOW_LOCAL, FLOW_CLIENT_FIN | FLOW_END_REPORTED, NO_NODE);
        count(COUNT_LOCAL);
        return pass(xdp);
    }
    count(COUNT_HANDSHAKE_ACK);
    return drop(xdp);
}
