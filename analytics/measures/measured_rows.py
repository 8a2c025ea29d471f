"""Measure a batch of streams and isolate the ones that fail. No I/O.

If measuring a batch raises, its streams are measured one by one. A stream that raises is stored as `tap_lost` without
measurements.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.measures.dead_letters import DeadLetters
from streamgauge.analytics.measures.outcome import LOST

log = logging.getLogger(__name__)

Measure = Callable[[Sequence[FinishedStream]], dict[str, pl.DataFrame]]


def measured_rows(
    finished: Sequence[FinishedStream], measure: Measure, dead_letters: DeadLetters
) -> dict[str, pl.DataFrame]:
    """Rows by table. Streams that cannot be measured are added to `dead_letters`."""
    if not finished:
        return {}
    try:
        return dict(measure(finished))
    except Exception:
        log.exception(
            "measuring a batch of %d streams failed. Its streams are measured one by one.", len(finished)
        )
    parts: list[dict[str, pl.DataFrame]] = []
    for stream in finished:
        try:
            parts.append(measure([stream]))
        except Exception as e:
            reason = f"measure: {type(e).__name__}"
            dead_letters.add(stream.partition, -1, stream.stream_id, reason, 0, stream.stream_id.encode())
            opened = stream.opened
            gateway, tap = (opened.gateway, opened.tap) if opened else (None, None)
            parts.append({"streams": lost_row(stream.stream_id, stream.started_wall_ns, gateway, tap)})
    names = {name for part in parts for name in part}
    return {name: pl.concat([p[name] for p in parts if name in p], how="diagonal_relaxed") for name in names}


def lost_row(stream_id: str, started_wall_ns: int, gateway: str | None, tap: str | None) -> pl.DataFrame:
    """The row of a lost stream without further data."""
    return pl.DataFrame(
        {
            "stream_id": [stream_id],
            "started_at": [started_wall_ns // 1000],
            "gateway": [gateway],
            "tap": [tap],
            "outcome": [LOST.outcome],
            "error_type": [LOST.error_type],
        },
        schema_overrides={"gateway": pl.String, "tap": pl.String},
    ).with_columns(pl.col("started_at").cast(pl.Datetime("us", "UTC")))
