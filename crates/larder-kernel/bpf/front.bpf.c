/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The switch's programs. `front_xdp` and `front_tc` do the same at two hooks. `front_egress` silences sockets whose
 * connection has moved to a node. `front_set_flow` lets user space change a connection without overwriting concurrent
 * changes of the other programs. The parts are in front_*.h.
 *
 * Treatment of a packet, first match; [x] only with that flag of the service:
 *
 *   not TCP, or not to a listen address        stack; "packet too big" about a node's packet: the node
 *   IP options, extension headers, fragment    of a flow NODE: its node; of HOLD, RESET: dropped; else stack
 *   inconsistent lengths                       dropped
 *   SYN                                        noted in an existing flow; [cookie, open] SYN-ACK, else stack
 *   flow from a node's listing, stack has it   as for no flow
 *   flow, packet proves a newer connection     the flow ends, then as for no flow
 *   flow NODE / HOLD / RESET / LOCAL           its node, or that whose tag it echoes / ring, up to a limit / RST / stack
 *   no flow, [cookie] valid: RST               dropped
 *     data                                     [fast] known target, gates open: its node and OPENED; else HOLD and ring
 *     FIN / nothing                            flow LOCAL, stack / dropped: the handshake's last packet
 *   no flow, [tags] timestamp names a node     the node, unless the stack has a live socket, or its own cookie
 *                                              comes back
 *   no flow, [grace], the stack has no socket and no cookie of its own comes back: expired cookie, or [resets] repeated
 *     data: RST; else dropped
 *   no flow                                    stack
 *
 * Kernel: 5.18 (bpf_xdp_load_bytes, bpf_loop); native XDP, generic XDP or tc. */
#include "front_flow.h"
#include "front_icmp.h"
#include "front_uncommon.h"

char _license[] SEC("license") = "GPL";

INLINE struct service *find_service(const __u8 address[16], __be16 port_be) {
    struct service_key key = {.port_be = port_be};
    __builtin_memcpy(key.address, address, 16);
    return bpf_map_lookup_elem(&services, &key);
}

/* Handles a SYN. An older connection on the same addresses stays until a packet proves that the new one is real. */
INLINE int handle_syn(void *ctx, int xdp, const struct packet *p, const struct service *service, struct flow *flow) {
    count(COUNT_SYN);
    if (p->flags & (TCP_RST | TCP_FIN)) {
        count(COUNT_MALFORMED);
        return drop(xdp);
    }
    if (flow && !(service->flags & SERVICE_NO_REUSE)) {
        flow->syn_seq = p->seq;
        flow_set_flags(flow, FLOW_SYN_SEEN);
    }
    if (service->flags & SERVICE_CLOSED || !(service->flags & SERVICE_COOKIE))
        return pass(xdp);
    return reply_syn_ack(ctx, xdp, p, service);
}

/* Handles a TCP packet that packet_parse() cannot read. */
INLINE int handle_uncommon(void *ctx, int xdp) {
    struct packet p = {};
    struct uncommon u = {};
    __u8 tcp[14]; /* up to and including the flags */
    if (!uncommon_read(ctx, xdp, &p, &u))
        return pass(xdp);
    if (!u.first)
        return handle_later_fragment(ctx, xdp, &p, &u);
    if (frame_load(ctx, xdp, u.l4, tcp, sizeof(tcp)))
        return pass(xdp);
    __builtin_memcpy(&p.client_port_be, tcp, 2);
    __builtin_memcpy(&p.server_port_be, tcp + 2, 2);
    struct service *service = find_service(p.server, p.server_port_be);
    if (!service)
        return pass(xdp);
    struct flow_key key = {.client_port_be = p.client_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.client, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow || flow->state == FLOW_LOCAL)
        return pass(xdp);
    __u32 slot = flow->node;
    struct node_link *link = bpf_map_lookup_elem(&links, &slot);
    if (flow->state != FLOW_NODE || tcp[13] & (TCP_SYN | TCP_FIN | TCP_RST) || !link || link->kind != LINK_L2)
        return drop_uncommon(xdp);
    if (u.fragment)
        fragment_note(&p, &u, slot);
    flow->seen_ns = bpf_ktime_get_coarse_ns();
    count(COUNT_UNCOMMON);
    return forward(ctx, xdp, &p, slot);
}

/* Handles a packet that packet_parse() cannot read: an ICMP message for a node, an uncommon packet, or an unrelated
 * one. */
INLINE int handle_other(void *ctx, int xdp) {
    struct packet p = {};
    if (!icmp_quoted(frame_start(ctx, xdp), frame_end(ctx, xdp), &p))
        return handle_uncommon(ctx, xdp);
    struct service *service = find_service(p.server, p.server_port_be);
    if (!service || !frame_holds(ctx, xdp, l4_at(&p) + p.payload_bytes))
        return pass(xdp);
    struct flow_key key = {.client_port_be = p.client_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.client, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow || flow->state != FLOW_NODE)
        return pass(xdp);
    return forward(ctx, xdp, &p, flow->node);
}

INLINE int front(void *ctx, int xdp) {
    struct packet p = {};
    enum parse_result result = packet_parse(frame_start(ctx, xdp), frame_end(ctx, xdp), &p);
    if (result == PARSED_OTHER)
        return handle_other(ctx, xdp);
    struct service *service = find_service(p.server, p.server_port_be);
    if (!service)
        return pass(xdp);
    if (result == PARSED_BAD || !frame_holds(ctx, xdp, l4_at(&p) + p.header_bytes + p.payload_bytes)) {
        count(COUNT_MALFORMED);
        return drop(xdp);
    }
    struct flow_key key = {.client_port_be = p.client_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.client, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (p.flags & TCP_SYN && !(p.flags & TCP_ACK))
        return handle_syn(ctx, xdp, &p, service, flow);
    if (flow && !flow_is_outdated(ctx, flow, &p)) {
        /* The client rejects the stack's SYN-ACK, which came too late for it. The stack must see that to answer its
         * next SYN. */
        if (p.flags & TCP_RST && flow->flags & FLOW_STACK_SYN_ACK && p.seq == flow->stack_ack)
            return pass(xdp);
        if (!flow_is_replaced(ctx, xdp, flow, &p, service))
            return handle_known_flow(ctx, xdp, &p, &key, flow);
        if (!(flow_set_flags(flow, FLOW_END_REPORTED) & FLOW_END_REPORTED)) {
            struct target account = {.id = flow_totals(flow)};
            emit_event(EVENT_ENDED, &key, flow->flags, flow->node, &account);
        }
        bpf_map_delete_elem(&flows, &key);
        count(COUNT_REUSED);
    }
    return handle_new_flow(ctx, xdp, &p, &key, service);
}

SEC("xdp.frags")
int front_xdp(struct xdp_md *ctx) {
    return front(ctx, 1);
}

SEC("tc")
int front_tc(struct __sk_buff *ctx) {
    __u32 headers = L4_AT_V6 + 60;
    if (ctx->data_end - ctx->data < headers) /* the headers are not all in the linear part */
        bpf_skb_pull_data(ctx, ctx->len < headers ? ctx->len : headers);
    return front(ctx, 0);
}

/* Returns 1 if a packet of this host's stack asks the client whether a SYN is its own (challenge ACK, RFC 5961 section
 * 4). It comes from the frozen socket, whose acknowledgement is one higher after a FIN, or from a handshake with
 * another number. */
INLINE int is_challenge_ack(const struct flow *flow, const struct packet *p) {
    if (!(flow->flags & FLOW_SYN_SEEN) || p->payload_bytes ||
        (p->flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) != TCP_ACK)
        return 0;
    int frozen = flow->frozen_seq && p->ack - flow->frozen_seq <= 1;
    return frozen || (flow->flags & FLOW_STACK_SYN_ACK && p->seq == flow->stack_seq && p->ack == flow->stack_ack);
}

/* Egress hook. A socket on this host whose connection a node has taken must neither acknowledge nor reset anything. Two
 * kinds of packets may leave: the answer to a SYN of a new connection on the same addresses, and a challenge ACK for
 * that SYN, whose numbers acknowledge nothing that the node does not have. */
SEC("tc")
int front_egress(struct __sk_buff *ctx) {
    struct packet p = {};
    if (packet_parse(frame_start(ctx, 0), frame_end(ctx, 0), &p) == PARSED_OTHER)
        return TC_ACT_UNSPEC;
    struct service *service = find_service(p.client, p.client_port_be);
    if (!service)
        return TC_ACT_UNSPEC;
    struct flow_key key = {.client_port_be = p.server_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.server, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow)
        return TC_ACT_UNSPEC;
    if (flow->flags & FLOW_SYN_SEEN && p.flags & TCP_SYN) {
        if (stack_answers(service) && p.flags & TCP_ACK) {
            flow->stack_seq = p.seq + 1;
            flow->stack_ack = p.ack;
            flow_set_flags(flow, FLOW_STACK_SYN_ACK);
        }
        return TC_ACT_UNSPEC;
    }
    if (flow->state != FLOW_NODE || flow->flags & FLOW_LISTED || is_challenge_ack(flow, &p))
        return TC_ACT_UNSPEC;
    count(COUNT_EGRESS_DROPPED);
    return TC_ACT_SHOT;
}

/* A change of a connection. `node` NO_NODE and `state` 0 mean unchanged. `flags` are added, then `clear` removed. `seq`
 * and `ack` are the client's next sequence number and its acknowledgement, used if the plane has seen none; with
 * `frozen`, `seq` is the value when this host's socket was frozen. A missing connection is created, unless `expect` is
 * not 0: then it must exist in that state. */
struct flow_change {
    struct flow_key key;
    __u16 node;
    __u8 state;
    __u8 flags;
    __u32 seq;
    __u32 ack;
    __u32 expect;
    __u32 frozen;
    __u32 clear;
};

SEC("syscall")
int front_set_flow(struct flow_change *change) {
    struct flow_key key = change->key;
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (change->expect && (!flow || flow->state != change->expect))
        return 2;
    if (flow) {
        if (change->frozen)
            flow->frozen_seq = change->seq;
        if (change->seq && !flow->last_seq) {
            flow->last_ack = change->ack;
            flow->first_ack = change->ack;
            flow->request_ack = change->ack;
            flow->last_seq = change->seq;
            flow->next_seq = change->seq;
        }
        if (change->node != NO_NODE && flow->node != NO_NODE && change->node != flow->node)
            flow_set_flags(flow, FLOW_MOVED);
        /* The node is written before the state, so that no packet in between goes to the wrong node. */
        if (change->node != NO_NODE)
            *(volatile __u16 *)&flow->node = change->node;
        if (change->state) {
            *(volatile __u8 *)&flow->state = change->state;
            flow_clear_flags(flow, FLOW_LISTED);
        }
        /* After the client's end, only new acknowledgements show that it still takes its reply. */
        if (change->flags & FLOW_IDLE && flow->flags & FLOW_CLIENT_FIN)
            flow->request_ack = flow->last_ack;
        if (change->flags)
            flow_set_flags(flow, change->flags);
        if (change->clear)
            flow_clear_flags(flow, change->clear);
        return 0;
    }
    if (!change->state)
        return 2;
    __u64 now = bpf_ktime_get_ns();
    struct flow made = {
        .state = change->state,
        .node = change->node,
        .first_seq = change->seq,
        .last_seq = change->seq,
        .next_seq = change->seq,
        .last_ack = change->ack,
        .first_ack = change->ack,
        .flags = change->flags,
        .seen_ns = now,
        .opened_ns = now,
    };
    return bpf_map_update_elem(&flows, &key, &made, BPF_ANY) ? 1 : 0;
}
