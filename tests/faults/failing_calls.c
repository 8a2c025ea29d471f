/* Fail system calls on the files below a folder, or on IPv4 sockets, from outside the program: LD_PRELOAD, for the tests of this folder.
 *
 * FAILING_CALLS_FOLDER  absolute path; only calls on files below it count, and those on sockets
 * FAILING_CALLS_PAGE    a file with a `struct page`, mapped by the test and by each process; without it nothing fails
 *
 * While `armed` is not 0, matching calls of the kinds in `kinds` are counted. Call `number` fails with `error`, and if `persistent`
 * is not 0 also all later ones until the page is released. A failing call has no effect.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENS = 1, WRITES = 2, NAMES = 4, MAPS = 8, SENDS = 16, RECEIVES = 32, ACCEPTS = 64 };

struct page {
    int64_t number;
    int32_t armed, persistent, error, kinds;
    int64_t calls, failed;
    char first[256]; /* the first call that failed: name and file */
};

static struct page *page;
static char folder[PATH_MAX];

#define REAL(name) ((typeof(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void map_page(void) {
    const char *of = getenv("FAILING_CALLS_FOLDER"), *path = getenv("FAILING_CALLS_PAGE");
    if (of == NULL || path == NULL)
        return;
    snprintf(folder, sizeof folder, "%s/", of);
    int fd = REAL(open64)(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return;
    void *at = REAL(mmap64)(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED)
        page = at;
}

static int fails_now(const char *call, const char *what) {
    int64_t n = __atomic_add_fetch(&page->calls, 1, __ATOMIC_SEQ_CST);
    if (page->persistent ? n < page->number : n != page->number)
        return 0;
    if (__atomic_fetch_add(&page->failed, 1, __ATOMIC_SEQ_CST) == 0)
        snprintf(page->first, sizeof page->first, "%s %s", call, what);
    errno = page->error;
    return 1;
}

static int fails_at(const char *call, const char *path) {
    return strncmp(path, folder, strlen(folder)) == 0 && fails_now(call, path + strlen(folder));
}

static int counts(int kind) {
    return page != NULL && __atomic_load_n(&page->armed, __ATOMIC_SEQ_CST) && (page->kinds & kind);
}

/* Whether a call on an open file fails. errno is unchanged otherwise. */
static int fd_fails(int kind, const char *call, int fd) {
    if (!counts(kind) || fd < 0)
        return 0;
    char link[64], path[PATH_MAX];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    errno = before;
    if (size < 0)
        return 0;
    path[size] = 0;
    return fails_at(call, path);
}

/* Whether a call on an IPv4 socket fails: those of the program, not those between its threads. errno is unchanged otherwise. */
static int socket_fails(int kind, const char *call, int fd) {
    if (!counts(kind) || fd < 0)
        return 0;
    int before = errno, family = 0;
    socklen_t size = sizeof family;
    int found = getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &family, &size);
    errno = before;
    return found == 0 && family == AF_INET && fails_now(call, "socket");
}

/* Whether a call fails that can be one on a file or on a socket. */
static int io_fails(int of_file, int of_socket, const char *call, int fd) {
    return socket_fails(of_socket, call, fd) || (of_file && fd_fails(of_file, call, fd));
}

/* Whether a call on a path fails. The product uses absolute paths; relative ones do not count. */
static int path_fails(int kind, const char *call, const char *path) {
    return counts(kind) && fails_at(call, path);
}

static mode_t mode_in(int flags, va_list given) {
    return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(given, mode_t) : 0;
}

#define OPEN(name)                                                                                                                         \
    int name(const char *path, int flags, ...) {                                                                                           \
        va_list given;                                                                                                                     \
        va_start(given, flags);                                                                                                            \
        mode_t mode = mode_in(flags, given);                                                                                               \
        va_end(given);                                                                                                                     \
        return path_fails(OPENS, #name, path) ? -1 : REAL(name)(path, flags, mode);                                                        \
    }
#define OPENAT(name)                                                                                                                       \
    int name(int at, const char *path, int flags, ...) {                                                                                   \
        va_list given;                                                                                                                     \
        va_start(given, flags);                                                                                                            \
        mode_t mode = mode_in(flags, given);                                                                                               \
        va_end(given);                                                                                                                     \
        return path_fails(OPENS, #name, path) ? -1 : REAL(name)(at, path, flags, mode);                                                    \
    }
#define ON_FD(kind, result, name, parameters, ...)                                                                                         \
    result name parameters { return fd_fails(kind, #name, fd) ? -1 : REAL(name)(__VA_ARGS__); }
#define ON_IO(of_file, of_socket, result, name, parameters, ...)                                                                            \
    result name parameters { return io_fails(of_file, of_socket, #name, fd) ? -1 : REAL(name)(__VA_ARGS__); }
#define ON_PATH(name, parameters, ...)                                                                                                     \
    int name parameters { return path_fails(NAMES, #name, path) ? -1 : REAL(name)(__VA_ARGS__); }
#define MAP(name, offset_type)                                                                                                             \
    void *name(void *at, size_t size, int access, int flags, int fd, offset_type offset) {                                                 \
        return fd_fails(MAPS, #name, fd) ? MAP_FAILED : REAL(name)(at, size, access, flags, fd, offset);                                   \
    }
#define ALLOCATE(name, offset_type)                                                                                                        \
    int name(int fd, offset_type offset, offset_type size) {                                                                               \
        return fd_fails(WRITES, #name, fd) ? page->error : REAL(name)(fd, offset, size);                                                   \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
ON_IO(WRITES, SENDS, ssize_t, write, (int fd, const void *from, size_t size), fd, from, size)
ON_IO(WRITES, SENDS, ssize_t, writev, (int fd, const struct iovec *parts, int count), fd, parts, count)
ON_IO(0, RECEIVES, ssize_t, read, (int fd, void *to, size_t size), fd, to, size)
ON_IO(0, RECEIVES, ssize_t, readv, (int fd, const struct iovec *parts, int count), fd, parts, count)
ON_IO(0, SENDS, ssize_t, send, (int fd, const void *from, size_t size, int flags), fd, from, size, flags)
ON_IO(0, SENDS, ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags), fd, message, flags)
ON_IO(0, RECEIVES, ssize_t, recv, (int fd, void *to, size_t size, int flags), fd, to, size, flags)
ON_IO(0, RECEIVES, ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), fd, message, flags)
ON_IO(0, ACCEPTS, int, accept, (int fd, struct sockaddr *peer, socklen_t *size), fd, peer, size)
ON_IO(0, ACCEPTS, int, accept4, (int fd, struct sockaddr *peer, socklen_t *size, int flags), fd, peer, size, flags)
ON_FD(WRITES, ssize_t, pwrite, (int fd, const void *from, size_t size, off_t offset), fd, from, size, offset)
ON_FD(WRITES, ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t offset), fd, from, size, offset)
ON_FD(WRITES, int, fsync, (int fd), fd)
ON_FD(WRITES, int, fdatasync, (int fd), fd)
ON_FD(WRITES, int, ftruncate, (int fd, off_t size), fd, size)
ON_FD(WRITES, int, ftruncate64, (int fd, off64_t size), fd, size)
ON_FD(WRITES, int, fallocate, (int fd, int mode, off_t offset, off_t size), fd, mode, offset, size)
ALLOCATE(posix_fallocate, off_t)
ALLOCATE(posix_fallocate64, off64_t)
ON_PATH(rename, (const char *path, const char *to), path, to)
ON_PATH(link, (const char *path, const char *to), path, to)
ON_PATH(unlink, (const char *path), path)
ON_PATH(remove, (const char *path), path)
ON_PATH(rmdir, (const char *path), path)
ON_PATH(mkdir, (const char *path, mode_t mode), path, mode)
MAP(mmap, off_t)
MAP(mmap64, off64_t)
