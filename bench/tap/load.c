/* A load client that is fast enough not to be the limit: one thread, epoll.
 *
 *   load paced PORT CONNECTIONS SECONDS INTERVAL_US[/CHUNKS]   per-chunk latency of streams with CHUNKS (1) each INTERVAL_US
 *   load flood PORT CONNECTIONS SECONDS 0             chunks per second of streams as fast as they come
 *   load short PORT CONNECTIONS SECONDS THINK_US      requests per second and their latency; THINK_US between two
 *   load … REQUEST_FILE                               sends what is in this file instead of its own request
 *
 * Prints "counting" when every connection is open and a fifth of SECONDS has passed, after SECONDS more "counted", then one
 * JSON object, times in ns; then it waits for the end of its stdin. What the load costs is measured between the two words.
 * The latency of a chunk is the monotonic clock at its arrival less the one in it (both processes are on one machine).
 * Connections come from several loopback addresses, so that there are ports for them, and end with a reset, so that none
 * of them waits on in the kernel.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
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

#define CHUNK_WIRE_BYTES 226
#define MAX_SAMPLES (16u << 20)
#define MAX_FDS 65536
#define CONNECTIONS_AN_ADDRESS 8192

struct connection { uint64_t asked_ns, wake_ns; int waiting; };
static struct connection connections[MAX_FDS];
static uint32_t *samples;
static size_t sample_count;
static uint64_t bytes, requests, errors;
static char request[4096];

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void sample(uint64_t ns) {
    if (sample_count < MAX_SAMPLES) samples[sample_count++] = ns > UINT32_MAX ? UINT32_MAX : (uint32_t)ns;
}

static int ascending(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static uint32_t quantile(double q) {
    return sample_count ? samples[(size_t)(q * (double)(sample_count - 1))] : 0;
}

static int ask(int fd) {
    connections[fd].asked_ns = now_ns();
    connections[fd].waiting = 1;
    return send(fd, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request) ? 0 : -1;
}

static void latencies(const char *data, size_t size, uint64_t at_ns) {
    const char *end = data + size;
    for (const char *p = data; (p = memmem(p, (size_t)(end - p), "@T", 2)) && p + 18 <= end; p += 18) {
        uint64_t sent = 0;
        for (int i = 2; i < 18; i++) sent = sent << 4 | (uint64_t)(p[i] <= '9' ? p[i] - '0' : p[i] - 'a' + 10);
        sample(at_ns - sent);
    }
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) return 2;
    const char *mode = argv[1];
    int port = atoi(argv[2]), count = atoi(argv[3]), paced = !strcmp(mode, "paced"), short_ = !strcmp(mode, "short");
    double seconds = atof(argv[4]);
    uint64_t interval_ns = strtoull(argv[5], NULL, 10) * 1000u;
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    if (!samples) return 1;
    if (paced) snprintf(request, sizeof request, "GET /paced/%s HTTP/1.1\r\nHost: bench\r\n\r\n", argv[5]);
    else snprintf(request, sizeof request, "GET /%s HTTP/1.1\r\nHost: bench\r\nAccept: */*\r\n\r\n", mode);
    if (argc == 7) {
        FILE *file = fopen(argv[6], "r");
        if (!file) return 1;
        request[fread(request, 1, sizeof request - 1, file)] = 0;
        fclose(file);
    }

    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct linger reset = {.l_onoff = 1};
    int epoll_fd = epoll_create1(0), one = 1, opened = 0;
    static char data[1 << 20];
    static struct epoll_event events[1024];
    static int thinking[MAX_FDS];
    size_t think_head = 0, think_tail = 0;
    uint64_t start = now_ns(), counted_from = 0, end = 0;
    /* Streams begin one after the other, 2,000 a second and over a second at least, so that they do not tick together
     * and connecting is not what is measured. */
    uint64_t spread_ns = paced ? (count > 2000 ? (uint64_t)count * 500000u : 1000000000u) : 0;
    for (;;) {
        uint64_t now = now_ns();
        while (opened < count && now >= start + spread_ns * (uint64_t)opened / (uint64_t)count) {
            int fd = socket(AF_INET, SOCK_STREAM, 0);
            struct sockaddr_in from = {.sin_family = AF_INET};
            from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)(1 + opened / CONNECTIONS_AN_ADDRESS));
            setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
            if (fd < 0 || bind(fd, (void *)&from, sizeof from)) { perror("socket"); return 1; }
            if (fd >= MAX_FDS || connect(fd, (void *)&address, sizeof address)) { perror("connect"); return 1; }
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
            epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
            if (ask(fd)) errors++;
            opened++;
            now = now_ns();
        }
        if (opened == count && !end) {
            counted_from = now + (uint64_t)(seconds * 0.2e9);
            end = UINT64_MAX;
        }
        if (counted_from && now >= counted_from) {
            counted_from = 0;
            puts("counting");
            fflush(stdout);
            bytes = requests = sample_count = 0;
            start = now_ns();
            end = start + (uint64_t)(seconds * 1e9);
        }
        if (end && now >= end) break;
        int wait_ms = opened < count || think_head != think_tail ? 0 : 50;
        if (think_head != think_tail && connections[thinking[think_head % MAX_FDS]].wake_ns > now + 1000000u) wait_ms = 1;
        int n = epoll_wait(epoll_fd, events, 1024, wait_ms);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            ssize_t got = recv(fd, data, sizeof data, MSG_DONTWAIT);
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN) { errors++; close(fd); }
                continue;
            }
            uint64_t at = now_ns();
            bytes += (uint64_t)got;
            if (paced) latencies(data, (size_t)got, at);
            if (short_ && memmem(data, (size_t)got, "@E\"}", 4)) {
                requests++;
                sample(at - connections[fd].asked_ns);
                if (!interval_ns) {
                    if (ask(fd)) errors++;
                } else {
                    connections[fd].wake_ns = at + interval_ns;
                    thinking[think_tail++ % MAX_FDS] = fd;
                }
            }
        }
        now = now_ns();
        while (think_head != think_tail && connections[thinking[think_head % MAX_FDS]].wake_ns <= now)
            if (ask(thinking[think_head++ % MAX_FDS])) errors++;
    }
    double took = (double)(now_ns() - start) / 1e9;
    puts("counted");
    fflush(stdout);
    qsort(samples, sample_count, sizeof *samples, ascending);
    uint64_t chunks = paced ? sample_count : bytes / CHUNK_WIRE_BYTES;
    printf("{\"seconds\": %.3f, \"chunks\": %lu, \"requests\": %lu, \"errors\": %lu, \"samples\": %zu, \"p50_ns\": %u, "
           "\"p90_ns\": %u, \"p99_ns\": %u, \"p999_ns\": %u, \"max_ns\": %u}\n",
           took, (unsigned long)chunks, (unsigned long)requests, (unsigned long)errors, sample_count, quantile(0.5),
           quantile(0.9), quantile(0.99), quantile(0.999), quantile(1.0));
    fflush(stdout);
    while (read(0, data, sizeof data) > 0) {}
    return 0;
}
