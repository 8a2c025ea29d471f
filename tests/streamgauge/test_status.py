"""`streamgauge status`: exit code and counters, with parts running and stopped."""

from __future__ import annotations

import http.server
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import msgspec
import polars as pl
import pytest
from click.testing import CliRunner

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.partition import LOG_GONE, LogPosition
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.analytics.storage.store import Store
from streamgauge.commands.status import render, status_command
from streamgauge.ingest.identifiers import ANSWER_DIGIT
from streamgauge.ingest.ready_file import write_ready_file
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.record_log.run_totals import RunTotals, RunTotalsFile
from streamgauge.ingest.records import AnyRecord, Request, pack, pack_damage
from tests.analytics.log_entries import alive, entries, stream, stream_id
from tests.analytics.sockets import Sent, create, events, recorded
from tests.analytics.stores import new_store
from tests.streamgauge.stored import analyse

pytestmark = pytest.mark.usefixtures("reads_in_process")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[EmbeddedWriter]:
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        yield writer


@contextmanager
def tap_with_counters(data: Path, *responses: dict[str, int]) -> Iterator[None]:
    """An admin port whose /ledger returns these in turn, then repeats the last. /recordingz has a fault."""
    pending = list(responses)

    class Admin(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_ledger = self.path == "/ledger"
            self.send_response(200 if is_ledger else 503 if self.path == "/recordingz" else 404)
            self.end_headers()
            counters = pending.pop(0) if is_ledger and len(pending) > 1 else pending[0]
            self.wfile.write(json.dumps(counters).encode() if is_ledger else b"log thread: is silent\n")

        def log_message(self, *_: object) -> None: ...

    server = http.server.HTTPServer(("127.0.0.1", 0), Admin)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    (data / "run").mkdir(exist_ok=True)
    (data / "run" / "tap.json").write_text(
        json.dumps({"pid": 1, "admin": f"http://127.0.0.1:{server.server_port}"})
    )
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def run_status(data: Path) -> tuple[int, dict[str, object]]:
    result = CliRunner().invoke(
        status_command, ["--data", str(data), "--format", "json"], standalone_mode=False
    )
    assert result.exception is None, result.exception
    return result.return_value, json.loads(result.output)


def test_counters_reconcile_with_everything_stopped(tmp_path: Path, writer: EmbeddedWriter) -> None:
    writer.append([*entries(range(5)), pack([alive(9000, stopping=True, streams_opened=5)], compress=False)])
    analyse(tmp_path)
    code, status = run_status(tmp_path)
    assert code == 0
    assert {k: status[k] for k in ("captured", "captured_at_most", "stored", "in_flight", "lost", "unknown")} == {
        "captured": 5, "captured_at_most": 5, "stored": 5, "in_flight": 0, "lost": 0, "unknown": [],
    }  # fmt: skip


def test_missing_stream_sets_exit_code_1(tmp_path: Path, writer: EmbeddedWriter) -> None:
    writer.append([*entries(range(5)), pack([alive(9000, stopping=True, streams_opened=6)], compress=False)])
    analyse(tmp_path)
    code, status = run_status(tmp_path)
    assert code == 1
    assert status["reconciles"] is False


def test_faults_of_running_parts_are_headlines_and_set_exit_code_1(
    tmp_path: Path, writer: EmbeddedWriter
) -> None:
    writer.append([*entries(range(5)), pack([alive(9000, stopping=True, streams_opened=5)], compress=False)])
    analyse(tmp_path)
    write_ready_file(tmp_path / "run" / "analyze.json", {"faults": {"upkeep: back_up": "failed 2 s ago"}})
    code, status = run_status(tmp_path)
    assert (code, status["reconciles"]) == (1, True)
    assert status["faults"] == {"analyze": ["upkeep: back_up: failed 2 s ago"]}
    assert render(status).splitlines()[0] == "fault in analyze: upkeep: back_up: failed 2 s ago"


def test_open_streams_and_unread_streams_are_in_flight(tmp_path: Path, writer: EmbeddedWriter) -> None:
    totals_file = RunTotalsFile(tmp_path / "log" / "w0", alive(9000).incarnation)
    writer.append(
        [*entries(range(3)), pack([*stream(10)[:3], alive(9000, streams_opened=4)], compress=False)]
    )
    analyse(tmp_path)
    writer.append([pack([*stream(10)[3:4], *stream(11), *stream(12)[:1]], compress=False)])
    totals_file.write(RunTotals(streams_opened=7, streams_in_log=6, records=20))
    totals_file.close()
    code, status = run_status(tmp_path)
    assert code == 0
    assert {k: status[k] for k in ("captured", "captured_at_most", "stored", "open", "in_log", "unknown")} == {
        "captured": 6, "captured_at_most": 7, "stored": 3, "open": 1, "in_log": 2, "unknown": [],
    }  # fmt: skip
    stages = status["stages"]
    assert isinstance(stages, dict)
    assert stages["tap"] == {
        "streams": 7, "records": 20, "bytes": 0, "lost_records": 0, "lost_bytes": 0,
    }  # fmt: skip
    assert stages["log (unread)"]["streams"] == 3
    assert stages["analytics"]["streams"] == 4


def test_missing_stream_of_a_killed_tap_sets_exit_code_1(tmp_path: Path, writer: EmbeddedWriter) -> None:
    totals_file = RunTotalsFile(tmp_path / "log" / "w0", alive(9000).incarnation)
    totals_file.write(RunTotals(streams_opened=5, streams_in_log=4))
    totals_file.close()
    writer.append([*entries(range(3)), pack([alive(9000, streams_opened=1)], compress=False)])
    analyse(tmp_path)
    code, status = run_status(tmp_path)
    assert (code, status["captured"], status["captured_at_most"], status["stored"]) == (1, 4, 5, 3)


def socket_records(number: int) -> list[AnyRecord]:
    """A WebSocket with one answer whose end, at the end of the socket, is in two records of their own."""
    sent: list[Sent] = [(1, "client", create()), *((2 + n, "server", event) for n, event in enumerate(events("r", ["a"])))]  # fmt: skip
    return recorded(sent, stream=stream_id(number))


def test_only_the_socket_of_an_answer_is_counted(tmp_path: Path, writer: EmbeddedWriter) -> None:
    """Taps count no answers: of a whole, a lost and an open WebSocket, and of one that analytics has not read."""
    whole, broken, still_open, unread = map(socket_records, (1, 2, 3, 4))
    answer = stream_id(5)[:19] + ANSWER_DIGIT + stream_id(5)[20:]  # as `ship` sends it
    writer.append(
        [pack(records, compress=False) for records in (whole, broken[:3] + broken[4:], still_open[:3])]
    )
    writer.append([pack([alive(9000, streams_opened=4)], compress=False)])
    # The lost one has waited for the cause of its gap.
    writer.append([pack([alive(99_000, stopping=True, streams_opened=4)], compress=False)])
    analyse(tmp_path)
    writer.append([pack([*unread, Request(answer, 1, b"{}", False)], compress=False)])
    code, status = run_status(tmp_path)
    assert {name: status[name] for name in ("captured", "stored", "lost", "open", "in_log")} == {
        "captured": 4, "stored": 1, "lost": 1, "open": 1, "in_log": 1,
    }  # fmt: skip
    assert code == 0


def test_answers_do_not_stand_for_streams_of_damaged_entries(tmp_path: Path, writer: EmbeddedWriter) -> None:
    last_entry = pack([alive(9000, stopping=True, streams_opened=2)], compress=False)
    writer.append([pack(socket_records(1), compress=False), pack_damage("w0", 5, 12, "checksum"), last_entry])
    analyse(tmp_path)
    code, status = run_status(tmp_path)
    assert (code, status["captured"], status["stored"]) == (0, 1, 1)


def test_damaged_entries_are_listed_as_unknown(tmp_path: Path, writer: EmbeddedWriter) -> None:
    last_entry = pack([alive(9000, stopping=True, streams_opened=3)], compress=False)
    writer.append([*entries(range(2)), pack_damage("w0", 5, 12, "checksum"), last_entry])
    analyse(tmp_path)
    code, status = run_status(tmp_path)
    assert (code, status["stored"]) == (0, 2)
    assert any(note.startswith("7 entries of the log") for note in status["unknown"])  # type: ignore[attr-defined]


def test_firing_alerts_are_listed(tmp_path: Path, writer: EmbeddedWriter) -> None:
    writer.append([*entries(range(1)), pack([alive(9000, stopping=True, streams_opened=1)], compress=False)])
    analyse(tmp_path)
    message = 'model "é" is slow'
    changes = [
        ("1", "slow", "firing"),
        ("2", "slow", "firing"),
        ("2", "slow", "resolved"),
        ("3", "silent", "firing"),
    ]
    rows = pl.DataFrame(
        {
            "alert_id": [f"0198b2d0-0000-7000-8000-{number:0>12}" for number, _, _ in changes],
            "changed_at": range(len(changes)),
            "began_at": [0] * len(changes),
            "instance": ["analytics"] * len(changes),
            "rule": [rule for _, rule, _ in changes],
            "gateway": ["g"] * len(changes),
            "state": [state for _, _, state in changes],
            "message": [message] * len(changes),
        }
    ).with_columns(pl.col("changed_at", "began_at").cast(pl.Datetime("us", "UTC")))
    with closing(new_store(tmp_path)) as store:
        store.commit(Commit("log", tables={"alert_events": rows}))
    _, status = run_status(tmp_path)
    shared = {"gateway": "g", "model": None, "message": message}
    assert sorted(status["alerts"], key=lambda alert: alert["rule"]) == [  # type: ignore[call-overload]
        {"rule": "silent", **shared},
        {"rule": "slow", **shared},
    ]
    result = CliRunner().invoke(status_command, ["--data", str(tmp_path)])
    assert "2 alerts firing" in result.output


def test_unreported_losses_of_the_tap_are_listed_as_unknown(tmp_path: Path, writer: EmbeddedWriter) -> None:
    writer.append([*entries(range(2)), pack([alive(9000, stopping=True, streams_opened=2)], compress=False)])
    analyse(tmp_path)
    with tap_with_counters(tmp_path, {"streams_opened": 2, "lost_untold": 3}):
        code, status = run_status(tmp_path)
    assert (code, status["faults"]) == (1, {"tap": ["log thread: is silent"]})
    assert any("3 records" in note for note in status["unknown"])  # type: ignore[attr-defined]


def test_lost_streams_are_counted_as_lost(tmp_path: Path, writer: EmbeddedWriter) -> None:
    broken = [r for r in stream(7) if r.seq != 2]  # type: ignore[union-attr]
    writer.append(
        [
            pack(broken, compress=False),
            *entries(range(2)),
            pack([alive(9000, stopping=True, streams_opened=3)], compress=False),
        ]
    )
    analyse(tmp_path)
    code, status = run_status(tmp_path)
    assert (code, status["stored"], status["lost"], status["losses_by_cause"]) == (0, 2, 1, {"missing": 1})


def test_unresponsive_tap_is_listed_as_unknown(tmp_path: Path, writer: EmbeddedWriter) -> None:
    writer.append([*entries(range(2)), pack([alive(9000, streams_opened=2)], compress=False)])
    analyse(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "tap.json").write_text('{"pid": 1, "admin": "http://127.0.0.1:9"}')
    code, status = run_status(tmp_path)
    assert code == 0
    assert status["captured_at_most"] is None
    assert any("admin port" in note for note in status["unknown"])  # type: ignore[attr-defined]


def test_text_output_states_the_result(tmp_path: Path, writer: EmbeddedWriter) -> None:
    writer.append([*entries(range(2)), pack([alive(9000, stopping=True, streams_opened=2)], compress=False)])
    analyse(tmp_path)
    with closing(Store(locate("sqlite", tmp_path))) as store:
        store.commit(Commit("folder", totals={"hops_ambiguous": 3}))
    out = CliRunner().invoke(status_command, ["--data", str(tmp_path)], standalone_mode=False).output
    assert "captured 2 streams" in out
    assert "3 ambiguous hops, 0 skipped hops" in out
    assert "the counters reconcile" in out
    assert f"ATTACH 'ducklake:sqlite:{tmp_path}/catalog.sqlite' AS lake (READ_ONLY)" in out


def test_no_data_folder_is_one_line(tmp_path: Path) -> None:
    result = CliRunner().invoke(status_command, ["--data", str(tmp_path / "none")])
    assert result.exit_code != 0
    assert result.output.count("\n") == 1


def test_streams_open_in_another_log_are_reported_until_they_end(tmp_path: Path) -> None:
    """Analytics read the folder, then Kafka. The folder still exists, so its streams can still arrive by `ship`."""
    store = Store(locate("sqlite", tmp_path))
    for log_id in ("folder", "cluster/topic"):
        store.acquire_partition(log_id, "w0")
    open_, none = LogPosition(9, 3, (stream_id(1),)), LogPosition(9, 9, ())
    store.commit(Commit("folder", positions={"w0": open_}))
    store.release_partition("folder", "w0")
    time.sleep(1.0)  # positions have whole seconds
    store.commit(Commit("cluster/topic", positions={"w0": none}))
    notes = run_status(tmp_path)[1]["unknown"]
    assert isinstance(notes, list)
    assert len(notes) == 1
    assert notes[0].startswith("1 streams in flight were open in another log, which analytics read until 20")
    assert store.acquire_partition("folder", "w0") == open_
    store.commit(Commit("folder", positions={"w0": none}))
    store.close()
    assert run_status(tmp_path)[1]["unknown"] == []


def test_replaced_log_is_reported_for_an_hour(tmp_path: Path) -> None:
    store = Store(locate("sqlite", tmp_path))
    assembler = Assembler()
    assembler.feed("0", 0, [alive(0), *stream(7)[:3]])
    assembler.lose_open("0", LOG_GONE)
    store.commit(Commit("cluster/topic", tables={"losses": assembler.take_losses()}))
    store.close()
    assert run_status(tmp_path)[1]["events"] == []  # log_entries.py has times of the past
    assembler.feed("0", 1, [msgspec.structs.replace(alive(1), wall_ns=time.time_ns()), *stream(8)[:3]])
    assembler.lose_open("0", LOG_GONE)
    store = Store(locate("sqlite", tmp_path))
    store.commit(Commit("cluster/topic", tables={"losses": assembler.take_losses()}))
    store.close()
    (event,) = run_status(tmp_path)[1]["events"]  # type: ignore[misc]
    assert event.endswith(
        " UTC: the record log was deleted or replaced. 1 streams that were open are lost (losses.cause = 'log_gone')."
    )
    out = CliRunner().invoke(status_command, ["--data", str(tmp_path)], standalone_mode=False).output
    assert event in out


@pytest.mark.kafka
def test_status_reads_the_topic_that_analytics_reads(
    tmp_path: Path, kafka_broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from streamgauge.ingest.record_log.kafka_writer import KafkaWriter

    monkeypatch.chdir(tmp_path)
    topic = f"status-{uuid.uuid4()}"
    kafka = KafkaWriter(kafka_broker, topic, {})
    kafka.append(list(entries(range(3))))
    kafka.close()
    Store(locate("sqlite", tmp_path)).close()
    used = {"pid": 1, "store": "sqlite", "kafka": kafka_broker, "kafka_topic": topic, "kafka_options": []}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "analyze.json").write_text(json.dumps(used))
    assert run_status(tmp_path)[1]["in_log"] == 3
    used["kafka_options"] = ["sasl_plain_password"]
    (tmp_path / "run" / "analyze.json").write_text(json.dumps(used))
    _, status = run_status(tmp_path)
    assert status["in_log"] == 0
    assert status["unknown"] == [
        "unread streams in Kafka are not counted: analytics uses the Kafka options sasl_plain_password. "
        "Pass --kafka-options or set STREAMGAUGE_KAFKA_OPTIONS."
    ]
