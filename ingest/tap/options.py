"""Options of a tap. Times are in seconds; a time limit of 0 means no limit."""

from __future__ import annotations

import secrets
import socket
from dataclasses import dataclass, field
from pathlib import Path

from streamgauge.ingest.tap.header_rewrite import Forwarding
from streamgauge.ingest.tap.http_head import HeadLimits
from streamgauge.ingest.tap.relay_choice import Relay
from streamgauge.ingest.tap.upstreams import Upstream


@dataclass(frozen=True, slots=True, kw_only=True)
class TapOptions:
    """Options of `streamgauge.ingest.tap.main.run`. Addresses are HOST:PORT, an IPv6 host in brackets; port 0 lets the OS choose."""

    upstreams: tuple[Upstream, ...]
    data: Path
    listen: str = "127.0.0.1:4100"
    admin: str = "127.0.0.1:4101"
    allowed_hosts: tuple[
        str, ...
    ] = ()  # further names in requests to the admin port (`streamgauge.ingest.allowed_hosts`)
    tap_name: str = field(default_factory=socket.gethostname)
    workers: int = 1
    worker: int = 0  # number of this worker; the supervisor sets it
    clock_id: str = field(
        default_factory=lambda: secrets.token_hex(8)
    )  # shared by all workers, which run on one host
    client_key: bytes | None = None  # hash key for client ids; None: DATA/client.key, created when missing

    session_headers: tuple[str, ...] = ()  # further headers with a session (`streamgauge.ingest.session_ids`)

    relay: Relay = "auto"  # implementation that forwards and records: --relay

    # record log
    log: bool = True  # False forwards without recording, to measure the cost of recording
    record_log_max_bytes: int = 2 * 2**30  # most bytes of the local log, of all workers together
    record_log_max_age_s: float | None = 7 * 86_400.0  # older unread segments are dropped, reported as lost
    queue_bytes: int = 64 * 2**20  # most bytes waiting for the log, per worker; more are dropped and counted
    request_capture_bytes: int = 65_536
    alive_s: float = 2.0

    # time limits
    connect_timeout_s: float = 30.0
    headers_timeout_s: float = 0.0  # silence of the upstream before the response's head
    idle_timeout_s: float = 0.0  # silence of the upstream within the response's body
    idle_output_timeout_s: float = 0.0  # as idle_timeout_s, but SSE comments count as silence
    head_timeout_s: float = 30.0  # from a request's first byte to the end of its head (slow loris), then 408; also for a TLS handshake
    body_timeout_s: float = 60.0  # silence of the client within its request's body; then 408
    keep_alive_timeout_s: float = 75.0  # an idle client connection is closed after this
    peer_timeout_s: float = 300  # a peer that acknowledges nothing is disconnected (`sockets.limit_silence`)
    drain_timeout_s: float = 20.0  # how long open streams may continue after SIGTERM
    log_stop_timeout_s: float = 5.0  # how long a stop waits for the log to take the last records

    # size limits
    head_limits: HeadLimits = field(default_factory=HeadLimits)
    max_request_bytes: int = 0  # a larger request body is answered 413; 0 = no limit
    write_buffer_bytes: int = 65_536  # per connection, before a slow reader pauses the other side

    # upstreams
    default_upstream: str | None = None  # see `upstreams.default_index`
    forwarding: Forwarding = field(default_factory=Forwarding)
    upstream_ca: Path | None = None  # PEM file with the CAs for https upstreams, instead of the system's
    upstream_cert: Path | None = None  # PEM: client certificate for https upstreams, key unless upstream_key
    upstream_key: Path | None = None
    pool_idle: int = 1024  # idle connections kept per upstream and worker; 0 keeps none
    pool_idle_s: float = 4.0  # below the 5 s after which many servers close idle connections

    # clients
    tls_cert: Path | None = None
    tls_key: Path | None = None
    backlog: int = 4096
