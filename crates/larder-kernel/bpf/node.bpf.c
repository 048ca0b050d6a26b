/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Programs on the interface of a node, and of a switch for connections that stay on it.
 *
 * Ingress: removes tunnel headers; lets listeners accept connections whose first segment carries a valid cookie; hands
 * packets to user space if their socket does not exist yet, is being restored (TCP_REPAIR) or is frozen; drops SYNs,
 * because a node must not answer for the address. Egress: silences frozen sockets. Both note which connections are
 * open, and report closed ones.
 *
 * Packets arrive as the kernel has merged them (GRO), and their headers may not be in the linear part. Merged packets
 * above 64 KB (IPv6 jumbograms, with a raised `gro_max_size`) are not examined. */
#include "node_accept.h"
#include "node_maps.h"
#include "node_tunnel.h"
#include "stack_cookie.h"
#include <bpf/bpf_core_read.h>
#include <linux/if_packet.h>

#define HEADERS_BYTES_MAX (L4_AT_V6 + TCP_HEADER_BYTES_MAX)

/* Packets whose numbers are this far from those of a restored socket belong to a connection that is yet to come. A
 * window is at most 1 GB, and in practice far below these values. */
#define STALE_BYTES (64 << 20)
#define STALE_TIME_WAIT_BYTES (1 << 20)

/* A FIN counts if it is a retransmission, or if the bytes between it and those that the socket has read may be in the
 * socket's backlog. */
#define FIN_AHEAD_BYTES (1 << 20)

#define WAIT_NS 1000000ULL            /* how long packets of a new connection are requeued */
#define WAITS_MAX 64                  /* how often, for all packets of a connection together */
#define ACCEPT_NS 1000000000ULL       /* age up to which a full listener may be why there is no socket */
#define STRAY_AGAIN_NS 150000000ULL   /* retransmissions come later than this: RTO is at least 200 ms */
#define STRAY_FORGET_NS 60000000000ULL

static __always_inline enum parse_result parse_packet(struct __sk_buff *skb, struct packet *p) {
    __u32 want = skb->len < HEADERS_BYTES_MAX ? skb->len : HEADERS_BYTES_MAX;
    if (skb->data_end - skb->data < want)
        bpf_skb_pull_data(skb, want);
    return packet_parse((void *)(long)skb->data, (void *)(long)skb->data_end, p);
}

static __always_inline struct bpf_sock *find_socket(struct __sk_buff *skb, const struct packet *p) {
    struct bpf_sock_tuple tuple = {};
    if (p->ipv6) {
        __builtin_memcpy(tuple.ipv6.saddr, p->client, 16);
        __builtin_memcpy(tuple.ipv6.daddr, p->server, 16);
        tuple.ipv6.sport = p->client_port_be;
        tuple.ipv6.dport = p->server_port_be;
        return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv6), BPF_F_CURRENT_NETNS, 0);
    }
    __builtin_memcpy(&tuple.ipv4.saddr, p->client + 12, 4);
    __builtin_memcpy(&tuple.ipv4.daddr, p->server + 12, 4);
    tuple.ipv4.sport = p->client_port_be;
    tuple.ipv4.dport = p->server_port_be;
    return bpf_skc_lookup_tcp(skb, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
}

/* Puts a packet behind those that are being received. The connection is open, but the packet that makes its socket is
 * still on its way: the kernel passes packets through its layers in batches, so later ones can get here first. After a
 * few times the packet is dropped, and the client retransmits it. */
static __always_inline int requeue(struct __sk_buff *skb, struct conn *conn) {
    if (bpf_ktime_get_ns() - conn->opened_ns > WAIT_NS || __sync_fetch_and_add(&conn->waits, 1) >= WAITS_MAX)
        return VERDICT_DROP;
    return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Whether the packet belongs to the noted connection. */
static __always_inline int follows_first_segment(const struct packet *p, const struct conn *conn) {
    return p->seq - conn->first_seq < STALE_BYTES;
}

/* Whether the packet follows the first one of a client without timestamps. It carries no cookie, and must not count as
 * a bad one. */
static __always_inline int is_plain_next(const struct packet *p, const struct conn *conn) {
    return !((p->ack - 1) & COOKIE_TIMESTAMPS) && p->seq != conn->first_seq && follows_first_segment(p, conn);
}

/* Whether a packet is the first in a while for an unknown connection. It may have overtaken the first segment, and then
 * a RST would cut a good connection. If the connection does not exist, the client retransmits and gets the RST then. */
static __always_inline int is_first_stray(const struct flow_key *key) {
    __u64 now = bpf_ktime_get_ns();
    __u64 *since = bpf_map_lookup_elem(&strays, key);
    if (since && now - *since > STRAY_AGAIN_NS && now - *since < STRAY_FORGET_NS)
        return 0;
    if (!since || now - *since >= STRAY_FORGET_NS)
        bpf_map_update_elem(&strays, key, &now, BPF_ANY);
    return 1;
}

/* Handles a packet whose connection has no socket. */
static __always_inline int handle_no_socket(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
                                          __u32 flags) {
    struct conn *conn = bpf_map_lookup_elem(&conns, key);
    /* A packet with another sequence number is forged or late. The stack would answer it with a RST that has the number
     * which the client expects, and would thus cut the connection before its socket exists. */
    if (conn && (conn->flags & (CONN_COOKIE | CONN_ENDED)) == CONN_COOKIE &&
        bpf_ktime_get_ns() - conn->opened_ns < ACCEPT_NS)
        return follows_first_segment(p, conn) ? requeue(skb, conn) : VERDICT_DROP;
    if (flags & SERVICE_STASH)
        return stash(skb, key, 0);
    if (!(flags & SERVICE_COOKIE))
        return flags & SERVICE_GRACE ? VERDICT_DROP : VERDICT_NEXT;
    count(COUNT_REFUSED);
    if (flags & SERVICE_GRACE)
        return VERDICT_DROP;
    /* If the stack answers SYNs too, the packet may carry a SYN cookie of the stack. */
    return !(flags & SERVICE_SYNS) && is_first_stray(key) ? VERDICT_DROP : VERDICT_NEXT;
}

/* Lets the listener accept the connection of this packet, whose cookie is valid. */
static __always_inline int accept(struct __sk_buff *skb, const struct packet *p, struct sock *listener) {
    struct bpf_tcp_req_attrs attributes = {};
    cookie_attributes(skb, p, &attributes);
    int error = -EINVAL;
    if (bpf_sk_assign_tcp_reqsk)
        error = bpf_sk_assign_tcp_reqsk(skb, listener, &attributes, sizeof(attributes));
    if (!error)
        return 0;
    count(COUNT_REFUSED);
    /* If memory is short, the client may try again. Any other error is permanent: the stack resets the connection at
     * once. */
    return error == -ENOMEM ? VERDICT_DROP : VERDICT_NEXT;
}

/* Handles a packet whose addresses match a listener or nothing. Releases `skc`. */
static __always_inline int handle_listener(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
                                       __u32 flags, struct bpf_sock *skc) {
    struct conn *conn = bpf_map_lookup_elem(&conns, key);
    int is_next = conn && (conn->flags & (CONN_COOKIE | CONN_ENDED)) == CONN_COOKIE && is_plain_next(p, conn) &&
                  bpf_ktime_get_ns() - conn->opened_ns < ACCEPT_NS;
    if (!skc || !(flags & SERVICE_COOKIE) || is_next || !proves_cookie(skb, p, ADDRESSES_FREE)) {
        int is_stacks = skc && flags & SERVICE_SYNS && stack_cookie(skc, p);
        if (skc)
            bpf_sk_release(skc);
        return is_stacks ? VERDICT_NEXT : handle_no_socket(skb, p, key, flags);
    }
    int ended = conn && conn->flags & CONN_ENDED && conn->flags & CONN_COOKIE && conn->first_seq == p->seq;
    struct sock *listener = (struct sock *)bpf_skc_to_tcp_sock(skc);
    /* A late copy of a first segment must not cause a second reply. */
    if (ended || !listener || is_older_first_segment(skb, p, conn)) {
        bpf_sk_release(skc);
        count(COUNT_REFUSED);
        return flags & SERVICE_GRACE ? VERDICT_DROP : VERDICT_NEXT;
    }
    int refused = accept(skb, p, listener);
    bpf_sk_release(skc);
    if (refused)
        return refused;
    count(COUNT_ACCEPTED);
    conn_open(skb, key, p, CONN_COOKIE | (p->flags & TCP_FIN ? CONN_CLIENT_FIN : 0));
    return VERDICT_NEXT;
}

/* Notes the end of a connection. A RST or FIN that the socket will ignore does not count. A RST for the previous socket
 * says nothing about this connection. */
static __always_inline void note_end(const struct packet *p, const struct flow_key *key, struct conn *conn,
                                     __u32 expected) {
    if (conn->flags & (CONN_KILLING | CONN_ENDED))
        return;
    if (p->flags & TCP_RST && p->seq == expected)
        conn_close(key, conn);
    else if (p->flags & TCP_FIN && p->seq + p->payload_bytes + 1 - expected <= FIN_AHEAD_BYTES)
        conn_fin(key, conn, CONN_CLIENT_FIN);
}

/* Handles a packet on the addresses of a closed connection (TIME_WAIT), or of one whose server has closed and whose
 * client has not: the kernel keeps both in the same reduced form. Releases `skc`. */
static __always_inline int handle_time_wait(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
                                        __u32 flags, struct bpf_sock *skc) {
    struct tcp_timewait_sock *tw = bpf_skc_to_tcp_timewait_sock(skc);
    if (!tw) {
        bpf_sk_release(skc);
        return VERDICT_NEXT;
    }
    __u32 expected = tw->tw_sk.__tw_common.skc_tw_rcv_nxt;
    __u32 sent = tw->tw_sk.__tw_common.skc_tw_snd_nxt;
    __u32 ts_recent = tw->tw_ts_recent;
    bpf_sk_release(skc);
    struct conn *conn = bpf_map_lookup_elem(&conns, key);
    if (conn)
        note_end(p, key, conn, expected);
    /* If the server has closed before its client, the kernel accepts any RST in the window here, not only an exact one
     * (RFC 5961 section 3.2). The socket would vanish without a report, and the client's FIN would never be
     * acknowledged. */
    if (p->flags & TCP_RST && p->seq != expected) {
        count(COUNT_INEXACT_END);
        return VERDICT_DROP;
    }
    /* A client that has all of the reply and the server's FIN retransmits its last packets until they are
     * acknowledged. */
    int is_again = p->flags & TCP_ACK && p->ack == sent;
    if (p->seq == expected || is_again || p->flags & TCP_RST)
        return VERDICT_NEXT;
    struct timestamps ts = {};
    int newer = timestamps_read(skb, p, &ts) && ts_recent && (__s32)(ts.value - ts_recent) > 0;
    int is_next = conn && conn->flags & CONN_KILLING && is_plain_next(p, conn);
    if (flags & SERVICE_COOKIE && !is_next && proves_cookie(skb, p, ADDRESSES_FREE)) {
        if (!begins_new_connection(skb, p, conn, expected, newer))
            return VERDICT_NEXT;
        conn_open(skb, key, p, CONN_KILLING);
        return kill_stale_socket(skb, p, expected);
    }
    if (conn && conn->flags & CONN_KILLING && follows_first_segment(p, conn))
        return requeue(skb, conn);
    /* The old client's bytes have all arrived, so no packet after them is its own. */
    if (flags & SERVICE_STASH) {
        __s32 ahead = p->seq - expected;
        if (ahead > 0 || ahead < -STALE_TIME_WAIT_BYTES || newer)
            return stash(skb, key, 0);
    }
    return VERDICT_NEXT;
}

/* Notes that a connection is open, or ends. */
static __always_inline void note_connection(const struct packet *p, const struct flow_key *key, __u32 state,
                                            __u32 expected) {
    struct conn *conn = bpf_map_lookup_elem(&conns, key);
    if (!conn) {
        if (state != STATE_ESTABLISHED && state != STATE_CLOSE_WAIT && state != STATE_FIN_WAIT1 &&
            state != STATE_FIN_WAIT2)
            return;
        struct conn fresh = {.opened_ns = bpf_ktime_get_ns()};
        bpf_map_update_elem(&conns, key, &fresh, BPF_NOEXIST);
        conn = bpf_map_lookup_elem(&conns, key);
        if (!conn)
            return;
    }
    conn->seen_ns = bpf_ktime_get_ns();
    note_end(p, key, conn, expected);
}

/* Handles a packet whose addresses match a connected socket. Releases `skc`. */
static __always_inline int handle_socket(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
                                     __u32 flags, struct bpf_sock *skc, __u32 state) {
    struct tcp_sock *tcp = bpf_skc_to_tcp_sock(skc);
    if (!tcp) {
        bpf_sk_release(skc);
        return VERDICT_NEXT;
    }
    __u32 expected = tcp->rcv_nxt;
    int repair = BPF_CORE_READ_BITFIELD(tcp, repair);
    bpf_sk_release(skc);
    if (repair)
        return stash(skb, key, 0);
    if (p->seq != expected && flags & SERVICE_COOKIE) {
        struct conn *conn = bpf_map_lookup_elem(&conns, key);
        if (proves_cookie(skb, p, ADDRESSES_KNOWN)) {
            if (begins_new_connection(skb, p, conn, expected, 0)) {
                conn_open(skb, key, p, CONN_KILLING);
                return kill_stale_socket(skb, p, expected);
            }
        } else if (conn && conn->flags & CONN_KILLING && follows_first_segment(p, conn)) {
            return requeue(skb, conn);
        }
    }
    if (flags & SERVICE_STASH && p->seq - expected + STALE_BYTES >= 2U * STALE_BYTES)
        return stash(skb, key, 0);
    note_connection(p, key, state, expected);
    return VERDICT_NEXT;
}

static __always_inline void make_key(struct flow_key *key, const __u8 client[16], __be16 port_be, __u16 service) {
    __builtin_memcpy(key->client, client, 16);
    key->client_port_be = port_be;
    key->service = service;
}

SEC("tc")
int node_ingress(struct __sk_buff *skb) {
    struct packet p = {};
    struct flow_key key;
    /* A packet for another host, seen because the interface is in promiscuous mode or the network floods it. */
    if (skb->pkt_type == PACKET_OTHERHOST)
        return VERDICT_NEXT;
    int opened = tunnel_decap(skb);
    struct service *service = 0;
    if (opened != DECAP_BAD && parse_packet(skb, &p) == PARSED_TCP)
        service = find_service(p.server, p.server_port_be);
    /* A tunnel may carry only packets for our services and ICMP messages about them. */
    if (opened == DECAP_BAD || (!service && opened == DECAP_DONE && !is_too_big_of_service(skb))) {
        count(COUNT_MALFORMED);
        return VERDICT_DROP;
    }
    if (!service)
        return VERDICT_NEXT;
    __u32 flags = service->flags;
    make_key(&key, p.client, p.client_port_be, service->id);
    if ((p.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
        count(COUNT_SYN);
        return flags & SERVICE_SYNS ? VERDICT_NEXT : VERDICT_DROP;
    }
    if (bpf_map_lookup_elem(&frozen, &key))
        return stash(skb, &key, 1);
    struct bpf_sock *skc = find_socket(skb, &p);
    if (!skc)
        return handle_listener(skb, &p, &key, flags, 0);
    __u32 state = skc->state;
    if (state == STATE_LISTEN)
        return handle_listener(skb, &p, &key, flags, skc);
    if (state == STATE_TIME_WAIT)
        return handle_time_wait(skb, &p, &key, flags, skc);
    if (state == STATE_NEW_SYN_RECV) {
        bpf_sk_release(skc);
        return VERDICT_NEXT;
    }
    return handle_socket(skb, &p, &key, flags, skc, state);
}

SEC("tc")
int node_egress(struct __sk_buff *skb) {
    struct packet p = {};
    struct flow_key key;
    if (parse_packet(skb, &p) != PARSED_TCP)
        return VERDICT_NEXT;
    /* On egress the source address is the service. */
    struct service *service = find_service(p.client, p.client_port_be);
    if (!service)
        return VERDICT_NEXT;
    make_key(&key, p.server, p.server_port_be, service->id);
    if (bpf_map_lookup_elem(&frozen, &key)) {
        count(COUNT_EGRESS_DROPPED);
        return VERDICT_DROP;
    }
    if (!(p.flags & (TCP_FIN | TCP_RST)))
        return VERDICT_NEXT;
    struct conn *conn = bpf_map_lookup_elem(&conns, &key);
    if (!conn && p.flags & TCP_FIN) {
        /* A restored socket may close before its client has sent anything here. */
        struct conn fresh = {.opened_ns = bpf_ktime_get_ns()};
        bpf_map_update_elem(&conns, &key, &fresh, BPF_NOEXIST);
        conn = bpf_map_lookup_elem(&conns, &key);
    }
    if (!conn || conn->flags & (CONN_KILLING | CONN_ENDED))
        return VERDICT_NEXT;
    if (p.flags & TCP_RST)
        conn_close(&key, conn);
    else
        conn_fin(&key, conn, CONN_NODE_FIN);
    return VERDICT_NEXT;
}

char _license[] SEC("license") = "GPL";
