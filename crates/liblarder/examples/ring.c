/* Four threads send requests to four nodes through one dispatcher, and print the share of each node.
 *
 *   cc -I include examples/ring.c -L DIR -llarder -lpthread -o ring
 *
 * DIR is the folder of liblarder.so: target/release after `cargo build --release -p liblarder`.
 */
#include "larder.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { THREADS = 4, NODES = 4, REQUESTS = 20000, IN_FLIGHT = 8, TARGETS = 5000 };

static const char config[] = "policy = \"lard-r\"\n"
                             "nodes = [\"a\", \"b\", \"c\", \"d\"]\n"
                             "[policies.lard]\n"
                             "t_high = 80\n";

typedef struct worker {
    larder_dispatcher *dispatcher;
    const larder_node *nodes;
    uint64_t random;
    unsigned long requests[NODES];
    unsigned long refused;
} worker;

static uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Ends the program if a call has failed. */
static int check(const char *call, int32_t code) {
    if (code < 0) {
        char message[512];
        if (larder_last_error(message, sizeof message, NULL) != LARDER_OK) {
            message[0] = 0;
        }
        fprintf(stderr, "%s: %d: %s\n", call, (int)code, message);
        exit(1);
    }
    return code;
}

/* Returns a target key; half of the requests are for a tenth of the targets. */
static void draw_key(worker *worker, char *key, size_t size) {
    worker->random ^= worker->random << 13;
    worker->random ^= worker->random >> 7;
    worker->random ^= worker->random << 17;
    uint64_t of = worker->random & 1 ? TARGETS / 10 : TARGETS;
    snprintf(key, size, "www.example.org/page%u", (unsigned)((worker->random >> 8) % of));
}

static void *work(void *argument) {
    worker *self = argument;
    larder_decision flying[IN_FLIGHT];
    uint64_t begun[IN_FLIGHT];
    memset(flying, 0, sizeof flying);
    memset(begun, 0, sizeof begun);
    for (int turn = 0; turn < REQUESTS; turn++) {
        int slot = turn % IN_FLIGHT;
        if (flying[slot].node != LARDER_NO_NODE) {
            uint64_t now = now_ns();
            larder_feedback feedback = {.elapsed_ns = now - begun[slot], .bytes = 1000, .status = 200};
            check("larder_done", larder_done(self->dispatcher, now, &flying[slot], &feedback));
        }
        char key[64];
        draw_key(self, key, sizeof key);
        larder_request request = {.key = key, .key_len = strlen(key)};
        begun[slot] = now_ns();
        if (check("larder_decide", larder_decide(self->dispatcher, begun[slot], &request, &flying[slot])) != LARDER_OK) {
            self->refused++;
            continue;
        }
        for (int node = 0; node < NODES; node++) {
            self->requests[node] += self->nodes[node] == flying[slot].node;
        }
    }
    for (int slot = 0; slot < IN_FLIGHT; slot++) {
        if (flying[slot].node != LARDER_NO_NODE) {
            check("larder_done", larder_done(self->dispatcher, now_ns(), &flying[slot], NULL));
        }
    }
    return NULL;
}

static void print_shares(const worker *workers, const char *const *names) {
    unsigned long sums[NODES] = {0}, all = 0, refused = 0;
    for (int thread = 0; thread < THREADS; thread++) {
        refused += workers[thread].refused;
        for (int node = 0; node < NODES; node++) {
            sums[node] += workers[thread].requests[node];
            all += workers[thread].requests[node];
        }
    }
    for (int node = 0; node < NODES; node++) {
        printf("node=%s requests=%lu share=%.1f%%\n", names[node], sums[node], 100.0 * (double)sums[node] / (double)all);
    }
    printf("refused=%lu\n", refused);
}

static void print_explanation(const larder_dispatcher *dispatcher) {
    static const char key[] = "www.example.org/page1";
    larder_request request = {.key = key, .key_len = sizeof key - 1};
    uint64_t now = now_ns();
    size_t size = 0;
    check("larder_explain", larder_explain(dispatcher, now, &request, NULL, 0, &size));
    char *json = malloc(size);
    if (json == NULL) {
        exit(1);
    }
    check("larder_explain", larder_explain(dispatcher, now, &request, json, size, &size));
    printf("%s\n", json);
    free(json);
}

/* Starts a second dispatcher with the learned state of the first. */
static void hand_on(const larder_dispatcher *dispatcher) {
    size_t size = 0;
    check("larder_snapshot_save", larder_snapshot_save(dispatcher, NULL, 0, &size));
    void *snapshot = malloc(size);
    larder_dispatcher *next = NULL;
    uint64_t targets = 0;
    if (snapshot == NULL) {
        exit(1);
    }
    check("larder_snapshot_save", larder_snapshot_save(dispatcher, snapshot, size, &size));
    check("larder_create", larder_create(config, sizeof config - 1, &next));
    check("larder_snapshot_load", larder_snapshot_load(next, snapshot, size, &targets));
    printf("restored=%llu\n", (unsigned long long)targets);
    larder_destroy(next);
    free(snapshot);
}

int main(void) {
    static const char *const names[NODES] = {"a", "b", "c", "d"};
    larder_dispatcher *dispatcher = NULL;
    larder_node nodes[NODES];
    worker workers[THREADS];
    pthread_t threads[THREADS];
    if (larder_abi_version() != LARDER_ABI_VERSION) {
        fprintf(stderr, "liblarder has another version than larder.h\n");
        return 1;
    }
    check("larder_create", larder_create(config, sizeof config - 1, &dispatcher));
    for (int node = 0; node < NODES; node++) {
        check("larder_node_find", larder_node_find(dispatcher, names[node], strlen(names[node]), &nodes[node]));
    }
    memset(workers, 0, sizeof workers);
    for (int thread = 0; thread < THREADS; thread++) {
        workers[thread].dispatcher = dispatcher;
        workers[thread].nodes = nodes;
        workers[thread].random = 88172645463325252u + (uint64_t)thread * 7919u;
        if (pthread_create(&threads[thread], NULL, work, &workers[thread]) != 0) {
            return 1;
        }
    }
    /* Membership changes while requests run. */
    larder_node_spec spec = {.name = "e", .name_len = 1, .weight_milli = 500};
    larder_node extra = LARDER_NO_NODE;
    check("larder_node_add", larder_node_add(dispatcher, now_ns(), &spec, &extra));
    check("larder_node_set_state", larder_node_set_state(dispatcher, now_ns(), extra, LARDER_NODE_DRAINING));
    for (int thread = 0; thread < THREADS; thread++) {
        pthread_join(threads[thread], NULL);
    }
    check("larder_node_set_state", larder_node_set_state(dispatcher, now_ns(), extra, LARDER_NODE_REMOVED));
    print_shares(workers, names);
    print_explanation(dispatcher);
    hand_on(dispatcher);
    larder_destroy(dispatcher);
    return 0;
}
