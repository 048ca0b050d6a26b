/* A cheap HTTP/1.1 client: many connections, one thread, little CPU of its own. See README.md.
 *
 *   load ADDRESS PORT CONNECTIONS SECONDS (close|keep|N) RATE (each|turn) PATH...
 *
 * close: one request a connection, which says so; keep: the same connection for all; N: the client closes after N requests
 * without having said so. RATE: requests a second, started by the clock
 * whatever the answers do (0: as many as the connections allow). each: a connection keeps to one path; turn: requests
 * take the paths in turn. A single PATH of the form @FILE names a file with a path a line.
 *
 * Writes one line of JSON. A request counts as done when its whole body has come, and with "close" the server's FIN too.
 * Latency runs from the start of connect (close), of the request (keep), or from when it was due (RATE). */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define CONNECTIONS_MAX 16384
#define STALL_NS 10000000000ull /* a request without a byte for so long has failed */
#define SUB 64                  /* latency buckets in a power of two: 1.6 % wide */

enum state { RESTS, CONNECTS, WAITS };

struct connection {
    int fd;
    enum state state;
    char *path;
    uint64_t began_ns, moved_ns;
    int64_t left; /* of the body; -1: the head is not whole yet */
    int head_bytes, asked;
    char head[1024];
};

static struct connection *connections;
static char **paths;
static long paths_count, next_path;
static struct sockaddr_in server;
static int epoll_fd, connections_count, keep, requests, by_turn, busy;
static uint64_t buckets[64 * SUB], done, refused, reset, cut, status, stalled, bytes;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* Below 2 * SUB ns the bucket is the value; above, SUB buckets for each power of two. */
static int bucket_of(uint64_t ns) {
    int shift = ns < 2 * SUB ? 0 : 57 - __builtin_clzll(ns);
    return shift * SUB + (ns >> shift);
}

static double latency_us(double share) {
    uint64_t wanted = share * done, seen = 0;
    for (int i = 0; i < 64 * SUB; i++) {
        seen += buckets[i];
        if (seen > wanted || (seen == done && done)) {
            int shift = i < 2 * SUB ? 0 : i / SUB - 1;
            return (double)((uint64_t)(i - shift * SUB) << shift) / 1e3;
        }
    }
    return 0;
}

static void watch(struct connection *c, int operation, uint32_t events) {
    struct epoll_event e = {.events = events, .data.ptr = c};
    epoll_ctl(epoll_fd, operation, c->fd, &e);
}

static void finish(struct connection *c, int keeps) {
    if (!keeps) {
        close(c->fd);
        c->fd = -1;
    }
    c->state = RESTS;
    busy--;
}

static void fail(struct connection *c, uint64_t *why) {
    ++*why;
    finish(c, 0);
}

static void ask(struct connection *c) {
    char text[2048];
    int n = snprintf(text, sizeof text,
                     "GET %s HTTP/1.1\r\nHost: www.example.com\r\nUser-Agent: load\r\nAccept: */*\r\n%s\r\n", c->path,
                     keep ? "" : "Connection: close\r\n");
    c->left = -1;
    c->head_bytes = 0;
    c->state = WAITS;
    if (send(c->fd, text, n, MSG_NOSIGNAL) != n)
        fail(c, &reset);
}

static void start(struct connection *c, uint64_t due_ns, uint64_t at_ns) {
    c->path = paths[by_turn ? next_path++ % paths_count : (c - connections) % paths_count];
    c->began_ns = due_ns;
    c->moved_ns = at_ns;
    busy++;
    if (c->fd >= 0) {
        ask(c);
        return;
    }
    c->asked = 0;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    c->state = CONNECTS;
    if (c->fd < 0 || (connect(c->fd, (void *)&server, sizeof server) && errno != EINPROGRESS)) {
        fail(c, &refused);
        return;
    }
    watch(c, EPOLL_CTL_ADD, EPOLLOUT);
}

static void complete(struct connection *c, uint64_t at_ns) {
    done++;
    buckets[bucket_of(at_ns > c->began_ns ? at_ns - c->began_ns : 0)]++;
    c->asked++;
    finish(c, keep && c->asked != requests);
}

/* Takes bytes of the reply. Returns 0 if it cannot be used. */
static int take(struct connection *c, char *data, ssize_t n) {
    if (c->left < 0) {
        ssize_t room = sizeof c->head - 1 - c->head_bytes, some = n < room ? n : room;
        int before = c->head_bytes;
        memcpy(c->head + before, data, some);
        c->head_bytes += some;
        c->head[c->head_bytes] = 0;
        char *end = strstr(c->head, "\r\n\r\n");
        if (!end)
            return c->head_bytes < (int)sizeof c->head - 1;
        char *length = strcasestr(c->head, "\r\ncontent-length:");
        if (strncmp(c->head + 8, " 200", 4) || !length)
            return 0;
        c->left = atoll(length + 17);
        n -= end + 4 - c->head - before;
    }
    c->left -= n;
    return c->left >= 0;
}

static void readable(struct connection *c, uint64_t at_ns) {
    static char data[1 << 18];
    if (c->state == RESTS) { /* the server gave up a kept connection */
        close(c->fd);
        c->fd = -1;
        return;
    }
    for (int turns = 0; turns < 8; turns++) {
        ssize_t n = recv(c->fd, data, sizeof data, 0);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n < 0)
            return fail(c, &reset);
        if (n == 0) {
            if (c->left == 0)
                return complete(c, at_ns);
            return fail(c, &cut);
        }
        bytes += n;
        c->moved_ns = at_ns;
        if (!take(c, data, n))
            return fail(c, &status);
        if (c->left == 0 && keep)
            return complete(c, now_ns());
    }
}

static void event(struct epoll_event *e, uint64_t at_ns) {
    struct connection *c = e->data.ptr;
    if (c->fd < 0)
        return;
    if (c->state != CONNECTS)
        return readable(c, at_ns);
    if (e->events & (EPOLLERR | EPOLLHUP))
        return fail(c, &refused);
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    ask(c);
}

static void read_paths(int count, char **given) {
    paths = given;
    paths_count = count;
    if (count != 1 || given[0][0] != '@')
        return;
    FILE *file = fopen(given[0] + 1, "r");
    char line[1024];
    if (!file) {
        perror(given[0] + 1);
        exit(1);
    }
    paths = NULL;
    paths_count = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (paths_count % 4096 == 0)
            paths = realloc(paths, (paths_count + 4096) * sizeof *paths);
        paths[paths_count++] = strdup(line);
    }
    fclose(file);
}

/* Starts what is due, as far as there are connections. */
static uint64_t start_due(uint64_t started, uint64_t began, uint64_t at, double rate) {
    static int cursor;
    uint64_t due = rate > 0 ? (uint64_t)((at - began) * 1e-9 * rate) + 1 : UINT64_MAX;
    for (int looked = 0; looked < connections_count && busy < connections_count && started < due; looked++) {
        struct connection *c = &connections[cursor];
        cursor = (cursor + 1) % connections_count;
        if (c->state != RESTS)
            continue;
        start(c, rate > 0 ? began + (uint64_t)(started / rate * 1e9) : at, at);
        started++;
    }
    return started;
}

int main(int count, char **args) {
    if (count < 9) {
        fprintf(stderr, "usage: load ADDRESS PORT CONNECTIONS SECONDS close|keep|N RATE each|turn PATH...\n");
        return 2;
    }
    connections_count = atoi(args[3]);
    double seconds = atof(args[4]), rate = atof(args[6]);
    requests = atoi(args[5]); /* 0: no limit */
    keep = requests || !strcmp(args[5], "keep");
    by_turn = !strcmp(args[7], "turn");
    read_paths(count - 8, args + 8);
    server = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(atoi(args[2]))};
    if (connections_count < 1 || connections_count > CONNECTIONS_MAX || paths_count < 1 ||
        inet_pton(AF_INET, args[1], &server.sin_addr) != 1 || seconds <= 0 || seconds > 600)
        return 2;
    struct rlimit files = {CONNECTIONS_MAX + 64, CONNECTIONS_MAX + 64};
    setrlimit(RLIMIT_NOFILE, &files);
    signal(SIGPIPE, SIG_IGN);
    connections = calloc(connections_count, sizeof *connections);
    for (int i = 0; i < connections_count; i++)
        connections[i].fd = -1;
    epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    uint64_t began = now_ns(), end = began + seconds * 1e9, at = began, started = 0, looked = began;
    while ((at < end || busy) && at < end + STALL_NS + 1000000000) {
        if (at < end)
            started = start_due(started, began, at, rate);
        struct epoll_event events[256];
        double wait_ms = rate > 0 && at < end ? (started / rate * 1e9 - (at - began)) / 1e6 : 100;
        int n = epoll_wait(epoll_fd, events, 256, busy < connections_count && wait_ms < 100 ? (int)(wait_ms > 0 ? wait_ms : 0) : 100);
        at = now_ns();
        for (int i = 0; i < n; i++)
            event(&events[i], at);
        if (at - looked > 1000000000) {
            looked = at;
            for (int i = 0; i < connections_count; i++)
                if (connections[i].state != RESTS && at > connections[i].moved_ns + STALL_NS)
                    fail(&connections[i], &stalled);
        }
    }
    stalled += busy;
    double wall = (now_ns() - began) / 1e9;
    printf("{\"done\": %lu, \"refused\": %lu, \"reset\": %lu, \"cut\": %lu, \"status\": %lu, \"stalled\": %lu, "
           "\"bytes\": %lu, \"seconds\": %.4f, \"p50_us\": %.1f, \"p90_us\": %.1f, \"p99_us\": %.1f, \"p999_us\": %.1f, "
           "\"max_us\": %.1f}\n",
           done, refused, reset, cut, status, stalled, bytes, wall, latency_us(0.5), latency_us(0.9), latency_us(0.99),
           latency_us(0.999), latency_us(0.9999999));
    return 0;
}
