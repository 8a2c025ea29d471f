"""Time limits of the tap, and the checks whether they have expired.

Pure: methods take timestamps of one monotonic clock in ns. An option of 0 means no limit. A peer's silence counts only
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
CLOSE_PATIENCE_S = 1.0
"""How long a stop waits for clients to receive the end of their streams after the drain time."""
ADMIN_REQUEST_S = 5.0
_NEVER_NS = 1 << 62


class Timeouts:
    """The limits of one worker's connections."""

    def __init__(self, options: TapOptions) -> None:
        def limit_ns(limit_s: float) -> int:
            return int(limit_s * 1e9) if limit_s and isfinite(limit_s) else _NEVER_NS

        self._request_head_ns = limit_ns(options.head_timeout_s)
        self._request_body_ns = limit_ns(options.body_timeout_s)
        self._keep_alive_ns = limit_ns(options.keep_alive_timeout_s)
        self._response_head_ns = limit_ns(options.headers_timeout_s)
        self._idle_bytes_ns = limit_ns(options.idle_timeout_s)
        self._idle_output_ns = limit_ns(options.idle_output_timeout_s)
        shortest_ns = min(
            self._request_head_ns, self._request_body_ns, self._keep_alive_ns,
            self._response_head_ns, self._idle_bytes_ns, self._idle_output_ns,
        )  # fmt: skip
        self.check_interval_s = shortest_ns / 4e9 if shortest_ns < _NEVER_NS else 0.0
        """How often a connection checks its limits; 0 without limits."""
        self.connect_s = options.connect_timeout_s or None
        self.drain_s = options.drain_timeout_s

    def request_head_expired(self, now_ns: int, first_byte_ns: int, ready_ns: int) -> bool:
        """Too long since the first byte of an incomplete request head (slow loris)."""
        return now_ns - max(first_byte_ns, ready_ns) > self._request_head_ns

    def request_body_expired(self, now_ns: int, last_byte_ns: int, ready_ns: int) -> bool:
        return now_ns - max(last_byte_ns, ready_ns) > self._request_body_ns

    def keep_alive_expired(self, now_ns: int, last_byte_ns: int, ready_ns: int) -> bool:
        return now_ns - max(last_byte_ns, ready_ns) > self._keep_alive_ns

    def response_head_expired(self, now_ns: int, last_byte_ns: int, ready_ns: int) -> bool:
        return now_ns - max(last_byte_ns, ready_ns) > self._response_head_ns

    def idle_expired(self, now_ns: int, last_byte_ns: int, ready_ns: int) -> bool:
        """Silence within the response's body."""
        return now_ns - max(last_byte_ns, ready_ns) > self._idle_bytes_ns

    def idle_output_expired(self, now_ns: int, output_ns: int, ready_ns: int) -> bool:
        """As `idle_expired`, but SSE comments (heartbeats) are no output."""
        return now_ns - max(output_ns, ready_ns) > self._idle_output_ns
