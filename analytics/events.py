"""The events of many streams as one data frame: the rows of table `events`, and the streams that they belong to.

Columns are made from the decoders' lists as they are, without a Python step per event.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from analytics.stream import FinishedStream
from analytics.tables import EVENTS

MAX_NAME_CHARS = 200
"""Names and finish reasons are words; what is longer is cut."""
_LISTS = ("read_seq", "at_ns", "kind", "event_name", "choice", "chars", "tokens", "bytes", "finish_reason")


@dataclass(frozen=True, slots=True)
class EventFrame:
    """Events of a batch, in the order of the streams and of their seq."""

    rows: pl.DataFrame
    """Exactly the columns of table `events`."""
    stream: pl.Series
    """For each row the index of its stream in the batch."""
    extra: pl.DataFrame
    """(row, choice) for the output of an event to choices beyond the one in its row."""


def event_frame(finished: Sequence[FinishedStream]) -> EventFrame:
    """The events of finished streams. A number that its column cannot hold becomes NULL."""
    lists: dict[str, list[Any]] = {name: [] for name in _LISTS}
    counts: list[int] = []
    extra_rows: list[int] = []
    extra_choices: list[int] = []
    total = 0
    for stream in finished:
        decoder = stream.decoder
        count = 0
        if decoder is not None:
            columns = decoder.events
            count = len(columns)
            if count:
                for name in _LISTS:
                    lists[name] += getattr(columns, name)
                for row, choice in columns.more_choices:
                    extra_rows.append(total + row)
                    extra_choices.append(choice)
        counts.append(count)
        total += count
    ids: list[str] = []
    index: list[int] = []
    seqs: list[int] = []
    for i, count in enumerate(counts):
        ids += [finished[i].stream_id] * count
        index += [i] * count
        seqs += range(count)
    columns_of = [pl.Series("stream_id", ids, pl.String), pl.Series("seq", seqs, pl.Int32)]
    columns_of += [_series(name, lists[name]) for name in _LISTS]
    return EventFrame(
        rows=pl.DataFrame(columns_of),
        stream=pl.Series("stream", index, pl.UInt32),
        extra=pl.DataFrame(
            {"row": extra_rows, "choice": extra_choices},
            schema={"row": pl.UInt32, "choice": pl.Int64},
            strict=False,
        ),
    )


def _series(name: str, values: list[Any]) -> pl.Series:
    kind = EVENTS[name]
    if kind == pl.String:
        series = pl.Series(name, values, kind)
        if name != "kind":
            longest = series.str.len_bytes().max()
            if isinstance(longest, int) and longest > MAX_NAME_CHARS:
                series = series.str.head(MAX_NAME_CHARS)
            series = series.replace("", None)
        return series
    wide = pl.Series(name, values, pl.Int64, strict=False)
    return wide if kind == pl.Int64 else wide.cast(kind, strict=False)
