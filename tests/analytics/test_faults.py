"""Each thread of the analytics process survives an exception, and the probe names it meanwhile."""

from __future__ import annotations

import http.server
import itertools
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import streamgauge.analytics.main as main_module
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.main import AnalyzeOptions, Ready, run_until
from streamgauge.analytics.query.query_socket import NotListening, ask
from streamgauge.analytics.storage import elected_tasks
from streamgauge.analytics.telemetry.export_queue import ExportQueue
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.ready_file import written_faults
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.records import pack
from tests.analytics.log_entries import MemoryLog, alive, entries, stream, stream_id
from tests.analytics.stores import ask as ask_store
from tests.analytics.stores import new_store
from tests.analytics.test_consumer import consumer, drain, outcomes
from tests.deadline import DEADLINE_S, until
from tests.guard_injection import Injection
from tests.options import analyze_options, telemetry_options

ENDS_THE_PROCESS = {"consumer"}
"""The main thread: its exception ends the process, which `up` restarts. It has a guard for its silence."""
NO_TASK = "otlp-metrics"
"""The thread of the OpenTelemetry SDK. Its guard reports that it is silent."""


class Collector(http.server.BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None: ...


@contextmanager
def collector() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def running(data: Path, options: AnalyzeOptions) -> Iterator[Ready]:
    stop, found = threading.Event(), []
    thread = threading.Thread(target=run_until, args=(options, stop, found.append))
    thread.start()
    try:
        until(lambda: bool(found), "analytics")
        yield found[0]
    finally:
        stop.set()
        thread.join()


def probe(ready: Ready) -> tuple[int, str]:
    assert ready.metrics is not None
    try:
        with urllib.request.urlopen(
            ready.metrics.replace("/metrics", "/recordingz"), timeout=DEADLINE_S
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as e:
        return e.code, e.read().decode()


def ask_for_streams(data: Path) -> int:
    with suppress(NotListening):
        return int(ask(data, "SELECT count(*) AS n FROM streams", "csv", max_rows=1, timeout_s=20).split()[1])
    return 0


def test_each_thread_of_analytics_survives_an_exception_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guards, parts = Guards(), []
    monkeypatch.setattr(main_module, "Guards", lambda **_: guards)
    monkeypatch.setattr(elected_tasks, "ROUND_S", 0.05)
    start = main_module._start
    monkeypatch.setattr(main_module, "_start", lambda *a: parts.append(start(*a)) or parts[0])
    with (
        collector() as endpoint,
        EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer,
    ):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint)
        telemetry = telemetry_options(metrics="127.0.0.1:0")
        options = analyze_options(data=tmp_path, telemetry=telemetry, otlp_listen="127.0.0.1:0")
        written = itertools.count()
        with running(tmp_path, options) as ready:
            assert probe(ready) == (200, "recording\n")
            upkeep, evaluation = parts[0].upkeep.elected, parts[0].evaluation
            upkeep.tasks = dict.fromkeys(upkeep.tasks, (0, list))
            # As before, because a guard of their own covers the diagnosis.
            evaluation.tasks = {name: (0, call) for name, (_, call) in evaluation.tasks.items()}
            names = {f"upkeep: {name}" for name in upkeep.tasks} | {
                f"alerts: {name}" for name in evaluation.tasks
            }
            until(lambda: names <= guards.failures().keys(), "tasks")
            hit = set()
            for guard in guards.all():
                if guard.name in {*ENDS_THE_PROCESS, NO_TASK}:
                    continue
                with Injection(guard, guards.faults) as injection:
                    end_s = time.monotonic() + DEADLINE_S
                    while not injection.works_again:
                        writer.append([*entries([next(written)])])
                        ask_for_streams(tmp_path) if guard.name == "queries" else time.sleep(0.02)
                        assert time.monotonic() < end_s, guard.name
                assert injection.shown
                hit.add(guard.name)
            assert {
                "upkeep", "upkeep: back_up", "alerts", "alerts: evaluate_alerts", "hop matching",
                "otlp-spans", "otlp-events", "metrics server",
                "query server", "queries", "OTLP receiver", "alerts of the diagnosis",
            } <= hit  # fmt: skip
            assert all(guards.failures()[name] == 1 for name in hit)
            status, text = probe(ready)
            assert (status, "OTLP receiver: failed" in text, "metrics server: failed" in text) == (
                503,
                True,
                True,
            )
            assert urllib.request.urlopen(ready.metrics, timeout=DEADLINE_S).read().count(
                b"streamgauge_guard_fault{"
            ) == len(guards.all())
            guards.guard("without an attempt").failed(ValueError())
            until(
                lambda: "without an attempt" in written_faults(tmp_path, "analyze"),
                "the fault in the ready file",
            )
            count = next(written)
            until(lambda: ask_for_streams(tmp_path) == count, "all streams")


def test_export_thread_that_is_killed_sends_the_rest() -> None:
    guards, sent = Guards(), threading.Event()

    def send(batch: object) -> bool:
        sent.set()
        return True

    queue: ExportQueue[int] = ExportQueue(send, lambda: None, name="t", queue_size=10, guards=guards)
    with Injection(guards.guard("t"), guards.faults) as injection:
        queue.offer([1])
        assert sent.wait(DEADLINE_S)
        assert injection.raised or queue.exported == 1
    queue.close()


def test_entry_that_cannot_be_replayed_becomes_a_dead_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = stream(1, chunks=10), stream(2, chunks=10)
    payloads = [pack([alive(0), *first[:3]], compress=False), pack(second[:3], compress=False)]
    rest = [pack([*first[3:], *second[3:]], compress=False)]
    store = new_store(tmp_path)
    drain(consumer(MemoryLog({"w0": list(payloads)}), store))
    feed = Assembler.feed

    def feed_or_fail(self: Assembler, partition: str, offset: int, records: Any) -> None:
        if offset == 1:
            raise ZeroDivisionError
        feed(self, partition, offset, records)

    monkeypatch.setattr(Assembler, "feed", feed_or_fail)
    drain(consumer(MemoryLog({"w0": payloads + rest}), store))
    assert outcomes(store) == [(stream_id(1), "ok"), (stream_id(2), "tap_lost")]
    assert ask_store(store, "SELECT log_offset, reason FROM dead_letters") == [
        (1, "replay: ZeroDivisionError")
    ]
    store.close()
