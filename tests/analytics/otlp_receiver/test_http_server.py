"""The intake over real HTTP, as an exporter speaks it: what is admitted, what is answered, and what cannot get in."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from google.rpc.status_pb2 import Status
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

from analytics.main import AnalyzeOptions, serve_until
from analytics.otlp_receiver import http_server as otlp_intake
from analytics.otlp_receiver.http_server import OtlpIntake
from analytics.otlp_receiver.span_queue import ReceivedQueue
from analytics.ready_file import Ready
from analytics.storage.commit import Commit
from analytics.storage.location import locate
from ingest.record_log.embedded_writer import EmbeddedWriter
from ingest.records import pack
from tests.analytics.otlp_receiver.test_span_rows import protobuf, request, span
from tests.analytics.stores import ask_as_reader, new_store
from tests.analytics.traffic import stream

TOKEN = "a-token-of-some-length"
PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}


@contextmanager
def listening(
    tmp_path: Path, *, writes: bool = True, most: int = 100, **options: Any
) -> Iterator[OtlpIntake]:
    """An intake whose queue is committed to a real store by a thread of its own, as long as `writes`."""
    store = new_store(tmp_path)
    queue = ReceivedQueue(store, most=most)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.005):
            if queue.waiting:
                store.commit(Commit("", tables=dict(queue.rows((), {}))))
                queue.committed()

    writer = threading.Thread(target=write)
    if writes:
        writer.start()
    intake = OtlpIntake(queue, host="127.0.0.1", port=0, **options)
    intake.start()
    try:
        yield intake
    finally:
        stop.set()
        if writes:
            writer.join()
        intake.close()
        store.close()


def post(
    intake: OtlpIntake, body: bytes, headers: dict[str, str], path: str = "/v1/traces"
) -> httpx.Response:
    return httpx.post(f"{intake.url}{path}", content=body, headers=headers, timeout=20)


def test_protobuf_json_and_gzip_are_taken_and_answered_in_kind(tmp_path: Path) -> None:
    as_json = json.dumps(request(span(spanId="00000000000000aa"))).encode()
    with listening(tmp_path) as intake:
        plain = post(intake, protobuf(span()), PROTOBUF)
        assert (plain.status_code, plain.headers["content-type"]) == (200, "application/x-protobuf")
        assert ExportTraceServiceResponse.FromString(plain.content) == ExportTraceServiceResponse()
        told = post(intake, gzip.compress(as_json), {**JSON, "content-encoding": "gzip"})
        assert (told.status_code, told.json()) == (200, {})
        assert intake.queue.health()["otlp.stored"] == 2


def test_spans_that_are_none_are_a_partial_success(tmp_path: Path) -> None:
    with listening(tmp_path) as intake:
        answer = post(intake, protobuf(span(), span(traceId="0" * 32)), PROTOBUF)
        told = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (answer.status_code, told.rejected_spans) == (200, 1)
        assert "ids that are none" in told.error_message
        health = intake.queue.health()
        assert (health["otlp.stored"], health["otlp.refused"]) == (1, 1)


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\xff\xff", PROTOBUF, 400),
        (b"{", JSON, 400),
        (b"not gzip", {**PROTOBUF, "content-encoding": "gzip"}, 400),
        (gzip.compress(protobuf(span()))[:-12], {**PROTOBUF, "content-encoding": "gzip"}, 400),
        (protobuf(span()), {"content-type": "text/plain"}, 415),
        (protobuf(span()), {}, 415),
        (protobuf(span()), {**PROTOBUF, "content-encoding": "br"}, 415),
    ],
)
def test_what_is_no_otlp_is_refused_with_a_status(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    with listening(tmp_path) as intake:
        answer = post(intake, body, headers)
        assert answer.status_code == status
        if headers is not JSON:
            assert Status.FromString(answer.content).message
        assert intake.queue.health()["otlp.received"] == 0


def test_bodies_are_bounded_as_they_come_and_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_intake, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(otlp_intake, "MAX_UNPACKED_BYTES", 10_000)
    with listening(tmp_path) as intake:
        assert post(intake, b"\0" * 1001, PROTOBUF).status_code == 413
        bomb = gzip.compress(b"\0" * 1_000_000)
        assert len(bomb) < 1500
        assert post(intake, bomb[:1000], {**PROTOBUF, "content-encoding": "gzip"}).status_code == 413
        assert post(intake, protobuf(span()), PROTOBUF).status_code == 200


def test_without_room_or_a_writer_senders_are_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_intake, "STORE_WITHIN_S", 0.1)
    with listening(tmp_path, writes=False, most=1) as intake:
        late = post(intake, protobuf(span()), PROTOBUF)
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        full = post(intake, protobuf(span()), PROTOBUF)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert intake.queue.health()["otlp.turned_away"] == 1


def test_a_token_is_asked_for_where_there_is_one(tmp_path: Path) -> None:
    with listening(tmp_path, token=TOKEN) as intake:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
            answer = post(intake, protobuf(span()), {**PROTOBUF, **headers})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert intake.queue.health()["otlp.received"] == 0
        assert (
            post(intake, protobuf(span()), {**PROTOBUF, "authorization": f"Bearer {TOKEN}"}).status_code
            == 200
        )


def test_beyond_this_machine_a_token_is_needed(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    try:
        with pytest.raises(ValueError, match="needs an --otlp-token"):
            OtlpIntake(ReceivedQueue(store), host="0.0.0.0", port=0)
        with pytest.raises(ValueError, match="at least 16 characters"):
            OtlpIntake(ReceivedQueue(store), host="127.0.0.1", port=0, token="short")
        OtlpIntake(ReceivedQueue(store), host="0.0.0.0", port=0, token=TOKEN).close()
    finally:
        store.close()


def test_an_address_in_use_is_named_in_one_line(tmp_path: Path) -> None:
    with listening(tmp_path) as intake, pytest.raises(OSError, match="--otlp-listen"):
        OtlpIntake(intake.queue, host="127.0.0.1", port=int(intake.url.rpartition(":")[2]))


def test_nothing_else_is_answered(tmp_path: Path) -> None:
    with listening(tmp_path) as intake:
        assert post(intake, b"", PROTOBUF, "/v1/metrics").status_code == 404
        assert httpx.get(f"{intake.url}/v1/traces").status_code == 405
        web = httpx.options(f"{intake.url}/v1/traces", headers={"origin": "https://elsewhere.example"})
        assert "access-control-allow-origin" not in web.headers


@pytest.mark.parametrize("with_a_log", [True, False])
def test_analytics_stores_what_an_sdk_exports_beside_its_own_spans(tmp_path: Path, with_a_log: bool) -> None:
    """The official exporter, chunked and compressed as it likes; also before any tap has written."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def export(said: Ready) -> None:
        try:
            exporter = OTLPSpanExporter(f"{said.otlp}/v1/traces", compression=Compression.Gzip)
            provider = TracerProvider(resource=Resource.create({"service.name": "client"}))
            ended = provider.get_tracer("test").start_span("ask")
            ended.end()
            assert exporter.export([ended]) is SpanExportResult.SUCCESS  # type: ignore[list-item]
            stored = ask_as_reader(
                locate("sqlite", tmp_path),
                "SELECT name, attributes->>'$.\"service.name\"' AS service FROM spans WHERE stream_id IS NULL",
            )
            assert stored == [("ask", "client")]
            exporter.shutdown()  # type: ignore[no-untyped-call]
        except BaseException as e:
            failed.append(e)
        finally:
            stop.set()

    def ready(said: Ready) -> None:
        threading.Thread(target=export, args=(said,)).start()

    options = AnalyzeOptions(data=tmp_path, otlp_listen="127.0.0.1:0")
    if with_a_log:
        with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
            writer.append([pack(stream(0), compress=True)])
            assert serve_until(options, stop, ready) == 0
    else:
        assert serve_until(options, stop, ready) == 0
    assert not failed, failed
