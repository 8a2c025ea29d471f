"""Latencies of one stream: TTFB, TTFT, ITL, inter-chunk latency, stalls, burstiness, token rates. No I/O, no clock.

Times are in ns since t0. None means unknown or undefined. docs/explanation/measurement.md explains the definitions:

- ttfb: first body byte. ttfc: first event. ttft: first output event (`OUTPUT_KINDS`). ttfo: first output other than reasoning.
- ttst: time between the first two output events of the choice that began first.
- icl (inter-chunk latency): gap between two consecutive output events of one choice, pooled over the choices. Events of one
  read have gap 0. Quantiles interpolate linearly, as DuckDB's `quantile_cont`.
- A stall is a gap in which one party (`streamgauge.analytics.measures.waits`) took longer than `StallLimit`.
- itl (inter-token latency): time from first to last output, divided by tokens - 1. Undefined with several choices.
- Waits for the client and delays by the tap do not count in ttst, gaps and itl: these are figures of the upstream. Columns
  count only the stalls that the upstream caused.
- Burstiness: the share of output bytes that arrived in the largest read, or in reads within 1 ms of another read with output.
  The bytes of an output event count for the read that completed it.

Per-stream measures use plain Python: its sort and maps take less time than starting one polars query. `gap_rows` and
`stall_rows` compute the same gaps for many stored streams at once with polars.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress, pairwise
from operator import sub
from typing import NamedTuple

import polars as pl

from streamgauge.analytics.decoding.decoded_body import first_output_ns as first_output_ns
from streamgauge.analytics.decoding.stream_output import EventColumns
from streamgauge.analytics.dialects.events import OUTPUT_KINDS
from streamgauge.analytics.measures.waits import Cause, WaitedTime, waits_between
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.schema.tables import EVENTS, OUTPUT_STALLS
from streamgauge.ingest.records import Closed, Wait

_NON_REASONING = OUTPUT_KINDS - {"reasoning"}
BURST_NS = 1_000_000
"""Reads at most this far apart count as one burst."""


# -- first times and rates -------------------------------------------------------------------------------------------


def first_event_ns(events: EventColumns) -> int | None:
    """Time of the first event with data (ttfc)."""
    return events.at_ns[0] if events.at_ns else None


def first_nonreasoning_output_ns(events: EventColumns) -> int | None:
    """Time of the first output event that has more than reasoning (ttfo)."""
    found = next(compress(events.at_ns, map(_NON_REASONING.__contains__, events.kind)), None)
    if not events.more_than_reasoning:
        return found
    mixed = events.at_ns[events.more_than_reasoning[0]]
    return mixed if found is None else min(found, mixed)


def last_output_ns(events: EventColumns) -> int | None:
    return next(compress(reversed(events.at_ns), map(OUTPUT_KINDS.__contains__, reversed(events.kind))), None)


def token_rates(
    tokens: int, last_output_ns: int, output_span_ns: int | None
) -> tuple[float | None, float | None, float | None]:
    """Columns itl_ns, tps_user and tps_e2e for a number of output tokens, as far as they are defined."""
    tps_e2e = tokens * 1e9 / last_output_ns if last_output_ns > 0 else None
    if tokens < 2 or output_span_ns is None:
        return None, None, tps_e2e
    tps_user = 1e9 * (tokens - 1) / output_span_ns if output_span_ns else None
    return output_span_ns / (tokens - 1), tps_user, tps_e2e


# -- between output events -------------------------------------------------------------------------------------------


class ChunkLatencies(NamedTuple):
    """Measures between the output events of one stream."""

    ttst_ns: int | None = None
    output_span_ns: int | None = None
    """First to last output event without waits. None with several choices or fewer than two events."""
    last_output_seq: int | None = None
    icl_p50_ns: float | None = None
    icl_p95_ns: float | None = None
    icl_p99_ns: float | None = None
    icl_max_ns: int | None = None
    stall_count: int | None = None
    """Stalls caused by the upstream. 0 if there was output but no gap. None without output."""
    stalled_ns: int | None = None
    burstiness: float | None = None
    listed_tokens: int | None = None
    """Tokens listed by the events themselves. None unless every output event lists them."""


NO_OUTPUT = ChunkLatencies()


class Stall(NamedTuple):
    """`at_ns` is when the gap began, `cause_ns` the part of it that its cause took."""

    at_ns: int
    gap_ns: int
    cause: Cause
    cause_ns: int


def output_waits(events: EventColumns, closed: Closed | None) -> Sequence[Wait]:
    """The waits between the first and the last output event. Most streams have none."""
    waits = closed.waits if closed is not None else None
    if not waits:
        return ()
    first_ns = first_output_ns(events)
    if first_ns is None or waits[-1][1] <= first_ns:
        return ()
    return waits_between(waits, first_ns, last_output_ns(events) or first_ns)


def chunk_latencies(events: EventColumns, stall: StallLimit, waits: Sequence[Wait] = ()) -> ChunkLatencies:
    """`waits` are those of `output_waits`."""
    is_output = _output_mask(events)
    if True not in is_output:
        return NO_OUTPUT
    choices = _times_by_choice(events, is_output)
    # the lowest choice on a tie: they are in that order
    began_first = min(range(len(choices)), key=lambda i: choices[i][0])
    if waits:
        choices = list(map(WaitedTime(waits).upstream_times, choices))
    gaps = sorted(_gaps(choices))
    first = choices[began_first]
    single = choices[0] if len(choices) == 1 else []
    median = quantile(gaps, 0.5)
    stalls: list[int] = []
    # The gaps are sorted, so one comparison shows that there is no stall, as in most streams.
    if median is not None and gaps[-1] > (limit_ns := stall.of(median)):
        stalls = [gap for gap in gaps if gap > limit_ns]
        if waits:
            found = stalls_of(events, median, stall, waits)
            stalls = [one.cause_ns for one in found if one.cause == "upstream"]
    listed = None not in compress(events.tokens, is_output)
    return ChunkLatencies(
        ttst_ns=first[1] - first[0] if len(first) > 1 else None,
        output_span_ns=single[-1] - single[0] if len(single) > 1 else None,
        last_output_seq=len(is_output) - 1 - is_output[::-1].index(True),
        icl_p50_ns=median,
        icl_p95_ns=quantile(gaps, 0.95),
        icl_p99_ns=quantile(gaps, 0.99),
        icl_max_ns=gaps[-1] if gaps else None,
        stall_count=len(stalls),
        stalled_ns=sum(stalls),
        burstiness=_burstiness(events, is_output, separate_reads=len(single) > 1 and gaps[0] > BURST_NS),
        listed_tokens=sum(t for t in events.tokens if t is not None) if listed else None,
    )


def inter_chunk_gaps(events: EventColumns, waits: Sequence[Wait] = ()) -> list[int]:
    """The gaps of all choices without the waits, in ns, sorted."""
    choices = _times_by_choice(events, _output_mask(events))
    return sorted(_gaps(map(WaitedTime(waits).upstream_times, choices) if waits else choices))


def stalls_of(
    events: EventColumns, median_gap_ns: float, stall: StallLimit, waits: Sequence[Wait] = ()
) -> list[Stall]:
    """The stalls of a stream by any cause, sorted. `median_gap_ns` is without the waits."""
    limit_ns = stall.of(median_gap_ns)
    waited = WaitedTime(waits)
    found: list[Stall] = []
    for times in _times_by_choice(events, _output_mask(events)):
        for a, b in pairwise(times):
            if b - a > limit_ns:
                parts = waited.split(a, b)
                if parts.cause_ns > limit_ns:
                    found.append(Stall(a, b - a, parts.cause, parts.cause_ns))
    return sorted(found)


def quantile(ordered: Sequence[float], q: float) -> float | None:
    """Linear interpolation between the two nearest values. None for an empty sequence."""
    if not ordered:
        return None
    index = q * (len(ordered) - 1)
    below = int(index)
    if below + 1 >= len(ordered):
        return float(ordered[-1])
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (index - below)


def _output_mask(events: EventColumns) -> list[bool]:
    return list(map(OUTPUT_KINDS.__contains__, events.kind))


def _gaps(choices: Iterable[Sequence[int]]) -> list[int]:
    gaps: list[int] = []
    for times in choices:
        gaps += map(sub, times[1:], times)
    return gaps


def _times_by_choice(events: EventColumns, is_output: Sequence[bool]) -> list[list[int]]:
    """Times of the output events of each choice, in order of the choices' indexes."""
    at_ns = events.at_ns
    if (
        # Nearly all streams have one choice: then no pairs have to be sorted.
        not events.more_choices
        and len({choice or 0 for choice in set(compress(events.choice, is_output))}) == 1
    ):
        return [list(compress(at_ns, is_output))]
    pairs = [(choice or 0, i) for i, choice in compress(enumerate(events.choice), is_output)]
    pairs += [(choice, i) for i, choice in events.more_choices]
    pairs.sort()
    found: dict[int, list[int]] = {}
    for choice, i in pairs:
        found.setdefault(choice, []).append(at_ns[i])
    return list(found.values())


def _burstiness(events: EventColumns, is_output: Sequence[bool], *, separate_reads: bool) -> float | None:
    """`separate_reads`: no two output events are within a burst, so each arrived in its own read."""
    # The usual stream, one output event per read and all further apart than a burst, needs no loop over its reads.
    sizes = list(compress(events.bytes, is_output))
    if len(sizes) < 2:
        return None
    if separate_reads:
        total = sum(sizes)
        return max(sizes) / total if total else None
    read_times: list[int] = []
    read_sizes: list[int] = []
    last_read = -1
    times = compress(events.at_ns, is_output)
    for read, at_ns, size in zip(compress(events.read_seq, is_output), times, sizes, strict=True):
        if read == last_read:
            read_sizes[-1] += size
        else:
            last_read = read
            read_times.append(at_ns)
            read_sizes.append(size)
    in_burst = [False] * len(read_times)
    for i in range(1, len(read_times)):
        if read_times[i] - read_times[i - 1] <= BURST_NS:
            in_burst[i] = in_burst[i - 1] = True
    in_burst[read_sizes.index(max(read_sizes))] = True
    total = sum(read_sizes)
    return sum(compress(read_sizes, in_burst)) / total if total else None


# -- the same gaps, of stored rows -----------------------------------------------------------------------------------

_GAP_COLUMNS = {
    "row": pl.UInt32(), "key": pl.UInt32(), "seq": pl.Int32(), "choice": pl.Int16(),
    "at_ns": pl.Int64(), "gap_ns": pl.Int64(),
    "upstream_ns": pl.Int64(), "cause": pl.String(), "cause_ns": pl.Int64(),
}  # fmt: skip
# Runs of adjacent events are numbered once. Grouping or joining by the id would hash a text of 36 characters per event.
_IS_NEW_STREAM = pl.col("stream_id").ne_missing(pl.col("stream_id").shift()).fill_null(value=True)
_OUTPUT = [
    (_IS_NEW_STREAM.cum_sum() - 1).cast(pl.UInt32).alias("run"),
    "seq",
    pl.col("choice").fill_null(0),
    "at_ns",
    pl.col("kind").is_in(OUTPUT_KINDS).alias("output"),
]
_FROM_NS = (
    pl.when((pl.col("run") == pl.col("run").shift()) & (pl.col("choice") == pl.col("choice").shift()))
    .then(pl.col("at_ns").shift())
    .alias("from_ns")
)
_GAP = [
    "row", "key", "seq", "choice", pl.col("from_ns").alias("at_ns"),
    (pl.col("at_ns") - pl.col("from_ns")).alias("gap_ns"),
]  # fmt: skip

_CAUSED_BY_UPSTREAM = [
    pl.col("gap_ns").alias("upstream_ns"), pl.lit("upstream").alias("cause"), pl.col("gap_ns").alias("cause_ns"),
]  # fmt: skip


def gap_rows(
    streams: pl.DataFrame, events: pl.DataFrame | None, waits: pl.DataFrame | None = None
) -> pl.DataFrame:
    """One row per inter-chunk gap of the measured streams, with `row` (index in `streams`) and `key` of its stream.

    `gap_ns` is the whole gap, `upstream_ns` the gap without waits, and `cause_ns` the part that its `cause` took. `streams` has
    a column `key`, `waits` the rows of `output_waits`. The events of a stream are adjacent and in order. Table `events` has
    one choice per event.
    """
    if events is None or events.is_empty() or not streams["icl_p50_ns"].count():
        return pl.DataFrame(schema=_GAP_COLUMNS)
    events = with_all_columns(events, EVENTS)
    measured = streams.lazy().with_row_index("row").filter(pl.col("icl_p50_ns").is_not_null())
    runs = (
        events.lazy()
        .filter(_IS_NEW_STREAM)
        .select("stream_id")
        .with_row_index("run")
        .join(measured.select("stream_id", "row", "key"), on="stream_id")
    )
    outputs = events.lazy().select(_OUTPUT).filter("output")
    if events["choice"].max():
        # The events of one choice are in order already.
        outputs = outputs.sort("run", "choice", maintain_order=True)
    gaps = (
        outputs.with_columns(_FROM_NS)
        .filter(pl.col("from_ns").is_not_null())
        .join(runs.drop("stream_id"), on="run")
        .select(_GAP)
        .collect()
        # Without waits the upstream caused every gap. `_split_gaps` corrects the streams that have some.
        .with_columns(_CAUSED_BY_UPSTREAM)
    )
    return gaps if waits is None or waits.is_empty() else _split_gaps(gaps, streams, waits)


def _split_gaps(gaps: pl.DataFrame, streams: pl.DataFrame, waits: pl.DataFrame) -> pl.DataFrame:
    """The gaps with the parts of the streams that have waits. Only these take a Python step per gap."""
    rows = streams.with_row_index("row").select("row", "stream_id")
    waited = {
        row: WaitedTime(list(zip(*columns, strict=True)))
        for row, *columns in waits.sort("stream_id", "from_ns")
        .join(rows, on="stream_id")
        .group_by("row")
        .agg("from_ns", "until_ns", "cause")
        .iter_rows()
    }
    within = pl.col("row").is_in(list(waited))
    split = gaps.filter(within)
    parts = [
        waited[row].split(at_ns, at_ns + gap_ns)
        for row, at_ns, gap_ns in split.select("row", "at_ns", "gap_ns").iter_rows()
    ]
    split = split.with_columns(
        pl.Series("upstream_ns", [p.upstream_ns for p in parts], pl.Int64),
        pl.Series("cause", [p.cause for p in parts], pl.String),
        pl.Series("cause_ns", [p.cause_ns for p in parts], pl.Int64),
    )
    return pl.concat([gaps.filter(~within), split])


def stall_rows(streams: pl.DataFrame, gaps: pl.DataFrame, stall: StallLimit) -> pl.DataFrame:
    """Rows of table `output_stalls`. The upstream's are of streams whose row counts a stall."""
    long_gaps = gaps.filter(pl.col("cause_ns") > stall.floor_ns)
    if long_gaps.is_empty():
        return long_gaps
    return (
        long_gaps.join(streams.with_row_index("row"), on="row", maintain_order="left")
        .filter((pl.col("stall_count") > 0) | (pl.col("cause") != "upstream"))
        .filter(pl.col("cause_ns") > stall.factor * pl.col("icl_p50_ns"))
        .select(OUTPUT_STALLS.types.keys())
    )
