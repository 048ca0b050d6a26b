/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The difference between XDP and tc. `xdp` is a constant wherever these are used, so each program keeps one branch. */
#pragma once
#include <linux/pkt_cls.h>
#include "front_maps.h"

#define IN static __always_inline

IN void *frame_start(void *ctx, int xdp) {
    return xdp ? (void *)(long)((struct xdp_md *)ctx)->data : (void *)(long)((struct __sk_buff *)ctx)->data;
}

IN void *frame_end(void *ctx, int xdp) {
    return xdp ? (void *)(long)((struct xdp_md *)ctx)->data_end : (void *)(long)((struct __sk_buff *)ctx)->data_end;
}

/* All of the frame, fragments included. */
IN __u32 frame_bytes(void *ctx, int xdp) {
    return xdp ? bpf_xdp_get_buff_len(ctx) : ((struct __sk_buff *)ctx)->len;
}

/* Whether the frame has so many bytes; most have them where the program can see them. */
IN int frame_holds(void *ctx, int xdp, __u32 bytes) {
    return frame_end(ctx, xdp) - frame_start(ctx, xdp) >= bytes || frame_bytes(ctx, xdp) >= bytes;
}

/* `bytes` has bounds that the verifier knows. */
IN long frame_load(void *ctx, int xdp, __u32 at, void *to, __u32 bytes) {
    return xdp ? bpf_xdp_load_bytes(ctx, at, to, bytes) : bpf_skb_load_bytes(ctx, at, to, bytes);
}

IN long frame_store(void *ctx, int xdp, __u32 at, void *from, __u32 bytes) {
    return xdp ? bpf_xdp_store_bytes(ctx, at, from, bytes) : bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

IN int pass(int xdp) {
    return xdp ? XDP_PASS : TC_ACT_UNSPEC; /* UNSPEC: on to the next program of the hook, then the stack */
}

IN int drop(int xdp) {
    return xdp ? XDP_DROP : TC_ACT_SHOT;
}

IN int send_by(void *ctx, int xdp, __u32 ifindex) {
    if (xdp)
        return ((struct xdp_md *)ctx)->ingress_ifindex == ifindex ? XDP_TX : bpf_redirect(ifindex, 0);
    return bpf_redirect(ifindex, 0);
}

IN int send_back(void *ctx, int xdp) {
    return xdp ? XDP_TX : bpf_redirect(((struct __sk_buff *)ctx)->ifindex, 0);
}

/* Keeps a length within 1 to `max` (a power of two less one, or checked by the caller) where the compiler would
 * otherwise drop the check that the verifier needs. */
IN __u64 clamp(__u64 bytes, __u64 max) {
    asm volatile("if %0 > 0 goto +1\n %0 = 1\n if %0 <= %1 goto +1\n %0 = %1" : "+r"(bytes) : "r"(max));
    return bytes;
}
