"""Python imports this file first: it removes what the modules of the standard library have on Linux alone, and says that this is macOS.

macOS has other names for some of it. They are here with the calls of Linux that do the same.
"""

from __future__ import annotations

import fcntl
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
import time
import urllib.request

assert urllib.request  # it imports a module of the platform
sysconfig.get_config_vars()  # they are in a file of the platform
sys.platform = "darwin"
LINUX_ONLY = {
    os: (
        "sched_getaffinity sched_setaffinity memfd_create eventfd eventfd_read eventfd_write pidfd_open fdatasync posix_fallocate "
        "posix_fadvise getrandom splice copy_file_range getxattr setxattr listxattr removexattr setresuid setresgid getresuid "
        "getresgid O_PATH O_NOATIME O_DIRECT MFD_CLOEXEC EFD_CLOEXEC"
    ),
    socket: (
        "AF_PACKET AF_NETLINK AF_VSOCK AF_ALG AF_CAN AF_TIPC TCP_INFO TCP_USER_TIMEOUT TCP_QUICKACK TCP_DEFER_ACCEPT TCP_CORK "
        "SO_PEERCRED SO_BINDTODEVICE SO_INCOMING_CPU SO_MARK MSG_ERRQUEUE MSG_MORE"
    ),
    select: "epoll " + " ".join(name for name in dir(select) if name.startswith("EPOLL")),
    time: "CLOCK_BOOTTIME CLOCK_TAI",
    signal: "sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPOLL SIGPWR SIGSTKFLT SIGCLD",
    fcntl: "F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_SETLK F_OFD_GETLK F_OFD_SETLKW F_ADD_SEALS F_NOTIFY F_SETLEASE",
    resource: "prlimit RUSAGE_THREAD RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_SIGPENDING",
}
epoll, edge, hung_up = select.epoll, select.EPOLLET | select.EPOLLRDHUP, select.EPOLLRDHUP | select.EPOLLHUP
socket.TCP_KEEPALIVE = socket.TCP_KEEPIDLE  # type: ignore[attr-defined]
fcntl.F_FULLFSYNC = fcntl.F_GETFD  # type: ignore[attr-defined]
for module, names in LINUX_ONLY.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
del socket.TCP_KEEPIDLE


class Kevent:
    def __init__(self, ident: int, filter: int, flags: int, fflags: int = 0) -> None:
        self.ident, self.filter, self.flags, self.fflags = ident, filter, flags, fflags


class Kqueue:
    """Ends of connections, by epoll."""

    def __init__(self) -> None:
        self._epoll = epoll()
        self.fileno, self.close = self._epoll.fileno, self._epoll.close

    def control(
        self, changes: list[Kevent] | None, most: int, timeout_s: float | None = None
    ) -> list[Kevent]:
        for change in changes or ():
            if change.flags & KQ_EV_DELETE:
                self._epoll.unregister(change.ident)
            else:
                try:
                    self._epoll.register(change.ident, edge)
                except FileExistsError:
                    self._epoll.modify(change.ident, edge)
        found = self._epoll.poll(timeout_s or 0, most) if most else []
        return [Kevent(fd, KQ_FILTER_READ, KQ_EV_EOF if events & hung_up else 0) for fd, events in found]


KQ_FILTER_READ, KQ_EV_ADD, KQ_EV_DELETE, KQ_EV_CLEAR, KQ_EV_EOF = -1, 1, 2, 0x20, 0x8000
for name, value in {
    "kevent": Kevent, "kqueue": Kqueue, "KQ_FILTER_READ": KQ_FILTER_READ, "KQ_EV_ADD": KQ_EV_ADD, "KQ_EV_DELETE": KQ_EV_DELETE,
    "KQ_EV_CLEAR": KQ_EV_CLEAR, "KQ_EV_EOF": KQ_EV_EOF,
}.items():  # fmt: skip
    setattr(select, name, value)
