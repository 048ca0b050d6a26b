/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* On a TAP device of ours: whatever is written to it is received by the real interface instead. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* The real interface; set before the program is loaded. */
const volatile __u32 target_ifindex = 0;

SEC("tc")
int inject(struct __sk_buff *skb) {
    return bpf_redirect(target_ifindex, BPF_F_INGRESS);
}

char _license[] SEC("license") = "GPL";
