"""Spans arrive in a real OpenTelemetry collector; client, tap and gateway are one trace."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.e2e.collector import Collector, collector
from tests.e2e.running import litellm, simulator, until, up

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def receiver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    with collector(tmp_path_factory.mktemp("collector")) as running:
        yield running


def ask(tap: str, name: str, path: str = "/v1/chat/completions", **headers: str) -> int:
    response = httpx.post(
        f"{tap}{path}",
        json={
            "model": "atlas-large",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": "How high is the river?"}],
        },
        headers={"authorization": "Bearer sk-test", "x-request-id": name, **headers},
        timeout=60,
    )
    return response.status_code


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_the_collector_receives_the_spans_that_the_table_has(
    receiver: Collector, tmp_path: Path, protocol: str
) -> None:
    with (
        simulator("--seed", "5", "--rate-faults", "0") as upstream,
        up(upstream, tmp_path / "data", **receiver.environment(protocol)) as instance,
    ):
        for number in range(5):
            assert ask(instance.tap, f"r{number}") == 200
        assert ask(instance.tap, "missing", "/v1/nothing") == 404
        instance.rows(6)
        unsampled = f"00-{'a' * 32}-{'b' * 16}-00"
        assert ask(instance.tap, "unsampled", traceparent=unsampled) == 200
        instance.rows(7)
        rows = instance.sql("SELECT * FROM spans")
        exported = {r["span_id"]: r for r in rows if r["trace_id"] != "a" * 32}
        assert len(exported) < len(rows), "the table keeps what the caller did not sample"
        assert sum(r["kind"] == "client" for r in exported.values()) == 6
        until(lambda: exported.keys() <= receiver.spans().keys() or None, "all spans at the collector")
        found = receiver.spans()
        for span_id, row in exported.items():
            seen = found[span_id]
            assert seen.trace_id == row["trace_id"]
            assert seen.parent_id == (row["parent_span_id"] or "")
            assert seen.name == row["name"]
            assert seen.kind.lower() == row["kind"]
            assert seen.status.lower() == row["status"]
        assert not any(seen.trace_id == "a" * 32 for seen in found.values())
        assert sum(r["status"] == "error" for r in exported.values()) == 1
        until(
            lambda: "gen_ai.client.operation.exception" in receiver.log.read_text() or None,
            "the exception event",
        )
        until(lambda: "gen_ai.client.operation.duration" in receiver.log.read_text() or None, "metrics")


@pytest.mark.litellm
def test_client_tap_and_litellm_are_one_trace_with_the_right_parents(
    receiver: Collector, tmp_path: Path
) -> None:
    config = """
model_list:
  - model_name: atlas-large
    litellm_params: {model: openai/mock, api_key: none, mock_response: "The river runs quietly."}
general_settings: {master_key: sk-test}
litellm_settings: {telemetry: false, num_retries: 0, callbacks: ["otel"]}
"""
    provider = TracerProvider(resource=Resource.create({"service.name": "client"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{receiver.http}/v1/traces")))
    with (
        litellm(
            config, tmp_path, OTEL_EXPORTER="otlp_http", OTEL_ENDPOINT=f"{receiver.http}/v1/traces"
        ) as gateway,
        up(f"litellm={gateway}", tmp_path / "data", **receiver.environment("http/protobuf")) as instance,
        provider.get_tracer("test").start_as_current_span("ask") as client,
    ):
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        assert ask(instance.tap, "traced", **headers) == 200
        (row,) = instance.rows(1, "request_id = 'traced'")
        client.end()
        context = client.get_span_context()
        trace_id, client_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
        assert row["trace_id"] == trace_id
        assert row["parent_span_id"] == client_id

        def gateways() -> list[str] | None:
            known = {r["span_id"] for r in instance.sql("SELECT span_id FROM spans")} | {client_id}
            return [
                s.name
                for s in receiver.spans().values()
                if s.trace_id == trace_id and s.span_id not in known and s.parent_id == row["span_id"]
            ] or None

        until(gateways, "LiteLLM's spans below the tap's")
        until(
            lambda: {client_id, row["span_id"]} <= receiver.spans().keys() or None, "client's and tap's spans"
        )
        found = receiver.spans()
        assert found[row["span_id"]].parent_id == client_id
        assert found[client_id].parent_id == ""
        of_trace = [s for s in found.values() if s.trace_id == trace_id]
        assert all(s.parent_id in found for s in of_trace if s.span_id != client_id), (
            "no span is without its parent"
        )
