"""Options of a tap. Times are in seconds; a time limit of 0 means no limit."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from streamgauge.ingest.http1.heads import HeadLimits
from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.tap.http.rewriting import XForwarded

Relay = Literal["auto", "native", "python"]
WebSockets = Literal["forward", "refuse"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TapOptions(RecordingOptions):
    """Options of `streamgauge.ingest.tap.main.run`. Addresses are HOST:PORT, an IPv6 host in brackets; port 0 lets the OS choose."""

    # Settings: required here, because `streamgauge.settings.model` has the only default of each.
    upstreams: tuple[Upstream, ...]
    """The first one gets the requests that name none (`routing`)."""
    listen: str
    admin: str
    allowed_hosts: tuple[str, ...]
    """Further names in requests to the admin port (`streamgauge.ingest.listening`)."""
    workers: int
    relay: Relay
    """Implementation that forwards and records."""
    x_forwarded: XForwarded
    websockets: WebSockets
    """Forward upgrades, or answer them with 426."""
    max_request_bytes: int
    """A larger request body is answered 413; 0 = no limit."""
    headers_timeout_s: float
    """Silence of the upstream before the response's head."""
    idle_timeout_s: float
    """Silence of the upstream within the response's body."""
    idle_output_timeout_s: float
    """As `idle_timeout_s`, but SSE comments count as silence."""
    drain_timeout_s: float
    """How long open streams may continue after SIGTERM."""
    upstream_ca: Path | None
    """PEM file with the CAs for https upstreams, instead of the system's."""
    upstream_cert: Path | None
    """PEM: client certificate for https upstreams, with its key unless `upstream_key` has it."""
    upstream_key: Path | None
    tls_cert: Path | None
    tls_key: Path | None

    # Constants. Tests and benchmarks change them.
    log: bool = True
    """False forwards without recording, to measure the cost of recording."""
    connect_timeout_s: float = 30.0
    head_timeout_s: float = 30.0
    """From a request's first byte to the end of its head (slow loris), then 408; also for a TLS handshake."""
    body_timeout_s: float = 60.0
    """Silence of the client within its request's body; then 408."""
    keep_alive_timeout_s: float = 75.0
    """An idle client connection is closed after this."""
    peer_timeout_s: float = 300
    """A peer that acknowledges nothing is disconnected (`sockets.limit_silence`)."""
    head_limits: HeadLimits = field(default_factory=HeadLimits)
    write_buffer_bytes: int = 65_536
    """Per connection, before a slow reader pauses the other side."""
    pool_idle: int = 1024
    """Idle connections kept per upstream and worker; 0 keeps none."""
    pool_idle_s: float = 4.0
    """Below the 5 s after which many servers close idle connections: a request on such a connection would fail."""
    backlog: int = 4096
