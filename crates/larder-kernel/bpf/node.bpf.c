/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* On the interface of a node, and of a front-end for connections that stay there.
 *
 * Inwards: takes tunnels off; has listeners accept connections whose first segment proves a cookie; keeps packets for a
 * socket that is to come, is being restored (TCP_REPAIR) or is frozen; lets no SYN through, as this host must not answer
 * for the address. Outwards: silences frozen sockets. Both write down which connections live, and tell when one ends.
 *
 * Packets come as the kernel has merged them (GRO), headers perhaps not in the linear part. Merged packets above 64 KB
 * (IPv6 jumbograms, `gro_max_size` raised) are not looked at. */
#include "node_accept.h"
#include "node_maps.h"
#include "node_tunnel.h"
#include "stack_cookie.h"
#include <bpf/bpf_core_read.h>
#include <linux/if_packet.h>

#define HEADERS_BYTES_MAX (L4_AT_V6 + TCP_HEADER_BYTES_MAX)

/* Packets of a restored socket that are nowhere near what it expects belong to a connection that is to come. A window is
 * at most 1 GB, in practice far below these. */
#define STALE_BYTES (64 << 20)
#define STALE_TIME_WAIT_BYTES (1 << 20)

/* A FIN counts if it has arrived before, or what stands between it and the bytes that the socket has read may be in the
 * socket's backlog. */
#define FIN_AHEAD_BYTES (1 << 20)

#define WAIT_NS 1000000ULL            /* how long a packet goes to the end of the line */
#define WAITS_MAX 64                  /* and how often, all packets of a connection together */
#define ACCEPT_NS 1000000000ULL       /* how long a connection without a socket may be one that a full listener refused */
#define STRAY_AGAIN_NS 150000000ULL   /* a packet sent again comes later than this: RTO is at least 200 ms */
#define STRAY_FORGET_NS 60000000000ULL

static __always_inline enum parsed read_packet(struct __sk_buff *skb, struct packet *p) {
    __u32 want = skb->len < HEADERS_BYTES_MAX ? skb->len : HEADERS_BYTES_MAX;
    if (skb->data_end - skb->data < want)
        bpf_skb_pull_data(skb, want);
    return packet_parse((void *)(long)skb->data, (void *)(long)skb->data_end, p);
}

static __always_inline struct bpf_sock *socket_of(struct __sk_buff *skb, const struct packet *p) {
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

/* The connection has begun, but what makes its socket is still on the way: the kernel takes packets through its layers
 * in batches, so the next ones can come here before. They go to the end of the line, a few times; then the client has to
 * send them again. */
static __always_inline int wait(struct __sk_buff *skb, struct conn *conn) {
    if (bpf_ktime_get_ns() - conn->opened_ns > WAIT_NS || __sync_fetch_and_add(&conn->waits, 1) >= WAITS_MAX)
        return VERDICT_DROP;
    return bpf_redirect(skb->ifindex, BPF_F_INGRESS);
}

/* Whether the packet is of the connection that is written down, and not its first. */
static __always_inline int follows(const struct packet *p, const struct conn *conn) {
    return p->seq - conn->first_seq < STALE_BYTES;
}

/* Whether the packet is one behind the first of a client without timestamps: it proves no cookie, and must not count among
 * the bad ones. */
static __always_inline int is_plain_next(const struct packet *p, const struct conn *conn) {
    return !((p->ack - 1) & COOKIE_TIMESTAMPS) && p->seq != conn->first_seq && follows(p, conn);
}

/* Whether a packet is the first in a while for a connection that is not known. It may have overtaken the one that makes
 * it known: a RST would cut a good connection. If it was none, the client sends it again and gets the RST then. */
static __always_inline int is_first_stray(const struct flow_key *key) {
    __u64 now = bpf_ktime_get_ns();
    __u64 *since = bpf_map_lookup_elem(&strays, key);
    if (since && now - *since > STRAY_AGAIN_NS && now - *since < STRAY_FORGET_NS)
        return 0;
    if (!since || now - *since >= STRAY_FORGET_NS)
        bpf_map_update_elem(&strays, key, &now, BPF_ANY);
    return 1;
}

/* No socket has this connection. */
static __always_inline int without_socket(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
                                          __u32 flags) {
    struct conn *conn = bpf_map_lookup_elem(&conns, key);
    /* A packet with another sequence number is forged or late. The stack would answer it with a RST that has the number which the
     * client expects, and so cut the connection before its socket exists. */
    if (conn && (conn->flags & (CONN_COOKIE | CONN_ENDED)) == CONN_COOKIE &&
        bpf_ktime_get_ns() - conn->opened_ns < ACCEPT_NS)
        return follows(p, conn) ? wait(skb, conn) : VERDICT_DROP;
    if (flags & SERVICE_STASH)
        return stash(skb, key, 0);
    if (!(flags & SERVICE_COOKIE))
        return flags & SERVICE_GRACE ? VERDICT_DROP : VERDICT_NEXT;
    count(COUNT_REFUSED);
    if (flags & SERVICE_GRACE)
        return VERDICT_DROP;
    /* Where the stack answers SYNs too, it may have done so with a cookie of its own. */
    return !(flags & SERVICE_SYNS) && is_first_stray(key) ? VERDICT_DROP : VERDICT_NEXT;
}

/* The listener accepts the connection of this packet, which proves its cookie. */
static __always_inline int accept(struct __sk_buff *skb, const struct packet *p, struct sock *listener) {
    struct bpf_tcp_req_attrs attributes = {};
    cookie_attributes(skb, p, &attributes);
    int error = -EINVAL;
    if (bpf_sk_assign_tcp_reqsk)
        error = bpf_sk_assign_tcp_reqsk(skb, listener, &attributes, sizeof(attributes));
    if (!error)
        return 0;
    count(COUNT_REFUSED);
    /* Without memory the client may try again. Any other reason lasts: the stack resets the connection at once. */
    return error == -ENOMEM ? VERDICT_DROP : VERDICT_NEXT;
}

/* A listener, or nothing, has the packet's addresses. `skc` is released. */
static __always_inline int at_listener(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
                                       __u32 flags, struct bpf_sock *skc) {
    struct conn *conn = bpf_map_lookup_elem(&conns, key);
    int is_next = conn && (conn->flags & (CONN_COOKIE | CONN_ENDED)) == CONN_COOKIE && is_plain_next(p, conn) &&
                  bpf_ktime_get_ns() - conn->opened_ns < ACCEPT_NS;
    if (!skc || !(flags & SERVICE_COOKIE) || is_next || !cookie_proves(skb, p, ADDRESSES_FREE)) {
        int is_stacks = skc && flags & SERVICE_SYNS && stack_cookie(skc, p);
        if (skc)
            bpf_sk_release(skc);
        return is_stacks ? VERDICT_NEXT : without_socket(skb, p, key, flags);
    }
    int ended = conn && conn->flags & CONN_ENDED && conn->flags & CONN_COOKIE && conn->first_seq == p->seq;
    struct sock *listener = (struct sock *)bpf_skc_to_tcp_sock(skc);
    /* A late copy of a first segment must not have the request answered twice. */
    if (ended || !listener || is_overtaken(skb, p, conn)) {
        bpf_sk_release(skc);
        count(COUNT_REFUSED);
        return flags & SERVICE_GRACE ? VERDICT_DROP : VERDICT_NEXT;
    }
    int refused = accept(skb, p, listener);
    bpf_sk_release(skc);
    if (refused)
        return refused;
    count(COUNT_ACCEPTED);
    conn_begin(skb, key, p, CONN_COOKIE | (p->flags & TCP_FIN ? CONN_CLIENT_FIN : 0));
    return VERDICT_NEXT;
}

/* Notes what a packet says about the end of its connection. A RST or FIN that the socket will not believe must not count
 * either. The RST on its way to a predecessor says nothing about this connection. */
static __always_inline void note_end(const struct packet *p, const struct flow_key *key, struct conn *conn,
                                     __u32 expected) {
    if (conn->flags & (CONN_KILLING | CONN_ENDED))
        return;
    if (p->flags & TCP_RST && p->seq == expected)
        conn_end(key, conn);
    else if (p->flags & TCP_FIN && p->seq + p->payload_bytes + 1 - expected <= FIN_AHEAD_BYTES)
        conn_fin(key, conn, CONN_CLIENT_FIN);
}

/* A connection that has ended lingers on the packet's addresses, or one whose server has closed and whose client has not:
 * the kernel keeps both in the same small form. `skc` is released. */
static __always_inline int at_time_wait(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
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
    /* If the server has closed before its client, the kernel believes any RST in the window here, not only an exact one (RFC 5961
     * section 3.2). The socket would vanish, no end would be told, and the client's FIN would never be acknowledged. */
    if (p->flags & TCP_RST && p->seq != expected) {
        count(COUNT_INEXACT_END);
        return VERDICT_DROP;
    }
    /* Of a client that has all of the reply and its end, whose own last packets were lost, or what acknowledged them: it
     * sends them again until they are acknowledged. */
    int is_again = p->flags & TCP_ACK && p->ack == sent;
    if (p->seq == expected || is_again || p->flags & TCP_RST)
        return VERDICT_NEXT;
    struct timestamps ts = {};
    int newer = timestamps_read(skb, p, &ts) && ts_recent && (__s32)(ts.value - ts_recent) > 0;
    int is_next = conn && conn->flags & CONN_KILLING && is_plain_next(p, conn);
    if (flags & SERVICE_COOKIE && !is_next && cookie_proves(skb, p, ADDRESSES_FREE)) {
        if (!begins_another(skb, p, conn, expected, newer))
            return VERDICT_NEXT;
        conn_begin(skb, key, p, CONN_KILLING);
        return stale_kill(skb, p, expected);
    }
    if (conn && conn->flags & CONN_KILLING && follows(p, conn))
        return wait(skb, conn);
    /* All that the old client sent is there, so nothing of it lies behind. */
    if (flags & SERVICE_STASH) {
        __s32 ahead = p->seq - expected;
        if (ahead > 0 || ahead < -STALE_TIME_WAIT_BYTES || newer)
            return stash(skb, key, 0);
    }
    return VERDICT_NEXT;
}

/* Notes that a connection lives, or ends. */
static __always_inline void note(const struct packet *p, const struct flow_key *key, __u32 state, __u32 expected) {
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

/* A socket has the packet's addresses. `skc` is released. */
static __always_inline int at_socket(struct __sk_buff *skb, const struct packet *p, const struct flow_key *key,
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
        if (cookie_proves(skb, p, ADDRESSES_KNOWN)) {
            if (begins_another(skb, p, conn, expected, 0)) {
                conn_begin(skb, key, p, CONN_KILLING);
                return stale_kill(skb, p, expected);
            }
        } else if (conn && conn->flags & CONN_KILLING && follows(p, conn)) {
            return wait(skb, conn);
        }
    }
    if (flags & SERVICE_STASH && p->seq - expected + STALE_BYTES >= 2U * STALE_BYTES)
        return stash(skb, key, 0);
    note(p, key, state, expected);
    return VERDICT_NEXT;
}

static __always_inline void key_of(struct flow_key *key, const __u8 client[16], __be16 port_be, __u16 service) {
    __builtin_memcpy(key->client, client, 16);
    key->client_port_be = port_be;
    key->service = service;
}

SEC("tc")
int node_ingress(struct __sk_buff *skb) {
    struct packet p = {};
    struct flow_key key;
    /* Somebody else's, which the interface hears because it listens to all, or the network floods it. */
    if (skb->pkt_type == PACKET_OTHERHOST)
        return VERDICT_NEXT;
    int opened = tunnel_open(skb);
    struct service *service = 0;
    if (opened != OPENED_BAD && read_packet(skb, &p) == PARSED_TCP)
        service = service_of(p.server, p.server_port_be);
    /* A tunnel carries packets for our services and what is said about them, nothing else. */
    if (opened == OPENED_BAD || (!service && opened == OPENED_TUNNEL && !is_too_big_of_service(skb))) {
        count(COUNT_MALFORMED);
        return VERDICT_DROP;
    }
    if (!service)
        return VERDICT_NEXT;
    __u32 flags = service->flags;
    key_of(&key, p.client, p.client_port_be, service->id);
    if ((p.flags & (TCP_SYN | TCP_ACK)) == TCP_SYN) {
        count(COUNT_SYN);
        return flags & SERVICE_SYNS ? VERDICT_NEXT : VERDICT_DROP;
    }
    if (bpf_map_lookup_elem(&frozen, &key))
        return stash(skb, &key, 1);
    struct bpf_sock *skc = socket_of(skb, &p);
    if (!skc)
        return at_listener(skb, &p, &key, flags, 0);
    __u32 state = skc->state;
    if (state == STATE_LISTEN)
        return at_listener(skb, &p, &key, flags, skc);
    if (state == STATE_TIME_WAIT)
        return at_time_wait(skb, &p, &key, flags, skc);
    if (state == STATE_NEW_SYN_RECV) {
        bpf_sk_release(skc);
        return VERDICT_NEXT;
    }
    return at_socket(skb, &p, &key, flags, skc, state);
}

SEC("tc")
int node_egress(struct __sk_buff *skb) {
    struct packet p = {};
    struct flow_key key;
    if (read_packet(skb, &p) != PARSED_TCP)
        return VERDICT_NEXT;
    /* Outwards the source is the service. */
    struct service *service = service_of(p.client, p.client_port_be);
    if (!service)
        return VERDICT_NEXT;
    key_of(&key, p.server, p.server_port_be, service->id);
    if (bpf_map_lookup_elem(&frozen, &key)) {
        count(COUNT_EGRESS_DROPPED);
        return VERDICT_DROP;
    }
    if (!(p.flags & (TCP_FIN | TCP_RST)))
        return VERDICT_NEXT;
    struct conn *conn = bpf_map_lookup_elem(&conns, &key);
    if (!conn && p.flags & TCP_FIN) {
        /* A restored socket may end before its client has sent anything here. */
        struct conn fresh = {.opened_ns = bpf_ktime_get_ns()};
        bpf_map_update_elem(&conns, &key, &fresh, BPF_NOEXIST);
        conn = bpf_map_lookup_elem(&conns, &key);
    }
    if (!conn || conn->flags & (CONN_KILLING | CONN_ENDED))
        return VERDICT_NEXT;
    if (p.flags & TCP_RST)
        conn_end(&key, conn);
    else
        conn_fin(&key, conn, CONN_NODE_FIN);
    return VERDICT_NEXT;
}

char _license[] SEC("license") = "GPL";
