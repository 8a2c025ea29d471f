"""A segment of the tap's log is damaged before it was read: exactly the affected streams are reported."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import pytest

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.ingest.record_log.run_totals import RunTotalsFile
from streamgauge.ingest.records import AnyRecord, pack
from tests.analytics.log_entries import INCARNATION, alive, stream, stream_id
from tests.analytics.stores import place_empty_catalog
from tests.chaos.test_rounds import part
from tests.deadline import until
from tests.ingest.record_log.entries import roll, segments_of, writer_of
from tests.tables import tables

WHOLE_BEFORE, WITH_A_GAP, WITHOUT_ITS_END, UNKNOWN, WHOLE_AFTER, UNAFFECTED = range(1, 7)


def damaged_log(data: Path) -> None:
    """Three segments of one worker's log, the middle one spoilt, and an empty store."""
    place_empty_catalog(data)
    all_of = {n: stream(n, chunks=10) for n in range(1, 7)}

    def some(number: int, first: int, end: int | None = None) -> list[AnyRecord]:
        return all_of[number][first:end]

    first = [
        *some(WHOLE_BEFORE, 0),
        *some(WITH_A_GAP, 0, 3),
        *some(WITHOUT_ITS_END, 0, 3),
        *some(UNAFFECTED, 0, 3),
    ]
    damaged = [*some(WITH_A_GAP, 3, 4), *some(WITHOUT_ITS_END, 3), *some(UNKNOWN, 0)]
    last = [*some(WITH_A_GAP, 4), *some(WHOLE_AFTER, 0), *some(UNAFFECTED, 3)]
    with writer_of(data / "log", segment_bytes=300_000) as writer:
        RunTotalsFile(data / "log" / "w0", INCARNATION).close()
        writer.append([pack([alive(0), *first], compress=True)])
        roll(writer)
        writer.append([pack([record], compress=True) for record in damaged])
        roll(writer)
        writer.append([pack([*last, alive(10_000, stopping=True)], compress=True)])
    segment = data / "log" / "w0" / segments_of(data / "log")[1]
    segment.write_bytes(b"this is no database, and long enough to be sure of it" * 100)


def check_measurements(data: Path) -> None:
    def outcomes() -> dict[str, str] | None:
        with contextlib.suppress(QueryError):
            rows = dict(tables(data).query("SELECT stream_id::VARCHAR, outcome FROM streams").iter_rows())
            return rows if len(rows) >= 5 else None
        return None

    assert until(outcomes, "the streams") == {
        stream_id(WHOLE_BEFORE): "ok",
        stream_id(WITH_A_GAP): "tap_lost",
        stream_id(WITHOUT_ITS_END): "tap_lost",
        stream_id(WHOLE_AFTER): "ok",
        stream_id(UNAFFECTED): "ok",
    }
    losses = (
        tables(data)
        .query(
            "SELECT stream_id::VARCHAR, tap, first_seq, last_seq, cause FROM losses "
            "WHERE cause <> 'redaction_state_lost' ORDER BY ALL"
        )
        .rows()
    )
    gap, ending, unknown = losses
    assert gap == (stream_id(WITH_A_GAP), "tap-1", 3, 3, "log_damaged")
    assert (ending[0], ending[2], ending[4]) == (stream_id(WITHOUT_ITS_END), 3, "log_damaged")
    assert (unknown[0], unknown[4]) == (None, "log_damaged")
    assert unknown[3] - unknown[2] + 1 >= 1
    assert (
        tables(data)
        .query("SELECT count(*) FROM events WHERE stream_id NOT IN (SELECT stream_id FROM streams)")
        .item()
        == 0
    )


def test_damaged_segment_read_by_analytics(tmp_path: Path) -> None:
    damaged_log(tmp_path / "data")
    with part(
        tmp_path / "analyze.log",
        "analyze",
        "--data",
        str(tmp_path / "data"),
        "--metrics",
        "",
    ):
        check_measurements(tmp_path / "data")


@pytest.mark.kafka
def test_damaged_segment_read_by_ship(tmp_path: Path, kafka_broker: str) -> None:
    data = tmp_path / "data"
    damaged_log(data)
    kafka = ("--data", str(data), "--kafka", kafka_broker, "--kafka-topic", f"damage-{time.monotonic_ns()}")
    with (
        part(tmp_path / "ship.log", "ship", *kafka),
        part(tmp_path / "analyze.log", "analyze", *kafka, "--metrics", ""),
    ):
        check_measurements(data)
