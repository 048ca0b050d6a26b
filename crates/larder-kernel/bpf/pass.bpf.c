/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Lets every frame pass. A veth delivers what its peer sends back by XDP_TX only while a program is attached on it too
 * (drivers/net/veth.c, veth_xdp_xmit), so this one stands at the far end of a host's wire. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("xdp") int pass(struct xdp_md *ctx) {
    return XDP_PASS;
}

char _license[] SEC("license") = "GPL";
