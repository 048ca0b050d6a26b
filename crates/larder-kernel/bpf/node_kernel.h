/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Kernel types that the node program reads. Offsets are resolved when the program is loaded (CO-RE), so that one object
 * works on all kernels. Sources: include/net/sock.h, include/net/inet_timewait_sock.h, include/linux/tcp.h. */
#pragma once
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct sock_common {
    __u32 skc_tw_rcv_nxt;
    __u32 skc_tw_snd_nxt;
};

/* Defined, because the loader treats a mere declaration as a different type. */
struct sock {
    struct sock_common __sk_common;
};

struct inet_timewait_sock {
    struct sock_common __tw_common;
};

struct tcp_timewait_sock {
    struct inet_timewait_sock tw_sk;
    __u32 tw_ts_recent;
};

struct tcp_sock {
    __u32 rcv_nxt;
    __u8 repair : 1;
};

#pragma clang attribute pop

/* Attributes of an accepted connection (include/net/tcp.h, kernel 6.9). */
struct bpf_tcp_req_attrs {
    __u32 rcv_tsval;
    __u32 rcv_tsecr;
    __u16 mss;
    __u8 rcv_wscale;
    __u8 snd_wscale;
    __u8 ecn_ok;
    __u8 wscale_ok;
    __u8 sack_ok;
    __u8 tstamp_ok;
    __u8 usec_ts_ok;
    __u8 reserved[3];
};

/* Makes the listener `sk` accept the connection of this packet. Weak: without it the program still loads, but accepts
 * nothing. */
extern int bpf_sk_assign_tcp_reqsk(struct __sk_buff *skb, struct sock *sk, struct bpf_tcp_req_attrs *attrs,
                                   int attrs__sz) __ksym __weak;

/* Socket states, include/net/tcp_states.h. */
enum { STATE_ESTABLISHED = 1, STATE_FIN_WAIT1 = 4, STATE_FIN_WAIT2 = 5, STATE_TIME_WAIT = 6, STATE_CLOSE_WAIT = 8,
       STATE_LISTEN = 10, STATE_NEW_SYN_RECV = 12 };

/* Verdicts. With VERDICT_NEXT, the interface's other programs see the packet too; the last one leaves it to the
 * stack. */
#define VERDICT_NEXT (-1)
#define VERDICT_DROP 2

/* Flags of bpf_skb_adjust_room, kernel 6.3: kind of the header that becomes the outer one. */
#define DECAP_L3_IPV4 (1ULL << 7)
#define DECAP_L3_IPV6 (1ULL << 8)

#define EINVAL 22
#define ENOMEM 12
