"""Durations are split between upstream, client and tap; the parts add up on random schedules."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.decoding.stream_output import EventColumns
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.stream_latency import (
    Stall,
    chunk_latencies,
    gap_rows,
    inter_chunk_gaps,
    output_waits,
    stall_rows,
    stalls_of,
)
from streamgauge.analytics.measures.waits import TimeSplit, WaitedTime, split_stream, waits_between
from streamgauge.analytics.schema.frames import frame, frame_of_rows
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.schema.tables import EVENTS, OUTPUT_WAITS, STREAMS
from streamgauge.ingest.records import AnyRecord, Wait
from tests.analytics.stream_records import closed, stream_id, whole_stream

MS = 1_000_000
LIMIT = StallLimit(500 * MS, 5.0)
A, B = stream_id(1), stream_id(2)


@st.composite
def schedules(draw: st.DrawFn) -> list[Wait]:
    """Disjoint waits in any order of parties, some adjacent."""
    waits: list[Wait] = []
    at_ns = 0
    for _ in range(draw(st.integers(0, 8))):
        from_ns = at_ns + draw(st.integers(0, 900) | st.just(0))
        at_ns = from_ns + draw(st.integers(0, 900))
        waits.append((from_ns, at_ns, draw(st.sampled_from(["client", "tap"]))))
    return waits


def counted(waits: list[Wait], from_ns: int, until_ns: int) -> TimeSplit:
    """The split, ns by ns."""
    parties = ["upstream"] * until_ns
    for begin, end, by in waits:
        for at in range(begin, min(end, until_ns)):
            parties[at] = by
    within = parties[from_ns:]
    return TimeSplit(within.count("upstream"), within.count("client"), within.count("tap"))


@settings(max_examples=150, deadline=None)
@given(schedules(), st.integers(0, 6000))
def test_the_parts_of_a_stream_add_up_to_its_end(waits: list[Wait], end_ns: int) -> None:
    parts = split_stream(waits, end_ns)
    assert sum(parts) == end_ns
    assert min(parts) >= 0
    assert parts == counted(waits, 0, end_ns)


@settings(max_examples=150, deadline=None)
@given(schedules(), st.lists(st.integers(0, 6000), min_size=2, max_size=8).map(sorted))
def test_the_parts_of_gaps_add_up_to_the_parts_of_their_span(waits: list[Wait], times: list[int]) -> None:
    waited = WaitedTime(waits)
    parts = [waited.split(a, b) for a, b in pairwise(times)]
    assert parts == [counted(waits, a, b) for a, b in pairwise(times)]
    assert tuple(map(sum, zip(*parts, strict=True))) == waited.split(times[0], times[-1])
    upstream = waited.upstream_times(times)
    assert [b - a for a, b in pairwise(upstream)] == [p.upstream_ns for p in parts]
    within = WaitedTime(waits_between(waits, times[0], times[-1]))
    assert [within.split(a, b) for a, b in pairwise(times)] == parts


def test_the_longest_part_is_the_cause() -> None:
    assert TimeSplit(5, 4, 3).cause == "upstream"
    assert TimeSplit(4, 5, 3).cause == "client"
    assert TimeSplit(4, 3, 5).cause == "tap"
    assert TimeSplit(5, 5, 5).cause == "upstream"
    assert TimeSplit(1, 5, 5).cause == "client"
    assert TimeSplit(1, 5, 4).cause_ns == 5


# -- gaps of one stream, and the same gaps of stored rows ------------------------------------------------------------


def outputs_at(times_ns: list[int], choices: list[int] | None = None) -> EventColumns:
    events = EventColumns()
    for i, at_ns in enumerate(times_ns):
        events.read_seq.append(i)
        events.at_ns.append(at_ns)
        events.kind.append("text")
        events.event_name.append("")
        events.choice.append(choices[i] if choices else 0)
        events.chars.append(1)
        events.tokens.append(None)
        events.bytes.append(10)
        events.finish_reason.append(None)
    return events


def test_waits_do_not_count_in_the_figures_of_the_upstream() -> None:
    events = outputs_at([100 * MS, 200 * MS, 2300 * MS, 2400 * MS, 3100 * MS])
    waits: list[Wait] = [(250 * MS, 2250 * MS, "client")]
    found = chunk_latencies(events, LIMIT, waits)
    assert inter_chunk_gaps(events, waits) == [100 * MS, 100 * MS, 100 * MS, 700 * MS]
    assert (found.output_span_ns, found.icl_max_ns, found.icl_p50_ns) == (1000 * MS, 700 * MS, 100 * MS)
    assert (found.stall_count, found.stalled_ns) == (1, 700 * MS)
    assert stalls_of(events, 100.0 * MS, LIMIT, waits) == [
        Stall(200 * MS, 2100 * MS, "client", 2000 * MS), Stall(2400 * MS, 700 * MS, "upstream", 700 * MS),
    ]  # fmt: skip


def test_a_gap_in_which_no_party_exceeds_the_limit_is_no_stall() -> None:
    events = outputs_at([0, 600 * MS])
    assert stalls_of(events, 0.0, LIMIT, [(0, 300 * MS, "client")]) == []
    assert stalls_of(events, 0.0, LIMIT, [(0, 550 * MS, "tap")]) == [Stall(0, 600 * MS, "tap", 550 * MS)]


def test_only_waits_within_the_output_change_gaps() -> None:
    events = outputs_at([100, 200])

    def found(*waits: Wait) -> Any:
        return output_waits(events, closed(A, 9, waits=list(waits)))

    assert output_waits(events, None) == output_waits(events, closed(A, 9)) == ()
    assert found((0, 100, "client")) == ()
    assert found((0, 110, "client"), (190, 250, "tap")) == [(100, 110, "client"), (190, 200, "tap")]
    assert output_waits(EventColumns(), closed(A, 9, waits=[(0, 100, "client")])) == ()


@pytest.mark.parametrize("seed", range(8))
def test_stored_rows_have_the_gaps_and_stalls_of_their_streams(seed: int) -> None:
    rng = random.Random(seed)
    streams: list[dict[str, Any]] = []
    events: list[tuple[Any, ...]] = []
    waits: list[tuple[Any, ...]] = []
    gaps: list[int] = []
    stalls: list[tuple[Any, ...]] = []
    for number in range(12):
        stream_id = f"0198b2d0-0000-7000-8000-{number:012d}"
        at_ns, times = 0, []
        for _ in range(rng.randrange(2, 30)):
            at_ns += rng.choice([0, 20 * MS, 50 * MS, 700 * MS, 3000 * MS])
            times.append(at_ns)
        columns = outputs_at(times, [rng.randrange(2) for _ in times] if number % 3 == 0 else None)
        planned: list[Wait] = []
        at = 0
        while number % 2 and at < at_ns:
            begin = at + rng.randrange(800 * MS)
            at = begin + rng.randrange(900 * MS)
            planned.append((begin, at, rng.choice(["client", "tap"])))
        within = output_waits(columns, closed(stream_id, 9, end_ns=at_ns, waits=planned))
        found = chunk_latencies(columns, LIMIT, within)
        waits += [(stream_id, *wait) for wait in within]
        gaps += inter_chunk_gaps(columns, within)
        if found.icl_p50_ns is not None:
            listed = stalls_of(columns, found.icl_p50_ns, LIMIT, within)
            stalls += [(stream_id, s.at_ns, s.gap_ns, s.cause) for s in listed]
            assert found.stall_count == sum(s.cause == "upstream" for s in listed)
        row = {"stream_id": stream_id, "started_at": 0, "outcome": "ok", "icl_p50_ns": found.icl_p50_ns}
        streams.append({**row, "stall_count": found.stall_count})
        for seq, (at_ns, choice) in enumerate(zip(columns.at_ns, columns.choice, strict=True)):
            row = dict.fromkeys(EVENTS.types) | {"stream_id": stream_id, "seq": seq, "read_seq": seq}
            events.append(tuple((row | {"at_ns": at_ns, "kind": "text", "choice": choice}).values()))
    stored = frame(STREAMS, {name: [row.get(name) for row in streams] for name in STREAMS.types})
    stored = stored.with_columns(pl.lit(0, pl.UInt32).alias("key"), pl.lit("m").alias("model"))
    rows = gap_rows(stored, frame_of_rows(EVENTS, events), frame_of_rows(OUTPUT_WAITS, waits))
    assert sorted(rows["upstream_ns"]) == sorted(gaps)
    found_stalls = stall_rows(stored, rows, LIMIT).select("stream_id", "at_ns", "gap_ns", "cause")
    assert sorted(found_stalls.iter_rows()) == sorted(stalls)
    assert {cause for *_, cause in stalls} >= {"upstream", "client"}


# -- rows ------------------------------------------------------------------------------------------------------------


def fed(*records: AnyRecord) -> Assembler:
    assembler = Assembler()
    assembler.feed("w0", 0, list(records))
    return assembler


def rows_of(**closed_fields: Any) -> tuple[dict[str, Any], pl.DataFrame]:
    records = whole_stream(A, outputs=6)
    tables = measure(fed(*records[:-1], closed(A, len(records) - 1, **closed_fields)).take_finished())
    [row] = tables["streams"].to_dicts()
    return row, tables["output_waits"]


def parts_of(row: dict[str, Any]) -> tuple[int | None, ...]:
    return row["waited_upstream_ns"], row["waited_client_ns"], row["tap_delay_ns"]


def test_rows_have_the_parts_and_the_waits_within_the_output() -> None:
    row, waits = rows_of(
        end_ns=60 * MS, waits=[(0, 10, "client"), (40, 30 * MS, "tap"), (30 * MS, 80 * MS, "client")]
    )
    assert parts_of(row) == (30, 30 * MS + 10, 30 * MS - 40)
    assert [(begin, end, by) for _, begin, end, by in waits.iter_rows()] == [
        (row["ttft_ns"], 30 * MS, "tap"), (30 * MS, row["last_output_ns"], "client"),
    ]  # fmt: skip
    assert row["icl_max_ns"] == 0


def test_a_stream_without_waits_waited_for_the_upstream() -> None:
    row, waits = rows_of(end_ns=60 * MS, waits=[])
    assert parts_of(row) == (60 * MS, 0, 0)
    assert waits.is_empty()


def test_the_parts_are_unknown_in_old_logs_and_without_an_end() -> None:
    row, _ = rows_of(end_ns=60 * MS)
    assert parts_of(row) == (None, None, None)
    assembler = fed(*whole_stream(B)[:2])
    assembler.lose_open("w0", "tap_died")
    [row] = measure(assembler.take_finished())["streams"].to_dicts()
    assert parts_of(row) == (None, None, None)
