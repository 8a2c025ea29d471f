"""The analytics process with a real log: stops, start failures, replaced logs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest

from streamgauge.analytics.main import Ready, run_until
from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.data_folder_lock import lock_data_folder
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.rebuild import Source, rebuild
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.reader_cursors import read_cursors
from streamgauge.ingest.records import pack
from tests.analytics.log_entries import alive, entries, stream, stream_id
from tests.analytics.stores import place_empty_catalog
from tests.deadline import DEADLINE_S, until
from tests.options import analyze_options

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import logging, sys
from pathlib import Path
from streamgauge.analytics.main import run
from streamgauge.settings.process_options import analyze_options
from streamgauge.settings.model import Settings
logging.basicConfig(level=logging.INFO)
sys.exit(run(analyze_options(Settings(data=sys.argv[1], retain_events="forever", retain_streams="forever", metrics=""))))
"""


@contextmanager
def analytics(data: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(data)],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


class Asker:
    """Opens a reader as soon as the store exists."""

    def __init__(self, data: Path) -> None:
        self._location = locate("sqlite", data)
        self._reader: Reader | None = None

    def query(self, sql: str) -> pl.DataFrame:
        if self._reader is None:
            self._reader = Reader(self._location, lock_down=False)
        return self._reader.query(sql, 100_000, 20.0)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


@contextmanager
def asking(data: Path) -> Iterator[Asker]:
    asker = Asker(data)
    try:
        yield asker
    finally:
        asker.close()


def rows(asker: Asker) -> int:
    try:
        return int(asker.query("SELECT count(*) FROM streams").item())
    except QueryError:  # not created yet, or its process was just killed
        return 0


def is_ready(data: Path, process: subprocess.Popen[str]) -> bool:
    found = read_ready_file(data / "run" / "analyze.json")
    return found is not None and found["pid"] == process.pid


def test_sigterm_commits_finished_streams_and_keeps_open_ones(tmp_path: Path) -> None:
    records = stream(500, chunks=10)
    with (
        EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer,
        asking(tmp_path) as asker,
        analytics(tmp_path) as process,
    ):
        until(lambda: is_ready(tmp_path, process), "analytics")
        writer.append([*entries(range(3)), pack([alive(0), *records[:3]], compress=False)])
        until(lambda: rows(asker) == 3, "rows")
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert read_ready_file(tmp_path / "run" / "analyze.json") is None
        assert process.stderr is not None
        assert "analytics has stopped" in process.stderr.read()
        writer.append([pack(records[3:], compress=False)])
        with analytics(tmp_path):
            until(lambda: rows(asker) == 4, "the stream that was open")
            row = asker.query(
                f"SELECT outcome, output_event_count FROM streams WHERE stream_id = '{stream_id(500)}'"
            ).row(0)
            assert row == ("ok", 10)


def test_second_analytics_on_a_folder_fails_with_one_line(tmp_path: Path) -> None:
    with (
        lock_data_folder(tmp_path),
        pytest.raises(OSError, match=f"another analytics .pid {os.getpid()}.") as refused,
    ):
        run_until(analyze_options(data=tmp_path), threading.Event())
    assert "\n" not in str(refused.value)


def test_unwritable_folder_fails_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="--data") as refused:
        run_until(analyze_options(data=tmp_path / "file"), threading.Event())
    assert "\n" not in str(refused.value)


def test_lock_that_cannot_be_opened_fails_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "analyze.lock").mkdir()  # root may open every file
    with pytest.raises(OSError, match=r"^cannot lock the data folder .*analyze\.lock: .*--data$"):
        lock_data_folder(tmp_path)


def test_unknown_store_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--store"):
        run_until(analyze_options(data=tmp_path, store="oracle"), threading.Event())


def test_data_folder_is_unlocked_when_the_start_fails(tmp_path: Path) -> None:
    options = analyze_options(data=tmp_path, otlp_listen="127.0.0.1:0", otlp_token="short")
    with pytest.raises(ValueError, match="token"):
        run_until(options, threading.Event())
    lock_data_folder(tmp_path).close()


def test_row_becomes_visible_without_further_traffic(tmp_path: Path) -> None:
    """Only that it appears. The benchmark measures how soon."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def ready(_: Ready) -> None:
        def write_and_query() -> None:
            try:
                with (
                    EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer,
                    asking(tmp_path) as asker,
                ):
                    for number in range(3):
                        writer.append([pack(stream(number, chunks=4), compress=True)])
                        until(lambda number=number: rows(asker) == number + 1, "the row")  # type: ignore[misc]
            except BaseException as e:
                failed.append(e)
            finally:
                stop.set()

        threading.Thread(target=write_and_query).start()

    assert run_until(analyze_options(data=tmp_path), stop, ready) == 0
    assert not failed


def run_until_rows(data: Path, count: int) -> list[str]:
    """Run analytics until the log is read and `count` streams are stored. Returns their ids."""
    stop = threading.Event()
    found: list[str] = []
    failed: list[BaseException] = []

    def ready(_: Ready) -> None:
        def wait_for_rows() -> None:
            try:
                with asking(data) as asker:
                    until(lambda: rows(asker) >= count, f"{count} rows")
                    found.extend(
                        asker.query("SELECT stream_id FROM streams ORDER BY 1").to_series().to_list()
                    )
            except BaseException as e:
                failed.append(e)
            finally:
                stop.set()

        threading.Thread(target=wait_for_rows).start()

    assert run_until(analyze_options(data=data), stop, ready) == 0
    assert not failed
    return found


@pytest.mark.parametrize("read_before", [False, True])
def test_shipped_entries_are_not_read_from_the_folder(tmp_path: Path, read_before: bool) -> None:
    """`up --kafka`, then `up`: the newest segments still contain entries that went to Kafka."""
    place_empty_catalog(tmp_path)
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        here: list[int] = [0] if read_before else []
        if read_before:
            writer.append([pack(stream(0), compress=True)])
            assert run_until_rows(tmp_path, 1) == [stream_id(0)]
        writer.append([pack(stream(1), compress=True)])
        with EmbeddedReader(tmp_path / "log", "ship", sole=True) as ship:
            shipped = [e for p in ship.partitions() for e in ship.poll(5)]
            ship.release("w0", shipped[-1].offset + 1)
        writer.append([pack(stream(2), compress=True)])
        assert run_until_rows(tmp_path, len(here) + 1) == [stream_id(n) for n in [*here, 2]]
        assert list(read_cursors(tmp_path / "log")) == ["analyze"]


@pytest.mark.parametrize("source", Source)
def test_backup_and_files_of_a_clean_stop_have_every_row(tmp_path: Path, source: Source) -> None:
    """Also those whose records the log no longer has."""
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([*entries(range(3))])
        stored = run_until_rows(tmp_path, 3)
    location = locate("sqlite", tmp_path)
    assert location.catalog is not None
    location.catalog.write_bytes(b"damaged" * 1000)
    if source is Source.FILES:
        location.backup.unlink()
    shutil.rmtree(tmp_path / "log")
    assert rebuild(location).source is source
    with asking(tmp_path) as asker:
        assert asker.query("SELECT stream_id FROM streams ORDER BY 1").to_series().to_list() == stored


def test_open_streams_of_a_deleted_log_are_lost(tmp_path: Path) -> None:
    place_empty_catalog(tmp_path)
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack(stream(0), compress=True), pack([alive(0), *stream(1)[:3]], compress=True)])
        assert run_until_rows(tmp_path, 1) == [stream_id(0)]
    shutil.rmtree(tmp_path / "log")
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack(stream(2), compress=True)])
        assert run_until_rows(tmp_path, 3) == [stream_id(n) for n in range(3)]


@pytest.mark.kafka
def test_analytics_continues_when_the_topic_is_replaced(
    tmp_path: Path, kafka_broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    from kafka import KafkaAdminClient

    from streamgauge.ingest.record_log.kafka_writer import KafkaWriter

    topic, stop = f"replaced-{uuid.uuid4()}", threading.Event()
    options = analyze_options(
        data=tmp_path, kafka=kafka_broker, kafka_topic=topic, kafka_options={"metadata_max_age_ms": 500}
    )
    codes: list[int] = []
    produced = [pack([alive(0), *stream(0), *stream(1)[:3]], compress=True)]
    produced_later = [pack([alive(0), *stream(1)[3:], *stream(2)], compress=True)]

    def produce(payloads: list[bytes]) -> None:
        writer = KafkaWriter(kafka_broker, topic, {})
        writer.append(payloads)
        writer.close()

    produce(produced)
    thread = threading.Thread(target=lambda: codes.append(run_until(options, stop)))
    thread.start()
    try:
        with asking(tmp_path) as asker:
            until(lambda: rows(asker) == 1, "the first stream")
            admin = KafkaAdminClient(bootstrap_servers=kafka_broker)

            def topic_id() -> object:
                return admin.describe_topics([topic])[0].get("topic_id")

            replaced = topic_id()
            admin.delete_topics([topic])
            until(lambda: topic_id() != replaced, "deletion of the topic")  # else messages go to the old one
            admin.close()
            produce(produced_later)
            until(lambda: rows(asker) == 3, "the streams of the new topic")
            found = asker.query("SELECT stream_id, outcome FROM streams ORDER BY 1").rows()
            causes = asker.query("SELECT stream_id, cause FROM losses").rows()
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert [outcome for _, outcome in found] == ["ok", "tap_lost", "ok"]
    assert causes == [(stream_id(1), "log_gone")]
    assert codes == [0]
    lines = [r.getMessage() for r in caplog.records if r.levelname in ("WARNING", "ERROR")]
    assert [line for line in lines if "1 streams that were open are lost" in line], lines
    own = [r for r in caplog.records if not r.name.startswith("kafka")]
    assert not [r for r in own if r.levelname == "ERROR"], lines
