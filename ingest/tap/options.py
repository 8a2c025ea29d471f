"""What a tap can be told. Times are in seconds; 0 means no limit."""

from __future__ import annotations

import socket
from dataclasses import dataclass, field
from pathlib import Path

from ingest.tap.header_rewrite import Forwarding
from ingest.tap.http_head import HeadLimits
from ingest.tap.upstreams import Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class TapOptions:
    """Options of `ingest.tap.main.run`. Addresses are HOST:PORT, an IPv6 host in brackets; port 0 lets the OS choose."""

    upstreams: tuple[Upstream, ...]
    data: Path
    listen: str = "127.0.0.1:4100"
    admin: str = "127.0.0.1:4101"
    tap_name: str = field(default_factory=socket.gethostname)
    workers: int = 1
    worker: int = 0
    """Number of this worker; set by the tap itself when there are several."""
    client_key: bytes | None = None
    """Key of the hash that makes client ids; None: DATA/client.key, made when missing."""

    # the log
    log: bool = True
    """False forwards without recording anything (for measuring what recording costs)."""
    record_log_max_bytes: int = 2 * 2**30
    """Cap on the local log, all workers together."""
    record_log_max_age_s: float | None = 7 * 86_400.0
    """Segments that nobody has read go at this age, told as lost; None: only the cap in bytes."""
    queue_bytes: int = 64 * 2**20
    """Cap on bytes that wait in memory for the log, per worker; beyond it, counted loss."""
    request_capture_bytes: int = 65_536
    alive_s: float = 2.0

    # limits of time
    connect_timeout_s: float = 30.0
    headers_timeout_s: float = 0.0
    """Silence of the upstream before the response's first byte."""
    idle_timeout_s: float = 0.0
    """Silence of the upstream in mid-stream."""
    idle_output_timeout_s: float = 0.0
    """As idle_timeout_s, but reads of nothing except SSE comments do not count."""
    head_timeout_s: float = 30.0
    """From a request's first byte to the end of its head (slow loris): 408."""
    body_timeout_s: float = 60.0
    """Silence of the client in the middle of its request's body: 408."""
    keep_alive_timeout_s: float = 75.0
    """An idle client connection is closed after this."""
    drain_timeout_s: float = 20.0
    """How long open streams may go on after SIGTERM."""
    log_stop_timeout_s: float = 5.0
    """How long a stop waits for a log that does not take records."""

    # limits of size
    head_limits: HeadLimits = field(default_factory=HeadLimits)
    max_request_bytes: int = 0
    """A larger request body is answered 413; 0 = no limit."""
    write_buffer_bytes: int = 65_536
    """What may wait for a slow reader, per connection, before the other side is paused."""

    # the way to the upstream
    forwarding: Forwarding = field(default_factory=Forwarding)
    upstream_ca: Path | None = None
    """PEM of the CAs to trust for https upstreams instead of the system's."""
    upstream_verify: bool = True
    upstream_cert: Path | None = None
    """PEM of the client certificate (and its key, unless upstream_key) shown to https upstreams."""
    upstream_key: Path | None = None
    pool_idle: int = 1024
    """Idle connections kept per upstream and worker; 0 keeps none."""
    pool_idle_s: float = 4.0
    """For how long; below the 5 s after which many servers close theirs."""

    # towards clients
    tls_cert: Path | None = None
    tls_key: Path | None = None
    backlog: int = 4096


def split_address(address: str) -> tuple[str, int]:
    """("::1", 4100) from "[::1]:4100". Raises ValueError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError(f"{address!r} is not HOST:PORT, such as 127.0.0.1:4100 or [::1]:4100")
    return host.strip("[]"), int(port)


def join_address(host: str, port: int) -> str:
    """ "[::1]:4100" from "::1" and 4100."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
