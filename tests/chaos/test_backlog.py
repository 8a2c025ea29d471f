"""Analytics starts with a backlog of seconds to minutes: no alert of silence, and the first one is of a stream that is silent now.

The record log has the traffic of two tap workers, whose clocks are in the records. Analytics reads its beginning, is killed, and
starts again when the rest is there. From then on the traffic continues in real time.
"""

from __future__ import annotations

import contextlib
import random
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec
import polars as pl
import pytest

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.kafka_writer import KafkaWriter
from streamgauge.ingest.records import AnyRecord, Closed, Frames, pack
from tests.analytics import log_entries
from tests.analytics.log_entries import MS, alive, chunk, stream
from tests.analytics.stores import place_empty_catalog
from tests.analytics.test_group import Scene, scene
from tests.chaos.test_rounds import analytics
from tests.deadline import until
from tests.tables import tables

__all__ = ["scene"]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BEFORE_S, AFTER_S = 10, 300
"""Traffic before the kill, and the longest in real time."""
TICK_MS, ALIVE_MS, STREAM_MS = 100, 2_000, 250
INCARNATIONS = ("0198b2d0-0000-7000-8000-000000000001", "0198b2d0-0000-7000-8000-000000000002")
TEXT_BYTES = 1_500
"""Of an output, so that a backlog of minutes is more than analytics fetches at once: its partitions are read one after the other."""
SILENT = "FROM alerts WHERE rule IN ('silent_stream', 'no_first_output')"
Append = Callable[[int, bytes], None]
"""Appends an entry of a worker."""
Ask = Callable[[str], pl.DataFrame]


class Traffic:
    """Streams of up to 20 s with an output each 0.4 s, and the reports of the workers."""

    def __init__(self, append: Append, seconds: int) -> None:
        self._append, self._at_ms = append, 0
        self._ticks: dict[tuple[int, int], list[AnyRecord]] = {}
        rng = random.Random(1)
        for number, start_ms in enumerate(range(0, seconds * 1000, STREAM_MS)):
            worker = number % 2
            chunks = 5 + number % 40
            for record in stream(
                start_ms, chunks=chunks, per_record=1, gap_ns=400 * MS, worker=worker, incarnation=INCARNATIONS[worker]
            ):  # fmt: skip
                at_ns = 0
                if isinstance(record, Frames):
                    ((at_ns, data),) = record.frames
                    if b"[DONE]" not in data:
                        text = b64encode(rng.randbytes(TEXT_BYTES)).decode()
                        record = msgspec.structs.replace(record, frames=[(at_ns, chunk(text))])
                elif isinstance(record, Closed):
                    at_ns = record.end_ns
                tick = (start_ms + at_ns // MS) // TICK_MS
                self._ticks.setdefault((worker, tick), []).append(record)

    def until(self, at_s: float, *, outputs: bool = True) -> None:
        """Append everything up to this time of the taps."""
        while self._at_ms < at_s * 1000:
            self._at_ms += TICK_MS
            for worker in (0, 1):
                records = self._ticks.get((worker, self._at_ms // TICK_MS - 1), []) if outputs else []
                if self._at_ms % ALIVE_MS == 0:
                    report = alive(self._at_ms, worker=worker, incarnation=INCARNATIONS[worker])
                    records = [*records, report]
                if records:
                    self._append(worker, pack(records, compress=True))


@contextmanager
def in_real_time(traffic: Traffic, from_s: int) -> Iterator[threading.Event]:
    """Continue until the end of the block. After the event is set, there are only reports."""
    silent, stop, began_s = threading.Event(), threading.Event(), time.monotonic()

    def work() -> None:
        while not stop.wait(TICK_MS / 1000):
            traffic.until(from_s + time.monotonic() - began_s, outputs=not silent.is_set())

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield silent
    finally:
        stop.set()
        thread.join()


def check(
    traffic: Traffic, backlog_s: int, start: Callable[[], object], kill: Callable[[], None], ask: Ask
) -> None:
    def count(what: str) -> int:
        with contextlib.suppress(QueryError):  # analytics is starting
            return int(ask(f"SELECT count(*) AS n {what}")["n"][0])
        return 0

    start()
    traffic.until(BEFORE_S)
    until(lambda: count("FROM streams") > 10, "the first streams")
    kill()
    now_s = BEFORE_S + backlog_s
    traffic.until(now_s)
    with in_real_time(traffic, now_s) as silent:
        start()
        since = f"FROM streams WHERE started_at > make_timestamptz({log_entries.T0_WALL_NS // 1000 + now_s * 1_000_000})"
        until(lambda: count(since) > 20, "streams of now")
        assert ask(f"SELECT rule, message {SILENT}").rows() == []
        silent.set()
        until(lambda: count(SILENT), "the alert of the streams that are silent now")
        assert ask(f"SELECT count(*) AS n {SILENT} AND value > 30")["n"][0] == 0


@pytest.fixture(autouse=True)
def recent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records are of today."""
    monkeypatch.setattr(log_entries, "T0_WALL_NS", time.time_ns() - 900 * 10**9)


@pytest.mark.kafka
@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("backlog_s", [10, 60, 600])
def test_a_backlog_in_kafka_is_no_silence(backlog_s: int, processes: int, scene: Scene) -> None:
    writer = KafkaWriter(scene.broker, scene.topic, {})
    pending: list[bytes] = []

    def append(_: int, entry: bytes) -> None:
        pending.append(entry)
        if len(pending) > 100 or (scene.processes and scene.processes[-1].poll() is None):
            writer.append(pending)
            pending.clear()

    def start() -> Sequence[object]:
        return [scene.analyze() for _ in range(processes)]

    def kill() -> None:
        for process in scene.processes:
            process.kill()
            process.wait()

    traffic = Traffic(append, BEFORE_S + backlog_s + AFTER_S)
    check(traffic, backlog_s, start, kill, scene.ask)
    writer.close()


@pytest.mark.parametrize("backlog_s", [10, 60, 600])
def test_a_backlog_in_the_local_log_is_no_silence(backlog_s: int, tmp_path: Path) -> None:
    data = tmp_path / "data"
    place_empty_catalog(data)
    with contextlib.ExitStack() as writers, contextlib.ExitStack() as running:
        logs = [
            writers.enter_context(EmbeddedWriter(data / "log", f"w{worker}", cap_bytes=2**30))
            for worker in (0, 1)
        ]
        traffic = Traffic(lambda worker, entry: logs[worker].append([entry]), BEFORE_S + backlog_s + AFTER_S)
        check(
            traffic,
            backlog_s,
            lambda: running.enter_context(analytics(data, ready=False)),
            running.close,
            lambda sql: tables(data).query(sql),
        )
