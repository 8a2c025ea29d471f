"""Rows of `hops`, `hop_changes` and `gateway_stalls` for the matched inner streams of outer ones. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from streamgauge.analytics.hop_matching.candidate import start_ns
from streamgauge.analytics.hop_matching.clock_offsets import ClockOffsets
from streamgauge.analytics.hop_matching.matching import Match
from streamgauge.analytics.hops.comparison import Comparison, Stream, compare
from streamgauge.analytics.schema.tables import GATEWAY_STALLS, HOP_CHANGES, HOPS, frame_of_rows

Row = dict[str, Any]


class HopRows:
    """Collects the rows of several outer streams."""

    def __init__(self, offsets: ClockOffsets) -> None:
        self._offsets = offsets
        self._hops: list[Row] = []
        self._changes: list[Row] = []
        self._stalls: set[tuple[str, int]] = set()

    def add(self, attempts: Sequence[Match], streams: Mapping[str, Stream]) -> None:
        """Add an outer stream with its inner ones. `streams` by id."""
        ordered = sorted((self._start_ns(match), n) for n, match in enumerate(attempts))
        for number, (begin_ns, n) in enumerate(ordered, 1):
            match = attempts[n]
            offset = self._offsets.between(match.outer, match.inner)
            outer, inner = streams[match.outer.stream_id], streams[match.inner.stream_id]
            found = compare(outer, inner, begin_ns, offset.error_ns)
            key = {
                "outer_stream_id": match.outer.stream_id,
                "inner_stream_id": match.inner.stream_id,
                "outer_started_at": match.outer.wall_ns // 1000,
            }
            self._hops.append(
                key
                | found.measures._asdict()
                | {
                    "outer_gateway": match.outer.gateway,
                    "inner_gateway": match.inner.gateway,
                    "model": outer.row["request_model"] or outer.row["response_model"],
                    "matched_by": match.matched_by,
                    "attempt": number,
                    "inner_outcome": match.inner.outcome,
                    "inner_error_type": inner.row["error_type"],
                    "lost_ns": ordered[number][0] - begin_ns if number < len(ordered) else None,
                    "gateway_before_ns": begin_ns,
                    "clock_offset_ns": offset.ns,
                    "clock_error_ns": offset.error_ns,
                }
            )
            self._changes += (key | change for change in _changes(found))
            self._stalls.update((match.outer.stream_id, seq) for seq in found.gateway_stall_seqs)

    def _start_ns(self, match: Match) -> int:
        return start_ns(match.outer, match.inner, self._offsets.between(match.outer, match.inner))

    def tables(self) -> dict[str, pl.DataFrame]:
        """The rows by table."""
        stalls = [dict(zip(GATEWAY_STALLS, stall, strict=True)) for stall in sorted(self._stalls)]
        return {
            "hops": frame_of_rows(HOPS, list(_in_order(self._hops, HOPS))),
            "hop_changes": frame_of_rows(HOP_CHANGES, list(_in_order(self._changes, HOP_CHANGES))),
            "gateway_stalls": frame_of_rows(GATEWAY_STALLS, list(_in_order(stalls, GATEWAY_STALLS))),
        }


def _changes(found: Comparison) -> Iterator[Row]:
    return (change._asdict() for change in found.changes)


def _in_order(rows: Iterable[Row], columns: Iterable[str]) -> Iterator[tuple[Any, ...]]:
    names = tuple(columns)
    return (tuple(row.get(name) for name in names) for row in rows)
