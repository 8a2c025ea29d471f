/* Mock upstream, fast enough not to limit the benchmark: one thread, epoll.
 *
 *   upstream PORT_FILE
 *
 * Listens on 127.0.0.1 (the port goes to PORT_FILE) and answers by the request's path:
 *   /short        a JSON body of about 200 bytes
 *   /paced/US/N/W an event stream: N chunks (default 1, at most 16) in one write every US microseconds. It ends after W
 *                 writes (at least 2), by default never; anything but a number, such as a gateway's path, is ignored
 *   /flood/N      an endless event stream at full speed, 256 chunks per write, starting when N of them are open
 *   /end          an empty body; all event streams end after their current chunk
 *   /sink         nothing: the connection is only read
 * A chunk has a 220-byte event. Its content begins with the monotonic clock when it was sent: @T<16 hex digits>
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define EVENT_BYTES 220
#define CHUNK_BYTES (EVENT_BYTES + 6)
/* A chunk in OpenAI's format, which an observer can parse. */
#define EVENT_START "data: {\"id\":\"c\",\"object\":\"chat.completion.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\""
#define EVENT_END "\"}}]}"
#define MAX_FDS 65536
#define FLOOD_CHUNKS 256
#define MAX_CHUNKS 16
#define MAX_DUE 1024

enum mode { IDLE, PACED, FLOOD, SINK };

struct connection {
    enum mode mode;
    uint64_t interval_ns, next_ns;
    size_t seen, flood_at;
    int generation, chunks;
    int writes_left; /* PACED: until the stream ends; 0: it is endless */
    size_t rest_bytes; /* unsent bytes in `rest`; nothing else is sent before them */
    char request[4096], rest[MAX_CHUNKS * CHUNK_BYTES + 16];
};

static struct connection *connections[MAX_FDS];
static int epoll_fd, timer_fd;

/* Streams in the order of their next event. All streams have the same interval, so appending keeps the order. */
struct due { int fd, generation; };
static struct due ring[1 << 18];
static size_t ring_head, ring_tail;

static char flood[FLOOD_CHUNKS * CHUNK_BYTES];
static size_t flood_bytes;
static int flood_streams;

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static size_t chunk(char *out, uint64_t at_ns) {
    static const char hex[] = "0123456789abcdef";
    static char event[CHUNK_BYTES];
    if (!event[0]) {
        size_t n = (size_t)sprintf(event, "%x\r\n" EVENT_START "@T0000000000000000", EVENT_BYTES);
        memset(event + n, 'x', sizeof event - n);
        memcpy(event + sizeof event - 4 - (sizeof EVENT_END - 1), EVENT_END "\n\n\r\n", sizeof EVENT_END - 1 + 4);
    }
    memcpy(out, event, sizeof event);
    char *digits = out + 4 + (sizeof EVENT_START - 1) + 2;
    for (int i = 15; i >= 0; i--, at_ns >>= 4) digits[i] = hex[at_ns & 15];
    return sizeof event;
}

static void set_idle(struct connection *c) {
    flood_streams -= c->mode == FLOOD;
    c->mode = IDLE;
    c->generation++;
}

static void drop(int fd) {
    close(fd);
    if (connections[fd]) set_idle(connections[fd]);
}

static void wait_for_room(int fd, int wanted) {
    struct epoll_event e = {.events = wanted ? EPOLLIN | EPOLLOUT : EPOLLIN, .data.fd = fd};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &e);
}

/* Send the data, and buffer what a full socket does not accept. -1: the connection is closed. */
static int put(int fd, const char *data, size_t size) {
    struct connection *c = connections[fd];
    ssize_t n = send(fd, data, size, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno != EAGAIN) { drop(fd); return -1; }
    size_t sent = n < 0 ? 0 : (size_t)n;
    c->rest_bytes = size - sent;
    if (c->rest_bytes) {
        memmove(c->rest, data + sent, c->rest_bytes);
        wait_for_room(fd, 1);
    }
    return 0;
}

static void end_stream(int fd) {
    static const char last[] = "0\r\n\r\n";
    struct connection *c = connections[fd];
    if (!c || c->mode == IDLE) return;
    char out[sizeof c->rest];
    size_t n = c->rest_bytes;
    memcpy(out, c->rest, n);
    if (c->mode == FLOOD && c->flood_at % CHUNK_BYTES) {
        n = CHUNK_BYTES - c->flood_at % CHUNK_BYTES;
        memcpy(out, flood + c->flood_at, n);
    }
    memcpy(out + n, last, sizeof last - 1);
    set_idle(c);
    wait_for_room(fd, 0);
    put(fd, out, n + sizeof last - 1);
}

static void arm_timer(void) {
    struct itimerspec when = {0};
    if (ring_head != ring_tail) {
        uint64_t at = connections[ring[ring_head & ((1 << 18) - 1)].fd]->next_ns;
        when.it_value.tv_sec = (time_t)(at / 1000000000u);
        when.it_value.tv_nsec = (long)(at % 1000000000u);
        if (!at) when.it_value.tv_nsec = 1;
    }
    timerfd_settime(timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

/* The number in the next segment of a path, or `otherwise`. */
static int segment(char **path, int otherwise) {
    return **path == '/' && isdigit((unsigned char)(*path)[1]) ? (int)strtol(*path + 1, path, 10) : otherwise;
}

static void put_due(int fd) {
    ring[ring_tail++ & ((1 << 18) - 1)] = (struct due){fd, connections[fd]->generation};
}

static void send_due(void) {
    uint64_t expirations;
    if (read(timer_fd, &expirations, sizeof expirations) < 0 && errno != EAGAIN) exit(1);
    for (int left = MAX_DUE; left && ring_head != ring_tail; left--) { /* bounded: requests must not starve */
        struct due d = ring[ring_head & ((1 << 18) - 1)];
        struct connection *c = connections[d.fd];
        if (c->generation != d.generation || c->mode != PACED) { ring_head++; continue; }
        uint64_t now = now_ns();
        if (c->next_ns > now) break;
        ring_head++;
        char out[MAX_CHUNKS * CHUNK_BYTES];
        size_t n = 0;
        for (int i = 0; i < c->chunks; i++) n += chunk(out + n, now);
        if (!c->rest_bytes && put(d.fd, out, n)) continue; /* skip the write while earlier bytes are unsent */
        if (c->writes_left && !--c->writes_left) { end_stream(d.fd); continue; }
        c->next_ns += c->interval_ns;
        put_due(d.fd);
    }
    arm_timer();
}

/* The socket is writable again: send the buffered bytes. */
static void resume_sending(int fd) {
    struct connection *c = connections[fd];
    if (!put(fd, c->rest, c->rest_bytes) && !c->rest_bytes) wait_for_room(fd, 0);
}

static void push_flood(int fd) {
    struct connection *c = connections[fd];
    for (int i = 0; i < 8; i++) {
        ssize_t n = send(fd, flood + c->flood_at, flood_bytes - c->flood_at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0) { if (errno != EAGAIN) drop(fd); return; }
        c->flood_at = (c->flood_at + (size_t)n) % flood_bytes;
    }
}

static void answer(int fd) {
    static const char head[] =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\nTransfer-Encoding: chunked\r\n\r\n";
    struct connection *c = connections[fd];
    char out[1024];
    char *path = strchr(c->request, ' ');
    if (!path) { drop(fd); return; }
    path++;
    if (!strncmp(path, "/sink", 5)) {
        c->mode = SINK;
    } else if (!strncmp(path, "/short", 6)) {
        char body[256];
        memset(body, 'x', 200);
        memcpy(body, "{\"text\":\"", 9);
        memcpy(body + 196, "@E\"}", 4);
        int n = sprintf(out, "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 200\r\n\r\n%.200s", body);
        if (send(fd, out, (size_t)n, MSG_NOSIGNAL | MSG_DONTWAIT) != n) drop(fd);
    } else if (!strncmp(path, "/end", 4)) {
        static const char empty[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        if (send(fd, empty, sizeof empty - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) drop(fd);
        for (int other = 0; other < MAX_FDS; other++) end_stream(other);
    } else if (!strncmp(path, "/paced/", 7)) {
        char *rest;
        c->interval_ns = strtoull(path + 7, &rest, 10) * 1000u;
        c->chunks = segment(&rest, 1);
        c->writes_left = segment(&rest, 1) - 1;
        if (c->chunks < 1 || c->chunks > MAX_CHUNKS) { drop(fd); return; }
        uint64_t now = now_ns();
        memcpy(out, head, sizeof head - 1);
        size_t n = sizeof head - 1 + chunk(out + sizeof head - 1, now);
        if (send(fd, out, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n) { drop(fd); return; }
        c->mode = PACED;
        c->next_ns = now + c->interval_ns;
        int first = ring_head == ring_tail;
        put_due(fd);
        if (first) arm_timer();
    } else {
        if (send(fd, head, sizeof head - 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) { drop(fd); return; }
        c->mode = FLOOD;
        c->flood_at = 0;
        if (++flood_streams >= atoi(path + strlen("/flood/")))
            for (int other = 0; other < MAX_FDS; other++)
                if (connections[other] && connections[other]->mode == FLOOD) wait_for_room(other, 1);
    }
}

static void read_request(int fd) {
    struct connection *c = connections[fd];
    if (c->mode == SINK) c->seen = 0;
    ssize_t n = read(fd, c->request + c->seen, sizeof c->request - 1 - c->seen);
    if (n <= 0) { if (n == 0 || errno != EAGAIN) drop(fd); return; }
    if (c->mode == SINK) return;
    c->seen += (size_t)n;
    c->request[c->seen] = 0;
    char *end = strstr(c->request, "\r\n\r\n");
    if (!end) { if (c->seen >= sizeof c->request - 1) drop(fd); return; }
    char *length = strcasestr(c->request, "\r\ncontent-length:");
    size_t body = length && length < end ? strtoul(length + 17, NULL, 10) : 0;
    if (c->seen < (size_t)(end + 4 - c->request) + body) return;
    c->seen = 0;
    answer(fd);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    for (int i = 0; i < FLOOD_CHUNKS; i++) flood_bytes += chunk(flood + flood_bytes, 0);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    if (bind(listener, (void *)&address, size) || listen(listener, 16384)) return 1;
    getsockname(listener, (void *)&address, &size);
    FILE *file = fopen(argv[1], "w");
    if (!file) return 1;
    fprintf(file, "%d\n", ntohs(address.sin_port));
    fclose(file);
    epoll_fd = epoll_create1(0);
    timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = listener};
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &e);
    e.data.fd = timer_fd;
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &e);
    static struct epoll_event events[1024];
    for (;;) {
        int n = epoll_wait(epoll_fd, events, 1024, -1);
        for (int i = 0; i < n; i++) {
            int fd = events[i].data.fd;
            if (fd == timer_fd) { send_due(); continue; }
            if (fd != listener) {
                if (events[i].events & EPOLLIN) read_request(fd);
                else if (events[i].events & (EPOLLERR | EPOLLHUP)) drop(fd);
                else if (connections[fd]->rest_bytes) resume_sending(fd);
                else if (connections[fd]->mode == FLOOD) push_flood(fd);
                continue;
            }
            int client;
            while ((client = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
                if (client >= MAX_FDS) { close(client); continue; }
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                if (!connections[client]) connections[client] = calloc(1, sizeof(struct connection));
                connections[client]->seen = connections[client]->rest_bytes = 0;
                connections[client]->mode = IDLE;
                e = (struct epoll_event){.events = EPOLLIN, .data.fd = client};
                epoll_ctl(epoll_fd, EPOLL_CTL_ADD, client, &e);
            }
        }
    }
}
