/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* Counters of the programs: enum counter of abi.h, per processor. */
#pragma once
#include "abi.h"
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
    __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
    __uint(max_entries, COUNT_MAX);
    __type(key, __u32);
    __type(value, __u64);
} counters SEC(".maps");

static __always_inline void count(enum counter which) {
    __u32 key = which;
    __u64 *value = bpf_map_lookup_elem(&counters, &key);
    if (value)
        *value += 1;
}
