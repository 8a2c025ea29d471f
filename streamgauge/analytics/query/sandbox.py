"""Restrict a process that runs queries. Called by the process itself. Without Linux, only the limits apply.

`confine` runs before libraries start threads, because Landlock applies to the calling thread and its later threads. `limit`
runs after the start, because the limit of the address space counts from the size at that moment. A feature that the kernel
lacks is skipped.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import signal
import struct
import sys
from collections.abc import Iterable
from pathlib import Path

from streamgauge.ingest.processes import address_space_bytes, signal_at_end_of_parent

PR_SET_NO_NEW_PRIVS = 38
O_PATH = 0o10000000
"""Of Linux. Python does not know it elsewhere."""
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
"""Landlock's system calls; the numbers are the same on all architectures."""
RULESET_VERSION = 1
RULE_PATH, RULE_PORT = 1, 2

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE = 1 << 14
READING = READ_FILE | READ_DIR
FILE_RIGHTS = READ_FILE | WRITE_FILE | TRUNCATE | EXECUTE
"""Rights that a rule for a single file may name."""
RIGHTS_OF_ABI = {1: 13, 2: 14, 3: 15, 5: 16}
"""Number of file rights, from bit 0, by version of Landlock."""
BIND_TCP, CONNECT_TCP = 1 << 0, 1 << 1
NETWORK_ABI = 4
SCOPES, SCOPE_ABI = 0b11, 6
"""No abstract Unix sockets and no signals outside the sandbox."""

OOM_SCORE = 500
"""When memory runs out, the kernel kills this process before a tap or analytics (scores reach 1000)."""
UNTRUSTED_NICENESS, OWN_NICENESS = 10, 2
"""Lower priority than the tap and analytics when the CPU is busy: a tenth of their share for hostile statements, two thirds for the
queries of analytics itself and of `streamgauge sql`, because the alerts wait for them."""
OPEN_FILES = 512
"""A query opens its Parquet files a few at a time; libraries and pipes take about 30."""
DEFAULT_STACK_BYTES = 8 * 2**20
SYSTEM_PATHS = (
    "/usr", "/lib", "/lib64", "/etc", "/sys", "/dev/null", "/dev/urandom", "/dev/random",
    "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat", "/proc/sys/vm",
)  # fmt: skip
"""Paths that Python and DuckDB read. Not all of /proc, where root could read the environment of other processes."""


def confine(
    *, readable: Iterable[str] | None, writable: Iterable[str], network: bool, bind_port: int | None = None
) -> int:
    """End with the parent thread, gain no privileges, and lose access to other files and, without `network`, to the network.

    `readable`: folders and files in addition to the system's and Python's. None: everything may be read. `writable`: folders.
    `bind_port`: the only TCP port to listen on when `network` is false.

    Returns the version of Landlock, 0 if the kernel has none. Then only DuckDB's own settings protect files.
    """
    if not signal_at_end_of_parent(signal.SIGKILL):
        return 0  # not Linux
    libc = ctypes.CDLL(None, use_errno=True)
    _prefer_oom_kill()  # while /proc is still writable
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return 0  # the kernel requires it for Landlock
    abi = max(0, libc.syscall(CREATE_RULESET, None, ctypes.c_size_t(0), RULESET_VERSION))
    return abi if abi and _landlock(libc, abi, readable, writable, network, bind_port) else 0


def limit(*, memory_bytes: int, file_bytes: int) -> None:
    """Limit further address space, file sizes and open files; write no core dumps.

    `memory_bytes` counts from the present size. Raises nothing: a lower limit that is already set stays.
    """
    _lower(resource.RLIMIT_AS, address_space_bytes() + memory_bytes)
    _lower(resource.RLIMIT_FSIZE, file_bytes)
    _lower(resource.RLIMIT_CORE, 0)  # it would contain rows of the store, and its credentials
    _lower(resource.RLIMIT_NOFILE, OPEN_FILES)


def allow_cpu(cpu_s: int) -> None:
    """Allow this much more CPU time before SIGXCPU. Only the soft limit is set, so it can be raised again."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    soft = math.ceil(used.ru_utime + used.ru_stime) + cpu_s
    resource.setrlimit(
        resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard)
    )


def stack_bytes() -> int:
    """Address space of a thread's stack."""
    soft, _ = resource.getrlimit(resource.RLIMIT_STACK)
    return soft if soft != resource.RLIM_INFINITY else DEFAULT_STACK_BYTES


def _prefer_oom_kill() -> None:
    """Raise this process's OOM score to at least `OOM_SCORE`, where the system permits it."""
    with contextlib.suppress(OSError, ValueError):
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(int(score.read_text()), OOM_SCORE)))


def _lower(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(kind, (value, value))


def _landlock(
    libc: ctypes.CDLL,
    abi: int,
    readable: Iterable[str] | None,
    writable: Iterable[str],
    network: bool,
    bind_port: int | None,
) -> bool:
    # The kernel refuses a ruleset with rights that its version does not know.
    every = (1 << max(count for version, count in RIGHTS_OF_ABI.items() if version <= abi)) - 1
    attributes = struct.pack("=Q", every)
    if abi >= NETWORK_ABI:
        attributes += struct.pack("=Q", 0 if network else BIND_TCP | CONNECT_TCP)
    if abi >= SCOPE_ABI:
        attributes += struct.pack("=Q", SCOPES)
    ruleset = libc.syscall(CREATE_RULESET, attributes, ctypes.c_size_t(len(attributes)), 0)
    if ruleset < 0:
        return False
    try:
        code = (sys.prefix, sys.base_prefix, str(Path(__file__).parents[1]))
        for path in ("/",) if readable is None else (*SYSTEM_PATHS, *code, *readable):
            _allow(libc, ruleset, path, READING)
        for path in writable:
            _allow(libc, ruleset, path, every & ~EXECUTE)
        if bind_port is not None and not network and abi >= NETWORK_ABI:
            libc.syscall(ADD_RULE, ruleset, RULE_PORT, struct.pack("=QQ", BIND_TCP, bind_port), 0)
        return bool(libc.syscall(RESTRICT_SELF, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    """Add a rule. A path that does not exist needs none."""
    try:
        fd = os.open(path, O_PATH | os.O_CLOEXEC)  # names the file without the right to read it
    except OSError:
        return
    try:
        # The kernel refuses a rule for a file with the rights of folders.
        if not Path(path).is_dir():
            rights &= FILE_RIGHTS
        libc.syscall(ADD_RULE, ruleset, RULE_PATH, struct.pack("=Qi", rights, fd), 0)
    finally:
        os.close(fd)
