/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Differences between XDP and tc. `xdp` is a constant at every call, so that each program keeps only one branch. */
#pragma once
#include <linux/pkt_cls.h>
#include "front_maps.h"

#define INLINE static __always_inline

INLINE void *frame_start(void *ctx, int xdp) {
    return xdp ? (void *)(long)((struct xdp_md *)ctx)->data : (void *)(long)((struct __sk_buff *)ctx)->data;
}

INLINE void *frame_end(void *ctx, int xdp) {
    return xdp ? (void *)(long)((struct xdp_md *)ctx)->data_end : (void *)(long)((struct __sk_buff *)ctx)->data_end;
}

/* Length of the frame, including fragments. */
INLINE __u32 frame_bytes(void *ctx, int xdp) {
    return xdp ? bpf_xdp_get_buff_len(ctx) : ((struct __sk_buff *)ctx)->len;
}

/* Whether the frame has at least this many bytes. Usually they are all in the linear part. */
INLINE int frame_holds(void *ctx, int xdp, __u32 bytes) {
    return frame_end(ctx, xdp) - frame_start(ctx, xdp) >= bytes || frame_bytes(ctx, xdp) >= bytes;
}

/* `bytes` must have bounds that the verifier knows. */
INLINE long frame_load(void *ctx, int xdp, __u32 at, void *to, __u32 bytes) {
    return xdp ? bpf_xdp_load_bytes(ctx, at, to, bytes) : bpf_skb_load_bytes(ctx, at, to, bytes);
}

INLINE long frame_store(void *ctx, int xdp, __u32 at, void *from, __u32 bytes) {
    return xdp ? bpf_xdp_store_bytes(ctx, at, from, bytes) : bpf_skb_store_bytes(ctx, at, from, bytes, 0);
}

INLINE int pass(int xdp) {
    return xdp ? XDP_PASS : TC_ACT_UNSPEC; /* UNSPEC: the hook's next program, then the stack */
}

INLINE int drop(int xdp) {
    return xdp ? XDP_DROP : TC_ACT_SHOT;
}

INLINE int send_by(void *ctx, int xdp, __u32 ifindex) {
    if (xdp)
        return ((struct xdp_md *)ctx)->ingress_ifindex == ifindex ? XDP_TX : bpf_redirect(ifindex, 0);
    return bpf_redirect(ifindex, 0);
}

INLINE int send_back(void *ctx, int xdp) {
    return xdp ? XDP_TX : bpf_redirect(((struct __sk_buff *)ctx)->ifindex, 0);
}

/* Bounds a length to 1 to `max` (a power of two less one, or checked by the caller). Written in assembly, because the
 * compiler would drop the check that the verifier needs. */
INLINE __u64 clamp(__u64 bytes, __u64 max) {
    asm volatile("if %0 > 0 goto +1\n %0 = 1\n if %0 <= %1 goto +1\n %0 = %1" : "+r"(bytes) : "r"(max));
    return bytes;
}
