"""Measure one hop: an outer stream (client to gateway) and the inner stream (gateway to model) of the same request.

Pure code. Times are in ns since t0 of their stream. docs/explanation/measurement.md has the definitions.

An inner stream that failed is a failed attempt if the outer stream is `ok` and has other output: it has no measures and no
changes, because the client received nothing of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, NamedTuple

import polars as pl

from streamgauge.analytics.hops.alignment import AlignedChannel, align
from streamgauge.analytics.hops.changes import CHANGE_COLUMNS, Change, changes
from streamgauge.analytics.hops.clock_offset import ClockOffsets, start_ns
from streamgauge.analytics.hops.matching import Match
from streamgauge.analytics.measures.stream_latency import BURST_NS, quantile
from streamgauge.analytics.schema.frames import frame_of_rows
from streamgauge.analytics.schema.hop_columns import HopClocks, HopMatch, HopMeasures
from streamgauge.analytics.schema.tables import GATEWAY_STALLS, HOP_CHANGES, HOPS

STREAM_COLUMNS = (*CHANGE_COLUMNS, "ttft_ns", "end_ns")
"""Columns of `streams` that `Stream.row` must have."""
EVENT_COLUMNS = ("seq", "at_ns", "kind", "choice", "chars")
"""Columns of `events` that `Stream.events` must have."""


class Stall(NamedTuple):
    """A row of `output_stalls`."""

    seq: int
    at_ns: int
    gap_ns: int
    cause: str = "upstream"


class Stream(NamedTuple):
    """The stored rows of one stream."""

    row: Mapping[str, Any]
    events: pl.DataFrame
    """In order of `seq`."""
    stalls: Sequence[Stall] = ()


class Comparison(NamedTuple):
    """The result of `compare`."""

    measures: HopMeasures = HopMeasures()
    gateway_stall_seqs: Sequence[int] = ()
    """`Stall.seq` of the outer stalls that the gateway caused."""
    changes: Sequence[Change] = ()


def compare(outer: Stream, inner: Stream, inner_start_ns: int, clock_error_ns: int = 0) -> Comparison:
    """Measure a hop. `inner_start_ns`: t0 of the inner stream in ns since t0 of the outer one, on one clock.

    `clock_error_ns` is the bound of its error: 0 with one clock.
    """
    channels = align(
        outer.events,
        inner.events,
        inner_start_ns=inner_start_ns,
        complete=outer.row["outcome"] == "ok",
        clock_error_ns=clock_error_ns,
    )
    inner_ok = inner.row["outcome"] == "ok"
    if not channels and not inner_ok and outer.row["outcome"] == "ok":
        return Comparison()
    answered = inner_ok or bool(channels)
    # The shortest delay is the way through the network and the gateway. What exceeds it was held back.
    transit_ns = max(0, min((min(c.delays_ns) for c in channels), default=0))
    stalls = list(_gateway_stalls(outer, inner, channels, inner_start_ns, transit_ns))
    return Comparison(
        _measures(channels, transit_ns)._replace(
            added_ttft_ns=_added_ttft(outer.row, inner.row, inner_start_ns - clock_error_ns),
            added_tail_ns=_added_tail(outer.row, inner.row, inner_start_ns) if answered else None,
            gateway_stall_count=len(stalls) if channels else None,
        ),
        stalls,
        changes(
            outer.row,
            inner.row,
            Counter(outer.events["kind"].to_list()),
            Counter(inner.events["kind"].to_list()),
        ),
    )


def _added_ttft(outer: Mapping[str, Any], inner: Mapping[str, Any], inner_start_ns: int) -> int | None:
    """NULL also if the client's first output is older than this inner stream's."""
    if (
        outer["ttft_ns"] is None
        or inner["ttft_ns"] is None
        or outer["ttft_ns"] < inner_start_ns + inner["ttft_ns"]
    ):
        return None
    return int(outer["ttft_ns"] - inner["ttft_ns"])


def _added_tail(outer: Mapping[str, Any], inner: Mapping[str, Any], inner_start_ns: int) -> int | None:
    """NULL also if the client left: the gateway may read on without it."""
    if outer["end_ns"] is None or inner["end_ns"] is None or outer["outcome"] == "client_abort":
        return None
    return int(outer["end_ns"] - inner_start_ns - inner["end_ns"])


def _measures(channels: Sequence[AlignedChannel], transit_ns: int) -> HopMeasures:
    if not channels:
        return HopMeasures()
    delays_ns = sorted(chain.from_iterable(c.delays_ns for c in channels))
    held = [is_held for c in channels for is_held in _held(c, transit_ns)]
    return HopMeasures(
        added_event_p50_ns=_whole(quantile(delays_ns, 0.5)),
        added_event_p95_ns=_whole(quantile(delays_ns, 0.95)),
        added_event_max_ns=delays_ns[-1],
        aligned_event_count=len(delays_ns),
        merged_event_count=sum(_repeats(c.outer_of_inner) for c in channels),
        split_event_count=sum(_repeats(c.inner_of_outer) for c in channels),
        buffered_share=sum(held) / len(held) if held else None,
    )


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def _repeats(indexes: Sequence[int]) -> int:
    """How many elements equal the one before."""
    return len(indexes) - len(set(indexes))


def _held(channel: AlignedChannel, transit_ns: int) -> list[bool]:
    """For each read of the inner stream but the last: whether the gateway held its output until the next one, within `BURST_NS`.

    The shortest delay of the stream is transit and not counted.
    """
    times_ns = channel.inner.times_ns
    left_ns = map(channel.outer.times_ns.__getitem__, channel.outer_of_inner)
    return [
        left - at - transit_ns > max(next_at - at - BURST_NS, BURST_NS)
        for left, at, next_at in zip(left_ns, times_ns, times_ns[1:], strict=False)
        if at != next_at
    ]


def _gateway_stalls(
    outer: Stream, inner: Stream, channels: Sequence[AlignedChannel], inner_start_ns: int, transit_ns: int
) -> Iterator[int]:
    """The outer stalls that the gateway caused: for most of the gap it had output to send, or did not read what the model sent."""
    due_ns: dict[int, int] = {}
    for channel in channels if outer.stalls else ():
        due_ns.update(_due(channel, transit_ns))
    unread = [
        (s.at_ns + inner_start_ns, s.at_ns + inner_start_ns + s.gap_ns)
        for s in inner.stalls
        if s.cause == "client"
    ]
    for stall in outer.stalls:
        if stall.cause != "upstream" or stall.seq not in due_ns:
            continue
        until_ns = stall.at_ns + stall.gap_ns
        held_ns = until_ns - max(stall.at_ns, due_ns[stall.seq])
        unread_ns = sum(max(0, min(until_ns, end) - max(stall.at_ns, start)) for start, end in unread)
        if 2 * max(held_ns, unread_ns) > stall.gap_ns:
            yield stall.seq


def _due(channel: AlignedChannel, transit_ns: int) -> Iterator[tuple[int, int]]:
    """(seq, when its first character was due) of each aligned outer event: when the inner stream had it, and the transit."""
    inner = channel.inner
    first = 0
    start = 0
    for seq, end, last in zip(channel.outer.seqs, channel.outer.ends, channel.inner_of_outer, strict=False):
        while inner.ends[first] <= start:
            first += 1
        yield seq, inner.times_ns[min(first, last)] + transit_ns
        start = end


Row = dict[str, Any]


class HopRows:
    """Collects the rows of `hops`, `hop_changes` and `gateway_stalls` of several outer streams."""

    def __init__(self, offsets: ClockOffsets) -> None:
        self._offsets = offsets
        self._hops: list[Row] = []
        self._changes: list[tuple[Any, ...]] = []
        self._stalls: set[tuple[str, int]] = set()

    def add(self, attempts: Sequence[Match], streams: Mapping[str, Stream]) -> None:
        """Add an outer stream with its inner ones. `streams` by id."""
        offsets = [self._offsets.between(match.outer, match.inner) for match in attempts]
        ordered = sorted(
            (start_ns(match.outer, match.inner, offsets[n]), n) for n, match in enumerate(attempts)
        )
        for number, (begin_ns, n) in enumerate(ordered, 1):
            match, offset = attempts[n], offsets[n]
            outer, inner = streams[match.outer.stream_id], streams[match.inner.stream_id]
            found = compare(outer, inner, begin_ns, offset.error_ns)
            matched: HopMatch = {
                "outer_stream_id": match.outer.stream_id,
                "inner_stream_id": match.inner.stream_id,
                "outer_started_at": match.outer.wall_ns // 1000,
                "outer_gateway": match.outer.gateway,
                "inner_gateway": match.inner.gateway,
                "model": outer.row["request_model"] or outer.row["response_model"],
                "matched_by": match.matched_by,
                "attempt": number,
                "inner_outcome": match.inner.outcome,
                "inner_error_type": inner.row["error_type"],
                "lost_ns": ordered[number][0] - begin_ns if number < len(ordered) else None,
                "gateway_before_ns": begin_ns,
            }
            clocks: HopClocks = {"clock_offset_ns": offset.ns, "clock_error_ns": offset.error_ns}
            self._hops.append({**matched, **found.measures._asdict(), **clocks})
            key = [matched["outer_stream_id"], matched["inner_stream_id"], matched["outer_started_at"]]
            self._changes += ((*key, *change) for change in found.changes)
            self._stalls.update((match.outer.stream_id, seq) for seq in found.gateway_stall_seqs)

    def tables(self) -> dict[str, pl.DataFrame]:
        """The rows by table."""
        hops = [tuple(map(row.__getitem__, HOPS.types)) for row in self._hops]
        return {
            "hops": frame_of_rows(HOPS, hops),
            "hop_changes": frame_of_rows(HOP_CHANGES, self._changes),
            "gateway_stalls": frame_of_rows(GATEWAY_STALLS, sorted(self._stalls)),
        }
