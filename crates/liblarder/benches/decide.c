/* Nanoseconds of larder_decide and larder_done together; see decide.rs. */
#include "larder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { TARGETS = 1000000, REQUESTS = 2000000, PER_NODE = 10, NODES_MAX = 1000 };

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static uint64_t mix(uint64_t z) {
    z += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
}

/* Runs requests and returns the nanoseconds of each. Time passes at 100,000 requests per second. */
static double run(larder_dispatcher *d, int nodes, uint64_t from, uint64_t requests, int by_random) {
    static larder_decision flying[NODES_MAX * PER_NODE];
    const larder_feedback feedback = {.elapsed_ns = 1000000, .status = 200, .cache = LARDER_CACHE_HIT};
    uint64_t room = (uint64_t)nodes * PER_NODE, began = now_ns();
    memset(flying, 0, sizeof flying);
    for (uint64_t turn = from; turn < from + requests; turn++) {
        larder_decision *slot = &flying[turn % room];
        if (slot->node != LARDER_NO_NODE && larder_done(d, turn * 10000, slot, &feedback) != LARDER_OK) {
            exit(1);
        }
        larder_request request = {.target = mix(by_random ? mix(turn) % TARGETS : turn % TARGETS)};
        if (larder_decide(d, turn * 10000, &request, slot) != LARDER_OK) {
            exit(1);
        }
    }
    double each = (double)(now_ns() - began) / (double)requests;
    for (uint64_t slot = 0; slot < room; slot++) {
        if (flying[slot].node != LARDER_NO_NODE && larder_done(d, (from + requests) * 10000, &flying[slot], NULL)) {
            exit(1);
        }
    }
    return each;
}

int main(void) {
    static const char *const policies[] = {"bounded", "maglev", "least-conn", "lard", "lard-r", "lard-cost"};
    static const int sizes[] = {16, NODES_MAX};
    static char config[32768];
    printf("%-12s %6s %8s\n", "policy", "nodes", "ns");
    for (size_t policy = 0; policy < sizeof policies / sizeof *policies; policy++) {
        for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
            int used = snprintf(config, sizeof config, "policy = \"%s\"\nnodes = [", policies[policy]);
            for (int node = 0; node < sizes[size]; node++) {
                used += snprintf(config + used, sizeof config - (size_t)used, "\"n%d\", ", node);
            }
            used += snprintf(config + used, sizeof config - (size_t)used, "]\n[admission]\nlimit = \"unlimited\"\n");
            larder_dispatcher *d = NULL;
            if (larder_create(config, (size_t)used, &d) != LARDER_OK) {
                return 1;
            }
            run(d, sizes[size], 0, TARGETS, 0);
            printf("%-12s %6d %8.0f\n", policies[policy], sizes[size], run(d, sizes[size], TARGETS, REQUESTS, 1));
            larder_destroy(d);
        }
    }
    return 0;
}
