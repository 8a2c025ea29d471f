"""Rows of table `events` for many streams. The decoders' lists become columns without a Python step per event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.schema.tables import EVENTS
from streamgauge.ingest import identifiers

_LISTS = ("read_seq", "at_ns", "kind", "event_name", "choice", "chars", "tokens", "bytes", "finish_reason")


def event_frame(finished: Sequence[FinishedStream]) -> pl.DataFrame:
    """The events of finished streams, in order. A number outside its column's range becomes NULL."""
    sources = [
        (s.stream_id, s.decoder.events) for s in finished if s.decoder is not None and s.decoder.events
    ]
    owners = pl.DataFrame(
        {"stream_id": [stream_id for stream_id, _ in sources], "n": [len(columns) for _, columns in sources]},
        schema={"stream_id": EVENTS["stream_id"], "n": pl.Int64},
    )
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    for _, columns in sources:
        for name in _LISTS:
            lists[name] += (
                _event_names(columns.event_name) if name == "event_name" else getattr(columns, name)
            )
    return owners.select(
        pl.col("stream_id").repeat_by("n"), pl.int_ranges("n", dtype=pl.Int32).alias("seq")
    ).select(pl.all().explode(), *(_series(name, values) for name, values in lists.items()))


def _event_names(names: list[str]) -> list[str]:
    """SSE event names that may be stored. A stream has few distinct ones."""
    replaced = {name: kept for name in set(names) if name and (kept := identifiers.name(name) or "") != name}
    return [replaced.get(name, name) for name in names] if replaced else names


def _series(name: str, values: list[Any]) -> pl.Series:
    kind = EVENTS[name]
    if kind == pl.String:
        series = pl.Series(name, values, kind)
        return series if name in ("stream_id", "kind") else series.replace("", None)
    wide = pl.Series(name, values, pl.Int64, strict=False)
    return wide if kind == pl.Int64 else wide.cast(kind, strict=False)
