"""The line that tells how a demo is going: what the clients sent, and what analytics has measured of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import click

from analytics.query.errors import QueryError
from analytics.query.query_pool import QueryPool
from analytics.schema.outcomes import IS_ERROR
from streamgauge.simulator.traffic import Traffic


class Progress:
    """One line that is rewritten on a terminal, and written every ten seconds elsewhere."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._terminal = sys.stdout.isatty()
        self._next_s = 0.0

    def due(self) -> bool:
        """Whether it is time for the next look."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return False
        self._next_s = now_s + (1 if self._terminal else 10)
        return True

    def show(self, traffic: Traffic, seen: dict[str, Any] | None, ends_s: float | None) -> None:
        left = "" if ends_s is None else f"   {max(0.0, ends_s - time.monotonic()):.0f} s left"
        measured = "" if seen is None else (
            f"   measured {seen['n']}   errors {seen['errors']}   ttft p50 {_or_dash(seen['ttft_ms'])} ms"
        )  # fmt: skip
        line = f"sent {traffic.sent}   open {traffic.open_requests}   gone early {traffic.aborted}{measured}{left}"
        if self._terminal:
            click.echo(f"\r\x1b[K{line}", nl=False)
        else:
            self._say(line)

    def end(self) -> None:
        if self._terminal:
            click.echo()


def glance(tables: QueryPool) -> dict[str, Any] | None:
    """Streams, errors and the last minute's median TTFT; None while there are no tables."""
    sql = (
        f"SELECT count(*) AS n, count(*) FILTER ({IS_ERROR}) AS errors, "
        "quantile_cont(ttft_ns, 0.5) FILTER (started_at > now() - INTERVAL 1 MINUTE) / 1e6 AS ttft_ms FROM streams"
    )
    try:
        seen: dict[str, Any] = tables.query(sql, timeout_s=5).row(0, named=True)
        return seen
    except QueryError:
        return None


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}"
