"""Time limits of the tap, and the check whether one has expired.

Pure: functions take timestamps of one monotonic clock in ns. An option of 0 means no limit. A peer's silence counts only
from `ready_ns`, the time since which the tap has been ready to receive from that peer.
"""

from __future__ import annotations

from math import isfinite

from streamgauge.ingest.tap.options import TapOptions

LINGER_S = 2.0
"""How long the tap reads on after its last response. Closing earlier could reset the connection before the client has read
the response."""
RESET_PATIENCE_S = 2.0
"""How long a reset waits for the peer's kernel to acknowledge more of the bytes that were written before it."""
RESET_CHECK_S = 0.01
STOP_CHECK_S = 0.01
FIRST_REQUEST_S = 0.1
"""How long a stop waits for the first requests of connections that were just accepted."""
CLOSE_PATIENCE_S = 1.0
"""How long a stop waits for clients to receive the end of their streams after the drain time."""
_NEVER_NS = 1 << 62


class Timeouts:
    """The limits of one worker's connections: `NAME_ns` for `expired`, others in seconds."""

    def __init__(self, options: TapOptions) -> None:
        def limit_ns(limit_s: float) -> int:
            return int(limit_s * 1e9) if limit_s and isfinite(limit_s) else _NEVER_NS

        self.request_head_ns = limit_ns(options.head_timeout_s)
        """From the first byte of a request's head to its end (slow loris)."""
        self.request_body_ns = limit_ns(options.body_timeout_s)
        self.keep_alive_ns = limit_ns(options.keep_alive_timeout_s)
        self.response_head_ns = limit_ns(options.headers_timeout_s)
        self.idle_ns = limit_ns(options.idle_timeout_s)
        """Silence within the response's body."""
        self.idle_output_ns = limit_ns(options.idle_output_timeout_s)
        """As `idle_ns`, but SSE comments (heartbeats) are no output."""
        shortest_ns = min(
            self.request_head_ns, self.request_body_ns, self.keep_alive_ns,
            self.response_head_ns, self.idle_ns, self.idle_output_ns,
        )  # fmt: skip
        self.check_interval_s = shortest_ns / 4e9 if shortest_ns < _NEVER_NS else 0.0
        """How often a connection checks its limits; 0 without limits."""
        self.connect_s = options.connect_timeout_s or None
        self.drain_s = options.drain_timeout_s


def expired(limit_ns: int, now_ns: int, last_ns: int, ready_ns: int) -> bool:
    """Whether a peer that last sent something at `last_ns` has been silent for longer than a limit."""
    return now_ns - max(last_ns, ready_ns) > limit_ns
