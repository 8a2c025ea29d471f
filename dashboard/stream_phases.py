"""The phases of one stream, computed from its row. Pure.

Times are ns from t0; only the phase before t0 is negative. A phase with an unknown start or end is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Phase:
    """One bar of the waterfall."""

    name: str
    start_ns: int
    end_ns: int
    meaning: str

    @property
    def length_ns(self) -> int:
        return self.end_ns - self.start_ns


def phases(row: Mapping[str, Any]) -> list[Phase]:
    """The phases of a row of `streams`, in order."""
    connected, sent, headers, ttfb = (
        row.get(k) for k in ("connected_ns", "request_sent_ns", "headers_ns", "ttfb_ns")
    )
    ttft, ttfo, last, end = (row.get(k) for k in ("ttft_ns", "ttfo_ns", "last_output_ns", "end_ns"))
    reasoned = ttft is not None and ttfo is not None and ttfo > ttft
    candidates: list[tuple[str, int | None, int | None, str]] = [
        ("request in", row.get("client_start_ns"), 0, "From the first byte of the client's request to t0."),
        ("connect", 0, connected, "DNS, TCP and TLS to the upstream, or reuse of a kept connection."),
        ("send", connected, sent, "Sending the request to the upstream."),
        ("wait", sent, headers, "Waiting for the response headers."),
        ("first byte", headers, ttfb, "From the response headers to the first byte of the body."),
        (
            "first token",
            ttfb,
            ttft,
            "The body has begun without output: role chunks, pings, prompt processing.",
        ),
        (
            "reasoning",
            ttft if reasoned else None,
            ttfo,
            "From the first output to the first non-reasoning output.",
        ),
        ("answer", ttfo if ttfo is not None else ttft, last, "To the last output event."),
        ("tail", last, end, "From the last output to the end of the body: finish, usage, terminator."),
    ]
    if ttft is None and ttfb is not None:
        candidates.append(("body", ttfb, end, "A body without streamed output."))
    return [
        Phase(name, int(start), int(stop), meaning)
        for name, start, stop, meaning in candidates
        if start is not None and stop is not None and stop >= start
    ]
