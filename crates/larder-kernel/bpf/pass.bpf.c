/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Lets every frame pass. A veth delivers packets that its peer sends back by XDP_TX only while an XDP program is
 * attached to it too (drivers/net/veth.c, veth_xdp_xmit). So this program is attached to the far end of a host's
 * link. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp") int pass(struct xdp_md *ctx) {
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
