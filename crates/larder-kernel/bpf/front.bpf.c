/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The front-end's programs: `front_xdp` and `front_tc` are the same, for the two hooks; `front_egress` silences sockets
 * whose connection has moved on; `front_set_flow` lets user space change a connection without losing what the others
 * write at the same time. The parts are in front_*.h.
 *
 * What becomes of a packet, first match; [x] only if the service says so:
 *
 *   not TCP, or not to a listen address        stack; "packet too big" about a node's packet: the node
 *   IP options, extension headers, fragment    of a flow NODE: its node; of HOLD, RESET: dropped; else stack
 *   lengths that contradict each other         dropped
 *   SYN                                        noted in a flow that is there; [cookie, open] SYN-ACK, else stack
 *   flow from a node's list, the stack has it  as for no flow
 *   flow, packet proves a newer connection     the flow ends, then as for no flow
 *   flow NODE / HOLD / RESET / LOCAL           its node, or the one whose tag is echoed / ring, up to a number / RST / stack
 *   no flow, [cookie] valid: RST               dropped
 *     data                                     [fast] known target, gates open: its node and OPENED; else HOLD and ring
 *     FIN / nothing                            flow LOCAL, stack / dropped: the handshake's end
 *   no flow, [tags] timestamp names a node     the node, unless the stack has a live socket, or its cookie
 *                                              comes back
 *   no flow, [grace], the stack has no socket and no cookie of its own comes back: cookie ours and too old, or [resets]
 *     data that come again and again: RST; else dropped
 *   no flow                                    stack
 *
 * Kernel: 5.18 (bpf_xdp_load_bytes, bpf_loop); native XDP, generic XDP or tc. */
#include "front_flow.h"
#include "front_icmp.h"
#include "front_uncommon.h"

char _license[] SEC("license") = "GPL";

IN struct service *service_at(const __u8 address[16], __be16 port_be) {
    struct service_key key = {.port_be = port_be};
    __builtin_memcpy(key.address, address, 16);
    return bpf_map_lookup_elem(&services, &key);
}

/* The start of a connection. An older one on the same addresses stays until a packet proves the new one real. */
IN int on_syn(void *ctx, int xdp, const struct packet *p, const struct service *service, struct flow *flow) {
    count(COUNT_SYN);
    if (p->flags & (TCP_RST | TCP_FIN)) {
        count(COUNT_MALFORMED);
        return drop(xdp);
    }
    if (flow && !(service->flags & SERVICE_NO_REUSE)) {
        flow->syn_seq = p->seq;
        flow_mark(flow, FLOW_SYN_SEEN);
    }
    if (service->flags & SERVICE_CLOSED || !(service->flags & SERVICE_COOKIE))
        return pass(xdp);
    return syn_answer(ctx, xdp, p, service);
}

/* A TCP packet that packet_parse() does not read. */
IN int on_uncommon(void *ctx, int xdp) {
    struct packet p = {};
    struct uncommon u = {};
    __u8 tcp[14]; /* up to the flags */
    if (!uncommon_read(ctx, xdp, &p, &u))
        return pass(xdp);
    if (!u.first)
        return on_later_fragment(ctx, xdp, &p, &u);
    if (frame_load(ctx, xdp, u.l4, tcp, sizeof(tcp)))
        return pass(xdp);
    __builtin_memcpy(&p.client_port_be, tcp, 2);
    __builtin_memcpy(&p.server_port_be, tcp + 2, 2);
    struct service *service = service_at(p.server, p.server_port_be);
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
        return uncommon_lost(xdp);
    if (u.fragment)
        fragment_note(&p, &u, slot);
    flow->seen_ns = bpf_ktime_get_coarse_ns();
    count(COUNT_UNCOMMON);
    return forward(ctx, xdp, &p, slot);
}

/* What packet_parse() does not read: an ICMP message that a node must get, an uncommon packet, or none of ours. */
IN int on_other(void *ctx, int xdp) {
    struct packet p = {};
    if (!icmp_quoted(frame_start(ctx, xdp), frame_end(ctx, xdp), &p))
        return on_uncommon(ctx, xdp);
    struct service *service = service_at(p.server, p.server_port_be);
    if (!service || !frame_holds(ctx, xdp, l4_at(&p) + p.payload_bytes))
        return pass(xdp);
    struct flow_key key = {.client_port_be = p.client_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.client, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow || flow->state != FLOW_NODE)
        return pass(xdp);
    return forward(ctx, xdp, &p, flow->node);
}

IN int front(void *ctx, int xdp) {
    struct packet p = {};
    enum parsed parsed = packet_parse(frame_start(ctx, xdp), frame_end(ctx, xdp), &p);
    if (parsed == PARSED_OTHER)
        return on_other(ctx, xdp);
    struct service *service = service_at(p.server, p.server_port_be);
    if (!service)
        return pass(xdp);
    if (parsed == PARSED_BAD || !frame_holds(ctx, xdp, l4_at(&p) + p.header_bytes + p.payload_bytes)) {
        count(COUNT_MALFORMED);
        return drop(xdp);
    }
    struct flow_key key = {.client_port_be = p.client_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.client, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (p.flags & TCP_SYN && !(p.flags & TCP_ACK))
        return on_syn(ctx, xdp, &p, service, flow);
    if (flow && !flow_is_outdated(ctx, flow, &p)) {
        /* So a client ends a handshake whose SYN-ACK came too late for it: its next SYN is answered then. */
        if (p.flags & TCP_RST && flow->flags & FLOW_ANSWERED && p.seq == flow->answer_ack)
            return pass(xdp);
        if (!flow_is_replaced(ctx, xdp, flow, &p, service))
            return flow_known(ctx, xdp, &p, &key, flow);
        if (!(flow_mark(flow, FLOW_TOLD) & FLOW_TOLD)) {
            struct target account = {.id = flow_account(flow)};
            tell(EVENT_ENDED, &key, flow->flags, flow->node, &account);
        }
        bpf_map_delete_elem(&flows, &key);
        count(COUNT_REUSED);
    }
    return flow_new(ctx, xdp, &p, &key, service);
}

SEC("xdp.frags")
int front_xdp(struct xdp_md *ctx) {
    return front(ctx, 1);
}

SEC("tc")
int front_tc(struct __sk_buff *ctx) {
    __u32 headers = L4_AT_V6 + 60;
    if (ctx->data_end - ctx->data < headers) /* headers beyond the linear part */
        bpf_skb_pull_data(ctx, ctx->len < headers ? ctx->len : headers);
    return front(ctx, 0);
}

/* 1 if a packet of this host's asks whether a SYN is its client's: by the frozen socket, one more with the FIN that the node
 * gets, or by a handshake with another number. */
IN int asks(const struct flow *flow, const struct packet *p) {
    if (!(flow->flags & FLOW_SYN_SEEN) || p->payload_bytes ||
        (p->flags & (TCP_SYN | TCP_ACK | TCP_FIN | TCP_RST)) != TCP_ACK)
        return 0;
    int frozen = flow->frozen_seq && p->ack - flow->frozen_seq <= 1;
    return frozen || (flow->flags & FLOW_ANSWERED && p->seq == flow->answer_seq && p->ack == flow->answer_ack);
}

/* A socket here whose connection a node has now must neither acknowledge nor reset anything. The answer to a SYN that
 * begins a new connection on the same addresses may leave, and what asks whether that SYN is its client's (RFC 5961, section
 * 4), with numbers that acknowledge nothing that the node does not have. */
SEC("tc")
int front_egress(struct __sk_buff *ctx) {
    struct packet p = {};
    if (packet_parse(frame_start(ctx, 0), frame_end(ctx, 0), &p) == PARSED_OTHER)
        return TC_ACT_UNSPEC;
    struct service *service = service_at(p.client, p.client_port_be);
    if (!service)
        return TC_ACT_UNSPEC;
    struct flow_key key = {.client_port_be = p.server_port_be, .service = service->id};
    __builtin_memcpy(key.client, p.server, 16);
    struct flow *flow = bpf_map_lookup_elem(&flows, &key);
    if (!flow)
        return TC_ACT_UNSPEC;
    if (flow->flags & FLOW_SYN_SEEN && p.flags & TCP_SYN) {
        if (stack_answers(service) && p.flags & TCP_ACK) {
            flow->answer_seq = p.seq + 1;
            flow->answer_ack = p.ack;
            flow_mark(flow, FLOW_ANSWERED);
        }
        return TC_ACT_UNSPEC;
    }
    if (flow->state != FLOW_NODE || flow->flags & FLOW_LISTED || asks(flow, &p))
        return TC_ACT_UNSPEC;
    count(COUNT_EGRESS_DROPPED);
    return TC_ACT_SHOT;
}

/* `node` stays where it is NO_NODE, `state` where it is 0; `flags` are added, then `clear` removed. `seq` and `ack` are what its client has sent and
 * acknowledged, where the plane has seen neither; with `frozen` when this host's socket was frozen. A connection that is not there is made. Where `expect` is not 0 it has to be
 * there, in that state. */
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
            flow->asked_ack = change->ack;
            flow->last_seq = change->seq;
            flow->next_seq = change->seq;
        }
        if (change->node != NO_NODE && flow->node != NO_NODE && change->node != flow->node)
            flow_mark(flow, FLOW_MOVED);
        /* The node before the state: a packet in between must not go to the wrong one. */
        if (change->node != NO_NODE)
            *(volatile __u16 *)&flow->node = change->node;
        if (change->state) {
            *(volatile __u8 *)&flow->state = change->state;
            flow_unmark(flow, FLOW_LISTED);
        }
        /* After the client's end only what it acknowledges from here on says that it goes on. */
        if (change->flags & FLOW_IDLE && flow->flags & FLOW_CLIENT_FIN)
            flow->asked_ack = flow->last_ack;
        if (change->flags)
            flow_mark(flow, change->flags);
        if (change->clear)
            flow_unmark(flow, change->clear);
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
