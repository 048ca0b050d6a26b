/* A second simulator of LARD's cluster (Pai et al., ASPLOS'98, section 3.1), written from the paper's description alone.
 *
 * It shares no code with larder, so that an error in one of the two shows as a difference. `run.py` compares them.
 *
 *     replica POLICY NODES MEMORY < TRACE
 *
 * POLICY is wrr, lard or lard-r, and MEMORY is the cache of each node in bytes. TRACE has one line per request, with the
 * number of its target, counted from 0, and its size in bytes: "17 4096". The output is one line of JSON.
 *
 * The model: a front-end that costs nothing keeps S requests outstanding. A node has one processor and one disk, each
 * a queue served in order of arrival, and a cache of whole files under Greedy-Dual-Size. A request takes the processor
 * for the connection, is looked up, and is transmitted. On a miss, the disk reads blocks of 44 KB, and each block is
 * transmitted once it is read. Requests for a file that is being read wait for that read.
 *
 * What the paper leaves open: nodes with equal load are taken in turns, the cache takes a file when its last block is
 * read, and requests that wait for another's read transmit the whole file after it. They count as hits: the output's
 * miss ratio is disk reads of files per request.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { T_LOW = 25, T_HIGH = 65, NODES_MAX = 64, NONE = -1 };

/* Times in microseconds (section 3.1, figure 4). */
static const double CONNECT = 145, TEARDOWN = 145, TRANSMIT = 40, FIRST_SEEK = 28000, NEXT_SEEK = 14000, TRANSFER = 410;
static const double DECAY = 20e6; /* K of LARD/R */
static const uint64_t TRANSMIT_UNIT = 512, TRANSFER_UNIT = 4096, BLOCK = 44 * 1024;

static void fail(const char *problem) {
    fprintf(stderr, "replica: %s\n", problem);
    exit(2);
}

static void *grow(void *memory, size_t bytes) {
    memory = realloc(memory, bytes);
    if (!memory) fail("out of memory");
    return memory;
}

static void *zeroed(size_t count, size_t bytes) {
    void *memory = calloc(count, bytes);
    if (!memory) fail("out of memory");
    return memory;
}

static uint64_t units(uint64_t bytes, uint64_t unit) { return (bytes + unit - 1) / unit; }

/* ---- Trace ---- */

static uint32_t *request_target, targets;
static uint64_t *target_size;
static size_t requests;

static void read_trace(void) {
    size_t room = 0, target_room = 0;
    unsigned long target, size;
    int fields;
    while ((fields = scanf("%lu %lu", &target, &size)) == 2) {
        if (target >= 1u << 28) fail("a target's number is too large");
        if (requests == room) request_target = grow(request_target, (room = room ? 2 * room : 1 << 20) * sizeof *request_target);
        request_target[requests++] = (uint32_t)target;
        if (target >= target_room) {
            size_t wanted = 2 * target + 1024;
            target_size = grow(target_size, wanted * sizeof *target_size);
            memset(target_size + target_room, 0, (wanted - target_room) * sizeof *target_size);
            target_room = wanted;
        }
        if (target >= targets) targets = (uint32_t)target + 1;
        target_size[target] = size;
    }
    if (fields != EOF || !requests) fail("the trace is empty or has a malformed line");
}

/* ---- Binary heap of (key, order, value); equal keys leave in order of arrival ---- */

struct item { double key; uint64_t order; uint32_t value, stamp; };
struct heap { struct item *items; size_t count, room; uint64_t order; };

static int before(const struct item *a, const struct item *b) {
    return a->key < b->key || (a->key == b->key && a->order < b->order);
}

static void push(struct heap *heap, double key, uint32_t value, uint32_t stamp) {
    if (heap->count == heap->room) heap->items = grow(heap->items, (heap->room = heap->room ? 2 * heap->room : 256) * sizeof *heap->items);
    struct item item = {key, heap->order++, value, stamp};
    size_t at = heap->count++;
    while (at && before(&item, &heap->items[(at - 1) / 2])) {
        heap->items[at] = heap->items[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap->items[at] = item;
}

static struct item pop(struct heap *heap) {
    struct item top = heap->items[0], last = heap->items[--heap->count];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < heap->count) {
        if (child + 1 < heap->count && before(&heap->items[child + 1], &heap->items[child])) child++;
        if (!before(&heap->items[child], &last)) break;
        heap->items[at] = heap->items[child];
        at = child;
    }
    heap->items[at] = last;
    return top;
}

/* ---- Nodes ---- */

struct waiting { uint32_t request; struct waiting *next; };

struct node {
    double cpu_free, disk_free;   /* when the queue is empty */
    uint64_t cached_bytes;
    double inflation;             /* L of Greedy-Dual-Size */
    struct heap values;           /* H of cached files; entries with an old stamp are void */
    uint32_t *stamp;              /* per target; 0 if not cached */
    struct waiting **reading;     /* per target; requests that wait for the read, the reader first */
    int load;
};

static struct node nodes[NODES_MAX];
static int node_count;
static uint64_t memory;
static uint32_t next_stamp = 1;

static void value_again(struct node *node, uint32_t target) {
    node->stamp[target] = next_stamp++;
    uint64_t size = target_size[target] ? target_size[target] : 1;
    push(&node->values, node->inflation + 1.0 / (double)size, target, node->stamp[target]);
}

static void store(struct node *node, uint32_t target) {
    if (target_size[target] > memory) return;
    while (node->cached_bytes + target_size[target] > memory) {
        struct item victim = pop(&node->values);
        if (node->stamp[victim.value] != victim.stamp) continue;
        node->inflation = victim.key;
        node->stamp[victim.value] = 0;
        node->cached_bytes -= target_size[victim.value];
    }
    node->cached_bytes += target_size[target];
    value_again(node, target);
}

/* ---- Policies ---- */

static int turn;

static int least_loaded(void) {
    int best = NONE;
    for (int i = 0; i < node_count; i++) {
        int at = (turn + i) % node_count;
        if (best == NONE || nodes[at].load < nodes[best].load) best = at;
    }
    turn = (best + 1) % node_count;
    return best;
}

static int overloaded(int node) {
    int spare = 0;
    for (int i = 0; i < node_count; i++) spare |= nodes[i].load < T_LOW;
    return (nodes[node].load > T_HIGH && spare) || nodes[node].load >= 2 * T_HIGH;
}

static int wrr(uint32_t target, double now) {
    (void)target, (void)now;
    return least_loaded();
}

static int *server; /* LARD: per target, the node + 1 */

static int lard(uint32_t target, double now) {
    (void)now;
    if (!server[target] || overloaded(server[target] - 1)) server[target] = least_loaded() + 1;
    return server[target] - 1;
}

struct set { int8_t members[NODES_MAX]; int count; double changed; };
static struct set *sets; /* LARD/R */

static int lard_r(uint32_t target, double now) {
    struct set *set = &sets[target];
    int n = NONE, changed = 0;
    for (int i = 0; i < set->count; i++)
        if (n == NONE || nodes[set->members[i]].load < nodes[n].load) n = set->members[i];
    if (n == NONE || overloaded(n)) {
        n = least_loaded();
        int known = 0;
        for (int i = 0; i < set->count; i++) known |= set->members[i] == n;
        if (!known) set->members[set->count++] = (int8_t)n, changed = 1;
    }
    if (set->count > 1 && now - set->changed > DECAY) {
        int most = NONE;
        for (int i = 0; i < set->count; i++)
            if (set->members[i] != n && (most == NONE || nodes[set->members[i]].load > nodes[set->members[most]].load)) most = i;
        set->members[most] = set->members[--set->count];
        changed = 1;
    }
    if (changed) set->changed = now;
    return n;
}

static const struct policy { const char *name; int (*place)(uint32_t, double); } POLICIES[] = {
    {"wrr", wrr}, {"lard", lard}, {"lard-r", lard_r},
};

/* ---- Requests ---- */

enum step { CONNECTED, BLOCK_READ, TRANSMITTED, CLOSED };

struct request {
    uint32_t target;
    int node;
    uint64_t unread;    /* bytes that the disk has not read */
    int transmitting;   /* blocks on the processor's queue */
};

static struct request *active; /* by slot; at most S */
static struct heap events;
static size_t arrived, ended, misses;
static double last_end;

static void on_cpu(uint32_t slot, double now, double takes, enum step then) {
    struct node *node = &nodes[active[slot].node];
    node->cpu_free = (node->cpu_free > now ? node->cpu_free : now) + takes;
    push(&events, node->cpu_free, slot, then);
}

static void transmit(uint32_t slot, double now, uint64_t bytes) {
    active[slot].transmitting++;
    on_cpu(slot, now, TRANSMIT * (double)units(bytes, TRANSMIT_UNIT), TRANSMITTED);
}

static void read_block(uint32_t slot, double now) {
    struct request *request = &active[slot];
    struct node *node = &nodes[request->node];
    uint64_t size = target_size[request->target], bytes = request->unread < BLOCK ? request->unread : BLOCK;
    double takes = (request->unread == size ? FIRST_SEEK : NEXT_SEEK) + TRANSFER * (double)units(bytes, TRANSFER_UNIT);
    node->disk_free = (node->disk_free > now ? node->disk_free : now) + takes;
    push(&events, node->disk_free, slot, BLOCK_READ);
}

static void look_up(uint32_t slot, double now) {
    struct request *request = &active[slot];
    struct node *node = &nodes[request->node];
    uint32_t target = request->target;
    if (node->stamp[target]) {
        value_again(node, target);
        transmit(slot, now, target_size[target]);
        return;
    }
    struct waiting *self = zeroed(1, sizeof *self), **end = &node->reading[target];
    int first = !*end;
    self->request = slot;
    while (*end) end = &(*end)->next;
    *end = self;
    if (first) {
        misses++;
        request->unread = target_size[target];
        read_block(slot, now);
    }
}

static void block_read(uint32_t slot, double now) {
    struct request *request = &active[slot];
    struct node *node = &nodes[request->node];
    uint64_t bytes = request->unread < BLOCK ? request->unread : BLOCK;
    request->unread -= bytes;
    transmit(slot, now, bytes);
    if (request->unread) {
        read_block(slot, now);
        return;
    }
    store(node, request->target);
    struct waiting *waiting = node->reading[request->target], *next;
    node->reading[request->target] = NULL;
    for (; waiting; waiting = next) {
        next = waiting->next;
        if (waiting->request != slot) transmit(waiting->request, now, target_size[request->target]);
        free(waiting);
    }
}

static void arrive(uint32_t slot, double now, int (*place)(uint32_t, double)) {
    if (arrived == requests) return;
    struct request *request = &active[slot];
    request->target = request_target[arrived++];
    request->node = place(request->target, now);
    request->unread = 0;
    nodes[request->node].load++;
    on_cpu(slot, now, CONNECT, CONNECTED);
}

int main(int count, char **arguments) {
    if (count != 4) fail("usage: replica POLICY NODES MEMORY < TRACE");
    const struct policy *policy = NULL;
    for (size_t i = 0; i < sizeof POLICIES / sizeof *POLICIES; i++)
        if (!strcmp(POLICIES[i].name, arguments[1])) policy = &POLICIES[i];
    node_count = atoi(arguments[2]);
    memory = strtoull(arguments[3], NULL, 10);
    if (!policy) fail("POLICY is wrr, lard or lard-r");
    if (node_count < 1 || node_count > NODES_MAX) fail("NODES is 1 to 64");
    read_trace();
    server = zeroed(targets, sizeof *server);
    sets = zeroed(targets, sizeof *sets);
    for (int i = 0; i < node_count; i++) {
        nodes[i].stamp = zeroed(targets, sizeof *nodes[i].stamp);
        nodes[i].reading = zeroed(targets, sizeof *nodes[i].reading);
    }
    uint32_t outstanding = (uint32_t)((node_count - 1) * T_HIGH + T_LOW - 1);
    active = zeroed(outstanding, sizeof *active);
    for (uint32_t slot = 0; slot < outstanding; slot++) arrive(slot, 0, policy->place);
    while (events.count) {
        struct item event = pop(&events);
        uint32_t slot = event.value;
        switch ((enum step)event.stamp) {
        case CONNECTED: look_up(slot, event.key); break;
        case BLOCK_READ: block_read(slot, event.key); break;
        case TRANSMITTED:
            if (--active[slot].transmitting == 0 && !active[slot].unread) on_cpu(slot, event.key, TEARDOWN, CLOSED);
            break;
        case CLOSED:
            nodes[active[slot].node].load--;
            ended++;
            last_end = event.key;
            arrive(slot, event.key, policy->place);
        }
    }
    printf("{\"requests\": %zu, \"throughput\": %.3f, \"miss_ratio\": %.6f}\n", ended, (double)ended / last_end * 1e6,
           (double)misses / (double)ended);
    return 0;
}
