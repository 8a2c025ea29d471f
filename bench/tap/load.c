/* Load client, fast enough not to limit the benchmark: one thread, epoll.
 *
 *   load paced PORT CONNECTIONS SECONDS INTERVAL_US[/CHUNKS]   per-chunk latency; each stream has CHUNKS (1) per INTERVAL_US
 *   load flood PORT CONNECTIONS SECONDS 0             chunks per second of streams at full speed
 *   load short PORT CONNECTIONS SECONDS 0             requests per second and their latency, without pauses
 *   load short PORT CONNECTIONS SECONDS INTERVAL_US   latency of requests at random times, on average one per connection and interval
 *   load burst PORT CONNECTIONS SECONDS INTERVAL_US   latency of requests that all connections send at the same time
 *   load alone PORT 1 SECONDS INTERVAL_US             time to the first byte of streams of 3 chunks, 3 ms apart. Each begins on
 *                                                     average INTERVAL_US (half to one and a half) after the end of the last
 *   load … REQUEST_FILE                               send the content of this file instead of the default request
 *
 * Prints "counting" when every stream has begun and a fifth of SECONDS has passed, and "counted" SECONDS later. The caller
 * measures CPU time between the two. Then prints one JSON object (times in ns) and waits for the end of stdin. In `paced` and `flood`
 * without REQUEST_FILE, the caller then makes the upstream end its streams; the client reads them to the end and prints a second object
 * with the payload bytes of the whole run.
 * The latency of a chunk is the monotonic clock at its arrival minus the clock in the chunk (both processes share a machine).
 * With an INTERVAL_US, the latency of a request (except `alone`) begins when it is due, even if no connection was idle then.
 * Quantiles are computed from all samples.
 * Connections use several loopback addresses to have enough ports, and end with a reset to avoid TIME_WAIT.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EVENT_BYTES 220
#define BEGIN_WITHIN_NS 60000000000u
#define END_WITHIN_NS 20000000000u
#define MAX_WAIT_NS 50000000u
#define MAX_SAMPLES (16u << 20)
#define MAX_FDS 65536
#define CONNECTIONS_AN_ADDRESS 8192

enum phase { HEAD, SIZE, DATA, AFTER_DATA, OVER };

struct connection {
    uint64_t asked_ns;
    enum phase phase;
    size_t left; /* DATA: bytes left in the chunk; SIZE: the size so far; HEAD: bytes of the blank line that were read */
};
static struct connection connections[MAX_FDS];
static uint32_t *samples;
static size_t sample_count;
static uint64_t payload_bytes, requests, errors;
static int begun, over, gone;
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

static int ask(int fd, uint64_t from_ns) {
    connections[fd].asked_ns = from_ns;
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

/* Count the payload of a chunked response. Proxies change the chunk framing, so only the payload can be compared. */
static void feed(struct connection *c, const char *p, size_t size) {
    static const char head_end[] = "\r\n\r\n";
    for (const char *end = p + size; p < end;) {
        if (c->phase == DATA) {
            size_t n = (size_t)(end - p) < c->left ? (size_t)(end - p) : c->left;
            payload_bytes += n;
            p += n;
            if (!(c->left -= n)) c->phase = AFTER_DATA;
            continue;
        }
        char byte = *p++;
        if (c->phase == HEAD) {
            c->left = byte == head_end[c->left] ? c->left + 1 : byte == '\r';
            if (c->left == 4) c->phase = SIZE, c->left = 0;
        } else if (c->phase == AFTER_DATA) {
            if (byte == '\n') c->phase = SIZE;
        } else if (c->phase == SIZE) {
            if (byte == '\n') {
                c->phase = c->left ? DATA : OVER;
                over += c->phase == OVER;
            } else if (byte != '\r') {
                c->left = c->left << 4 | (size_t)(byte <= '9' ? byte - '0' : (byte | 32) - 'a' + 10);
            }
        }
    }
}

/* Pseudo-random numbers in [0, 1), the same in every run. */
static double random_share(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return (double)(state >> 11) / (double)(1ull << 53);
}

/* Random time to the next event of a Poisson process. */
static uint64_t random_gap_ns(double mean_ns) {
    return (uint64_t)(-log(1.0 - random_share()) * mean_ns);
}

static int connected(const struct sockaddr_in *to, int number) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    struct sockaddr_in from = {.sin_family = AF_INET};
    struct linger reset = {.l_onoff = 1};
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + (uint32_t)(1 + number / CONNECTIONS_AN_ADDRESS));
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (fd < 0 || fd >= MAX_FDS || bind(fd, (void *)&from, sizeof from)) { perror("socket"); exit(1); }
    if (connect(fd, (void *)to, sizeof *to)) { perror("connect"); exit(1); }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 6 && argc != 7) return 2;
    const char *mode = argv[1];
    int port = atoi(argv[2]), count = atoi(argv[3]), paced = !strcmp(mode, "paced");
    int alone = !strcmp(mode, "alone"), burst = !strcmp(mode, "burst"), short_ = burst || !strcmp(mode, "short");
    double seconds = atof(argv[4]);
    uint64_t interval_ns = strtoull(argv[5], NULL, 10) * 1000u;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    samples = malloc(MAX_SAMPLES * sizeof *samples);
    if (!samples) return 1;
    if (paced) snprintf(request, sizeof request, "GET /paced/%s HTTP/1.1\r\nHost: bench\r\n\r\n", argv[5]);
    else if (alone) snprintf(request, sizeof request, "GET /paced/3000/1/3 HTTP/1.1\r\nHost: bench\r\n\r\n");
    else snprintf(request, sizeof request, "GET /%s/%d HTTP/1.1\r\nHost: bench\r\nAccept: */*\r\n\r\n", short_ ? "short" : mode, count);
    if (argc == 7) {
        FILE *file = fopen(argv[6], "r");
        if (!file) return 1;
        request[fread(request, 1, sizeof request - 1, file)] = 0;
        fclose(file);
    }

    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int epoll_fd = epoll_create1(0), opened = 0, streams = !strcmp(mode, "flood") || paced;
    static char data[1 << 20];
    static struct epoll_event events[1024];
    static int idle[MAX_FDS];
    size_t idle_head = 0, idle_tail = 0;
    uint64_t start = now_ns(), counted_from = 0, end = 0, counted_bytes = 0;
    /* Streams begin at 2,000 per second, over at least one second, to keep the cost of connecting out of the measurement. Each
     * begins at a random time within its share. At equal distances, streams whose distance is a multiple of the interval
     * would send in bursts. */
    uint64_t spread_ns = interval_ns ? (count > 2000 ? (uint64_t)count * 500000u : 1000000000u) : 0;
    uint64_t next_open = start, next_ask = UINT64_MAX, asked = 0;
    for (;;) {
        uint64_t now = now_ns();
        while (opened < count && now >= next_open) {
            int fd = connected(&address, opened);
            struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
            epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &e);
            if (ask(fd, now_ns())) errors++;
            opened++;
            next_open = start + (uint64_t)((double)spread_ns * (opened + random_share()) / count);
            now = now_ns();
            if (opened == count) next_ask = now;
        }
        if (now >= start + spread_ns + BEGIN_WITHIN_NS && !end) {
            fprintf(stderr, "%d of %d streams began\n", begun, count);
            return 1;
        }
        if (opened == count && (begun == count || !streams) && !end) {
            counted_from = now + (uint64_t)(seconds * 0.2e9);
            end = UINT64_MAX;
        }
        if (counted_from && now >= counted_from) {
            counted_from = 0;
            puts("counting");
            fflush(stdout);
            counted_bytes = payload_bytes;
            requests = sample_count = 0;
            start = now_ns();
            end = start + (uint64_t)(seconds * 1e9);
        }
        if (end && now >= end) break;
        uint64_t next = opened < count ? next_open : now + MAX_WAIT_NS;
        if (idle_head != idle_tail && next_ask < next) next = next_ask;
        struct timespec wait = {.tv_nsec = next <= now ? 0 : next - now < MAX_WAIT_NS ? (long)(next - now) : (long)MAX_WAIT_NS};
        int n = epoll_pwait2(epoll_fd, events, 1024, &wait, NULL);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            ssize_t got = recv(fd, data, sizeof data, MSG_DONTWAIT);
            if (got <= 0) {
                if (got == 0 || errno != EAGAIN) { errors++; gone++; begun += connections[fd].asked_ns != 0; close(fd); }
                continue;
            }
            uint64_t at = now_ns();
            if (streams || alone) {
                if (connections[fd].asked_ns) {
                    if (alone) requests++, sample(at - connections[fd].asked_ns);
                    begun++;
                    errors += memcmp(data, "HTTP/1.1 200", 12) != 0;
                    connections[fd].asked_ns = 0;
                }
                feed(&connections[fd], data, (size_t)got);
            }
            if (alone && connections[fd].phase == OVER) {
                connections[fd] = (struct connection){0};
                idle[idle_tail++ % MAX_FDS] = fd;
                next_ask = at + (uint64_t)((0.5 + random_share()) * (double)interval_ns);
            }
            if (paced) latencies(data, (size_t)got, at);
            if (short_ && memmem(data, (size_t)got, "@E\"}", 4)) {
                requests++;
                sample(at - connections[fd].asked_ns);
                if (!interval_ns) {
                    if (ask(fd, now_ns())) errors++;
                } else {
                    idle[idle_tail++ % MAX_FDS] = fd;
                }
            }
        }
        now = now_ns();
        while (idle_head != idle_tail && next_ask <= now) {
            if (ask(idle[idle_head++ % MAX_FDS], alone ? now : next_ask)) errors++;
            if (!burst) next_ask += random_gap_ns((double)interval_ns / count);
            else if (++asked % (uint64_t)count == 0) next_ask += interval_ns;
        }
    }
    double took = (double)(now_ns() - start) / 1e9;
    puts("counted");
    fflush(stdout);
    qsort(samples, sample_count, sizeof *samples, ascending);
    uint64_t chunks = argc == 7 ? sample_count : (payload_bytes - counted_bytes) / EVENT_BYTES;
    printf("{\"seconds\": %.3f, \"chunks\": %lu, \"requests\": %lu, \"errors\": %lu, \"samples\": %zu, \"p50_ns\": %u, "
           "\"p90_ns\": %u, \"p99_ns\": %u, \"p999_ns\": %u, \"max_ns\": %u}\n",
           took, (unsigned long)chunks, (unsigned long)requests, (unsigned long)errors, sample_count, quantile(0.5),
           quantile(0.9), quantile(0.99), quantile(0.999), quantile(1.0));
    fflush(stdout);
    while (read(0, data, sizeof data) > 0) {}
    if (!streams || argc == 7) return 0;
    int gone_before = gone;
    for (end = now_ns() + END_WITHIN_NS; over + gone < count && now_ns() < end;) {
        int n = epoll_wait(epoll_fd, events, 1024, 50);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            ssize_t got = recv(fd, data, sizeof data, MSG_DONTWAIT);
            if (got > 0) feed(&connections[fd], data, (size_t)got);
            else if (got == 0 || errno != EAGAIN) { gone++; close(fd); }
        }
    }
    printf("{\"unended\": %d, \"payload_bytes\": %lu}\n", count - over - gone_before, (unsigned long)payload_bytes);
    return 0;
}
