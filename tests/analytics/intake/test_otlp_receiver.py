"""The OTLP receiver over real HTTP: accepted and rejected requests, responses, limits."""

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

from streamgauge.analytics.intake import otlp_receiver
from streamgauge.analytics.intake.otlp_receiver import OtlpReceiver, signals
from streamgauge.analytics.intake.received_events import event_queue
from streamgauge.analytics.intake.received_spans import span_queue
from streamgauge.analytics.main import Ready, run_until
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.records import pack
from tests import host_headers
from tests.analytics.intake.test_received_spans import NOW, attribute, protobuf, request, span
from tests.analytics.log_entries import stream
from tests.analytics.stores import ask_as_reader, new_store
from tests.deadline import DEADLINE_S
from tests.options import analyze_options

TOKEN = "a-token-of-some-length"
KEY = b"k" * 32
PROTOBUF = {"content-type": "application/x-protobuf"}
JSON = {"content-type": "application/json"}


@contextmanager
def listening(
    tmp_path: Path, *, writes: bool = True, max_spans: int = 100, **options: Any
) -> Iterator[OtlpReceiver]:
    """A receiver whose queues are committed to a real store by another thread, if `writes`."""
    store = new_store(tmp_path)
    queues = span_queue(store.cursor, max_spans=max_spans), event_queue(store.cursor)
    stop = threading.Event()

    def write() -> None:
        while not stop.wait(0.005):
            for queue in queues:
                if queue.waiting:
                    store.commit(Commit("", tables=dict(queue.rows((), {}))))
                    queue.committed()

    writer = threading.Thread(target=write)
    if writes:
        writer.start()
    receiver = OtlpReceiver(signals(*queues, KEY), listen="127.0.0.1:0", **options)
    receiver.start()
    try:
        yield receiver
    finally:
        stop.set()
        if writes:
            writer.join()
        receiver.close()
        store.close()


def post(
    receiver: OtlpReceiver, body: bytes, headers: dict[str, str], path: str = "/v1/traces"
) -> httpx.Response:
    return httpx.post(f"{receiver.url}{path}", content=body, headers=headers, timeout=DEADLINE_S)


def test_protobuf_json_and_gzip_get_a_response_of_the_same_type(tmp_path: Path) -> None:
    as_json = json.dumps(request(span(spanId="00000000000000aa"))).encode()
    with listening(tmp_path) as receiver:
        plain = post(receiver, protobuf(span()), PROTOBUF)
        assert (plain.status_code, plain.headers["content-type"]) == (200, "application/x-protobuf")
        assert ExportTraceServiceResponse.FromString(plain.content) == ExportTraceServiceResponse()
        as_sent = post(receiver, gzip.compress(as_json), {**JSON, "content-encoding": "gzip"})
        assert (as_sent.status_code, as_sent.json()) == (200, {})
        assert receiver.queues[0].health()["otlp.stored"] == 2


def test_logs_and_metrics_of_agents_are_stored_from_chunked_bodies(tmp_path: Path) -> None:
    """As Claude Code (protobuf), Gemini CLI (JSON, chunked) and exporters with compression send them."""
    event = {
        "timeUnixNano": str(NOW), "body": {"stringValue": "claude_code.tool_result"},
        "attributes": [attribute("event.name", "tool_result"), attribute("tool_name", "Bash")],
    }  # fmt: skip
    logs = json.dumps(
        {"resourceLogs": [{"scopeLogs": [{"logRecords": [event, event | {"timeUnixNano": "0"}]}]}]}
    ).encode()
    packed = gzip.compress(logs)
    with listening(tmp_path) as receiver:
        url = f"{receiver.url}/v1/logs"
        chunked = httpx.post(url, content=iter([logs[:20], logs[20:]]), headers=JSON, timeout=DEADLINE_S)
        assert (chunked.status_code, chunked.json()["partialSuccess"]["rejectedLogRecords"]) == (200, "1")
        again = httpx.post(
            url,
            content=iter([packed[:20], packed[20:]]),
            headers={**JSON, "content-encoding": "gzip"},
            timeout=DEADLINE_S,
        )
        assert again.status_code == 200
        metrics = post(receiver, b"", PROTOBUF, "/v1/metrics")
        assert (metrics.status_code, metrics.content) == (200, b"")
        health = receiver.health()
        assert (
            health["agent_events.stored"],
            health["agent_events.doubled"],
            health["agent_events.refused"],
        ) == (1, 1, 2)


def test_invalid_spans_are_a_partial_success(tmp_path: Path) -> None:
    with listening(tmp_path) as receiver:
        answer = post(receiver, protobuf(span(), span(traceId="0" * 32)), PROTOBUF)
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (answer.status_code, partial.rejected_spans) == (200, 1)
        assert "invalid ids" in partial.error_message
        health = receiver.queues[0].health()
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
def test_invalid_request_gets_an_error_status(
    tmp_path: Path, body: bytes, headers: dict[str, str], status: int
) -> None:
    with listening(tmp_path) as receiver:
        answer = post(receiver, body, headers)
        assert answer.status_code == status
        if headers is not JSON:
            assert Status.FromString(answer.content).message
        assert receiver.queues[0].health()["otlp.received"] == 0


def test_body_size_is_limited_before_and_after_decompression(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_receiver, "MAX_BODY_BYTES", 1000)
    monkeypatch.setattr(otlp_receiver, "MAX_DECOMPRESSED_BYTES", 10_000)
    with listening(tmp_path) as receiver:
        assert post(receiver, b"\0" * 1001, PROTOBUF).status_code == 413
        bomb = gzip.compress(b"\0" * 1_000_000)
        assert len(bomb) < 1500
        assert post(receiver, bomb[:1000], {**PROTOBUF, "content-encoding": "gzip"}).status_code == 413
        assert post(receiver, protobuf(span()), PROTOBUF).status_code == 200


def test_full_queue_or_slow_commit_is_503_with_retry_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_receiver, "STORE_WITHIN_S", 0.1)
    with listening(tmp_path, writes=False, max_spans=1) as receiver:
        late = post(receiver, protobuf(span()), PROTOBUF)
        assert (late.status_code, late.headers["retry-after"]) == (503, "1")
        full = post(receiver, protobuf(span()), PROTOBUF)
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        assert receiver.queues[0].health()["otlp.turned_away"] == 1


def test_configured_token_is_required(tmp_path: Path) -> None:
    with listening(tmp_path, token=TOKEN) as receiver:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": TOKEN}):
            answer = post(receiver, protobuf(span()), {**PROTOBUF, **headers})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert receiver.queues[0].health()["otlp.received"] == 0
        assert (
            post(receiver, protobuf(span()), {**PROTOBUF, "authorization": f"Bearer {TOKEN}"}).status_code
            == 200
        )


def test_non_loopback_address_requires_a_token(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    try:
        with pytest.raises(ValueError, match="Set --otlp-token"):
            OtlpReceiver([], listen="0.0.0.0:0")
        with pytest.raises(ValueError, match="at least 16 characters"):
            OtlpReceiver([], listen="127.0.0.1:0", token="short")
        OtlpReceiver([], listen="0.0.0.0:0", token=TOKEN).close()
    finally:
        store.close()


def test_address_in_use_is_an_error_in_one_line(tmp_path: Path) -> None:
    with listening(tmp_path) as receiver, pytest.raises(OSError, match="--otlp-listen"):
        OtlpReceiver([], listen=receiver.url.removeprefix("http://"))


def test_foreign_hosts_and_origins_are_refused(tmp_path: Path) -> None:
    with listening(tmp_path, allowed_hosts=["gauge.example.com"]) as receiver:
        for path in ("/v1/traces", "/other"):
            for headers in host_headers.FOREIGN:
                status, text = host_headers.answer(receiver.url + path, headers, method="POST")
                assert (status, "--allowed-host" in text) == (403, True)
        statuses = [
            host_headers.answer(f"{receiver.url}/v1/traces", h, method="POST")[0] for h in host_headers.OWN
        ]
        assert statuses == [415, 415, 415]  # the host is allowed, the content type is missing


def test_token_replaces_the_host_check(tmp_path: Path) -> None:
    with listening(tmp_path, token=TOKEN) as receiver:
        for host in host_headers.FOREIGN:
            for token, status in ((f"Bearer {TOKEN}", 415), ("Bearer wrong", 401)):
                headers = f"{host}\r\nAuthorization: {token}"
                assert host_headers.answer(f"{receiver.url}/v1/traces", headers, method="POST")[0] == status


def test_other_paths_and_methods_are_rejected(tmp_path: Path) -> None:
    with listening(tmp_path) as receiver:
        assert post(receiver, b"", PROTOBUF, "/v1/profiles").status_code == 404
        assert httpx.get(f"{receiver.url}/v1/traces").status_code == 405
        web = httpx.options(f"{receiver.url}/v1/traces", headers={"origin": "https://elsewhere.example"})
        assert "access-control-allow-origin" not in web.headers


@pytest.mark.parametrize("with_log", [True, False])
def test_spans_of_the_official_exporter_are_stored(tmp_path: Path, with_log: bool) -> None:
    """With its own chunking and compression, with and without a record log."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def export(state: Ready) -> None:
        try:
            exporter = OTLPSpanExporter(f"{state.otlp}/v1/traces", compression=Compression.Gzip)
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

    def ready(state: Ready) -> None:
        threading.Thread(target=export, args=(state,)).start()

    options = analyze_options(data=tmp_path, otlp_listen="127.0.0.1:0")
    if with_log:
        with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
            writer.append([pack(stream(0), compress=True)])
            assert run_until(options, stop, ready) == 0
    else:
        assert run_until(options, stop, ready) == 0
    assert not failed, failed
