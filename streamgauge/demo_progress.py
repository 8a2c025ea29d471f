"""The progress line of a demo: requests sent by clients and streams measured by analytics."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import click

from streamgauge.analytics.query.errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.simulator.traffic import Traffic


class Progress:
    """Updates one line each second on a terminal, or writes a line every ten seconds otherwise."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._terminal = sys.stdout.isatty()
        self._next_s = 0.0

    def due(self) -> bool:
        """Whether the next update is due."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + (1 if self._terminal else 10)
        return True

    def show(self, traffic: Traffic, measured: str, ends_s: float | None) -> None:
        remaining = "" if ends_s is None else f"   {max(0.0, ends_s - time.monotonic()):.0f} s left"
        line = f"sent {traffic.sent}   open {traffic.open_requests}   aborted {traffic.aborted}{measured}{remaining}"
        if self._terminal:
            click.echo(f"\r\x1b[K{line}", nl=False)
        else:
            self._write(line)

    def end(self) -> None:
        if self._terminal:
            click.echo()


def measured_text(tables: QueryPool) -> str:
    """All streams and errors, and the median TTFT of the last minute. Empty without tables."""
    sql = (
        f"SELECT count(*) AS n, count(*) FILTER ({IS_ERROR}) AS errors, "
        "quantile_cont(ttft_ns, 0.5) FILTER (started_at > now() - INTERVAL 1 MINUTE) / 1e6 AS ttft_ms FROM streams"
    )
    try:
        streams, errors, ttft_ms = tables.query(sql, timeout_s=5).row(0)
    except QueryError:
        return ""
    ttft = "–" if ttft_ms is None else f"{ttft_ms:.0f}"
    return f"   measured {streams}   errors {errors}   ttft p50 {ttft} ms"
