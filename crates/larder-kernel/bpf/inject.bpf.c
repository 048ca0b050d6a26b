/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Attached to a TAP device of ours: the real interface receives everything that is written to the device. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* The real interface, set before loading. */
const volatile __u32 target_ifindex = 0;

SEC("tc")
int inject(struct __sk_buff *skb) {
    return bpf_redirect(target_ifindex, BPF_F_INGRESS);
}

char _license[] SEC("license") = "GPL";
