"""The phases that one stream went through, from its row: what the waterfall draws. Pure.

A phase is left out when either end of it is unknown; nothing is guessed. Times are ns from t0; only the client's part
lies before 0.
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
    """In the order in which they happened."""
    ttft, ttfo, last, end = (row.get(k) for k in ("ttft_ns", "ttfo_ns", "last_output_ns", "end_ns"))
    reasoned = ttft is not None and ttfo is not None and ttfo > ttft
    steps: list[tuple[str, int | None, int | None, str]] = [
        (
            "request in",
            row.get("client_start_ns"),
            0,
            "The client's request arrives at the tap, until the tap turns upstream (t0).",
        ),
        (
            "connect",
            0,
            row.get("connected_ns"),
            "DNS, TCP and TLS to the upstream, or taking a kept connection.",
        ),
        ("send", row.get("connected_ns"), row.get("request_sent_ns"), "The request goes upstream."),
        (
            "wait",
            row.get("request_sent_ns"),
            row.get("headers_ns"),
            "The upstream thinks; nothing came back yet.",
        ),
        (
            "first byte",
            row.get("headers_ns"),
            row.get("ttfb_ns"),
            "Response head to the first byte of the body.",
        ),
        (
            "first token",
            row.get("ttfb_ns"),
            ttft,
            "Body has begun, but no output yet: role chunks, pings, prompt processing.",
        ),
        ("reasoning", ttft if reasoned else None, ttfo, "First output to the first that is not reasoning."),
        ("answer", ttfo if ttfo is not None else ttft, last, "First to last output event."),
        ("tail", last, end, "Last output to the end of the body: finish, usage, terminator."),
    ]
    if ttft is None and row.get("ttfb_ns") is not None:
        steps.append(("body", row.get("ttfb_ns"), end, "A body without streamed output."))
    return [
        Phase(name, int(a), int(b), why)
        for name, a, b, why in steps
        if a is not None and b is not None and b >= a
    ]
