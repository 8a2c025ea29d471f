"""Spans and metrics with a real OpenTelemetry collector and a real Prometheus; one trace over client, tap and gateway.

Most tests share one setup: simulator → tap → analytics → the collector with deploy/otel/collector.yaml → a collector that
logs everything and, by collector-to-streamgauge.yaml, back to analytics' OTLP receiver; and Prometheus with
deploy/otel/prometheus.yaml and alerts.yaml.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streamgauge.analytics.telemetry.metric_definitions import metric_definitions
from streamgauge.analytics.telemetry.prometheus import prometheus_name
from streamgauge.analytics.telemetry.semconv import PROFILES, SECONDS_BOUNDS
from tests.deadline import DEADLINE_S, until
from tests.e2e.collector import Collector, collector
from tests.e2e.prometheus import OTEL, Prometheus, prometheus
from tests.e2e.running import Up, litellm, litellm_answers, simulator, up
from tests.litellm_proxy import LITELLM
from tests.ports import free_port, free_ports

PROMPT = "How high is the river?"
GATEWAY = """
model_list:
  - model_name: atlas-large
    litellm_params: {model: openai/mock, api_key: none, mock_response: "The river runs quietly."}
general_settings: {master_key: sk-test}
litellm_settings: {telemetry: false, num_retries: 0, callbacks: ["otel"]}
"""
SCRAPED = '{job="streamgauge-analytics"}'


@dataclass
class Scene:
    """The running processes."""

    instance: Up
    backend: Collector
    """Logs everything it receives."""
    front: Collector
    """Has the shipped configuration and forwards to `backend`."""
    gateway_port: int
    """Port of LiteLLM."""
    prometheus_port: int


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("scene")
    gateway_port, prometheus_port, intake_port = free_ports(3)
    intake = f"http://127.0.0.1:{intake_port}"
    with contextlib.ExitStack() as running:
        backend = running.enter_context(collector(folder))
        front = running.enter_context(
            collector(
                folder,
                OTEL / "collector.yaml",
                extra_config=OTEL / "collector-to-streamgauge.yaml",
                STREAMGAUGE_ENDPOINT=intake,
                TRACES_ENDPOINT=backend.http,
                LOGS_ENDPOINT=backend.http,
                METRICS_ENDPOINT=backend.http,
            )
        )
        if LITELLM.exists():
            where = {"OTEL_EXPORTER": "otlp_http", "OTEL_ENDPOINT": f"{front.http}/v1/traces"}
            running.enter_context(litellm(GATEWAY, folder, gateway_port, wait=False, **where))
        upstream = running.enter_context(
            simulator("--seed", "5", "--rate-faults", "0", "--time-scale", "0.3")
        )
        instance = running.enter_context(
            up(
                [f"sim={upstream}", f"litellm=http://127.0.0.1:{gateway_port}"],
                folder / "data",
                "--otlp-listen",
                intake.removeprefix("http://"),
                **front.environment("http/protobuf"),  # type: ignore[arg-type]
            )
        )
        assert instance.part("analyze")["otlp"] == intake
        yield Scene(instance, backend, front, gateway_port, prometheus_port)


def ask(tap: str, name: str, path: str = "/sim/v1/chat/completions", **headers: str) -> int:
    response = httpx.post(
        f"{tap}{path}",
        json={
            "model": "atlas-large",
            "stream": True,
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": PROMPT}],
        },
        headers={"authorization": "Bearer sk-test", "x-request-id": name, **headers},
        timeout=DEADLINE_S,
    )
    return response.status_code


def test_collector_receives_the_spans_of_the_table(scene: Scene) -> None:
    instance, receiver = scene.instance, scene.backend
    for number in range(5):
        assert ask(instance.tap, f"spans-{number}") == 200
    assert ask(instance.tap, "spans-missing", "/sim/v1/nothing") == 404
    unsampled = f"00-{'a' * 32}-{'b' * 16}-00"
    assert ask(instance.tap, "spans-unsampled", traceparent=unsampled) == 200
    instance.rows(7, "request_id LIKE 'spans-%'")
    rows = instance.sql(
        "SELECT p.* FROM spans p JOIN streams s USING (stream_id) WHERE s.request_id LIKE 'spans-%'"
    )
    exported = {r["span_id"]: r for r in rows if r["trace_id"] != "a" * 32}
    assert len(exported) < len(rows), "the table keeps what the caller did not sample"
    assert sum(r["kind"] == "client" for r in exported.values()) == 6
    assert sum(r["status"] == "error" for r in exported.values()) == 1
    found = _arrived(receiver, exported)
    assert not any(seen.trace_id == "a" * 32 for seen in found.values())
    until(lambda: "gen_ai.client.operation.exception" in receiver.log.read_text() or None, "the event")
    told = receiver.log.read_text()
    assert PROMPT not in told
    assert "gen_ai.input.messages" not in told
    assert "gen_ai.output.messages" not in told


def _arrived(receiver: Collector, exported: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Wait until the collector has received these rows of `spans` unchanged."""
    until(lambda: exported.keys() <= receiver.spans().keys() or None, "all spans at the collector")
    found = receiver.spans()
    for span_id, row in exported.items():
        seen = found[span_id]
        assert seen.trace_id == row["trace_id"]
        assert seen.parent_id == (row["parent_span_id"] or "")
        assert seen.name == row["name"]
        assert seen.kind.lower() == row["kind"]
        assert seen.status.lower() == row["status"]
    return found


@pytest.fixture(scope="module")
def reading(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has scraped some streams."""
    instance = scene.instance
    analyze = str(instance.part("analyze")["metrics"])
    targets = {
        "streamgauge-analytics": re.sub("^http://|/metrics$", "", analyze),
        "streamgauge-tap": re.sub("^http://", "", instance.admin),
    }
    with prometheus(tmp_path_factory.mktemp("prometheus"), scene.prometheus_port, targets) as running:
        until(lambda: running.value(f"streamgauge_pipeline_stored_total{SCRAPED}") is not None, "a scrape")
        for number in range(12):
            assert ask(instance.tap, f"scraped-{number}") == 200
        instance.rows(12, "request_id LIKE 'scraped-%'")
        (stored,) = instance.sql("SELECT count(*) AS n FROM streams")
        until(
            lambda: running.value(f"sum(streamgauge_streams_total{SCRAPED})") == stored["n"] or None,
            "all streams in Prometheus",
        )
        yield running


def test_prometheus_scrapes_tap_and_analytics_without_rule_errors_or_alerts(reading: Prometheus) -> None:
    assert reading.query('up == 1 and on(job) up{job=~"streamgauge-(analytics|tap)"}')
    assert {labels["job"] for labels, value in reading.query("up") if value == 1} >= {
        "streamgauge-analytics",
        "streamgauge-tap",
    }

    def evaluated() -> list[dict[str, Any]] | None:
        rules = [rule for group in reading.get("rules")["groups"] for rule in group["rules"]]
        return rules if rules and all(rule["health"] != "unknown" for rule in rules) else None

    rules = until(evaluated, "the rules to be evaluated")
    assert len(rules) >= 8
    for rule in rules:
        assert (rule["health"], rule.get("lastError", "")) == ("ok", ""), rule
        if rule["name"] != "StreamErrors":  # a request for nothing is there
            assert rule["state"] == "inactive", rule


def test_every_grafana_panel_has_data(reading: Prometheus) -> None:
    panels = json.loads((OTEL / "grafana.json").read_text())["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    assert len(expressions) > 15
    for expression in expressions:
        if "streamgauge_hop_" in expression:  # no tap on the other side of the gateway
            continue
        shown = expression.replace("$__rate_interval", "1m").replace("$gateway", ".*").replace("$model", ".*")
        until(lambda shown=shown: reading.query(shown) or None, shown, 15)  # type: ignore[misc]


def test_prometheus_agrees_with_sql(scene: Scene, reading: Prometheus) -> None:
    """Counters are equal, quantiles agree within a bucket."""
    tokens = f"sum by (gen_ai_token_type) (gen_ai_client_token_usage_sum{SCRAPED})"
    (expected,) = scene.instance.sql(
        "SELECT sum(input_tokens)::DOUBLE AS input, sum(output_tokens)::DOUBLE AS output FROM streams"
    )
    assert {labels["gen_ai_token_type"]: value for labels, value in reading.query(tokens)} == expected
    outcomes = f"sum by (streamgauge_outcome) (streamgauge_streams_total{SCRAPED})"
    counted = scene.instance.sql("SELECT outcome, count(*)::DOUBLE AS n FROM streams GROUP BY 1")
    assert {labels["streamgauge_outcome"]: value for labels, value in reading.query(outcomes)} == {
        row["outcome"]: row["n"] for row in counted
    }
    bounds = (0.0, *SECONDS_BOUNDS, float("inf"))
    for column in ("ttft", "ttfo"):
        for q in (0.5, 0.95):
            series = f"streamgauge_stream_{column}_seconds_bucket{SCRAPED}"
            said = reading.value(f"histogram_quantile({q}, sum by (le) ({series}))")
            (row,) = scene.instance.sql(
                f"SELECT quantile_disc({column}_ns, {q}) / 1e9 AS value FROM streams WHERE {column}_ns IS NOT NULL"
            )
            high = next(bound for bound in bounds if row["value"] <= bound)
            assert said is not None
            assert bounds[bounds.index(high) - 1] <= said <= high, (column, q, row)


def test_otlp_metrics_equal_the_scraped_ones(scene: Scene, reading: Prometheus) -> None:
    every = 'count by (__name__) ({job="streamgauge-analytics", __name__=~"(streamgauge|gen_ai)_.*"})'
    scraped = {
        re.sub("_(bucket|count|sum|total)$", "", labels["__name__"]) for labels, _ in reading.query(every)
    }
    known = {prometheus_name(one.name, one.unit): one.name for one in metric_definitions(PROFILES["1.41"])}

    def reported() -> bool | None:
        names = set(re.findall(r"Descriptor:\s+-> Name: (\S+)", scene.backend.log.read_text()))
        return names == {known[name] for name in scraped} or None

    assert scraped
    until(reported, "the scraped metrics, and no others, over OTLP")


def test_exemplars_in_prometheus_have_trace_ids(scene: Scene, reading: Prometheus) -> None:
    def found() -> set[str] | None:
        query = f"streamgauge_stream_ttft_seconds_bucket{SCRAPED}"
        series = reading.get("query_exemplars", query=query, start="0", end="9999999999")
        return {e["labels"]["trace_id"] for one in series for e in one["exemplars"]} or None

    traces = {row["trace_id"] for row in scene.instance.sql("SELECT trace_id FROM spans")}
    assert until(found, "an exemplar") <= traces


def test_unavailable_collector_only_increments_a_counter(tmp_path: Path) -> None:
    ports = (free_port(), free_port())
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{ports[0]}",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc",
        "OTEL_EXPORTER_OTLP_INSECURE": "true",
        "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        "OTEL_BSP_MAX_QUEUE_SIZE": "24",
        "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "8",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with (
        simulator("--seed", "5", "--rate-faults", "0", "--time-scale", "0.1") as upstream,
        up(f"sim={upstream}", tmp_path / "data", **environment) as instance,  # type: ignore[arg-type]
    ):

        def counted(name: str) -> float:
            with urllib.request.urlopen(str(instance.part("analyze")["metrics"])) as response:
                text = response.read().decode()
            found = re.search(rf"^streamgauge_spans_{name}_total (\S+)$", text, re.MULTILINE)
            return float(found[1]) if found else 0.0

        numbers = itertools.count()

        def burst() -> bool:
            """More streams at once than the queue holds. The machine decides how many are committed together."""
            answers = clients.map(
                lambda n: ask(instance.tap, f"dead-{n}", "/v1/chat/completions"),
                itertools.islice(numbers, 20),
            )
            assert set(answers) == {200}
            return bool(counted("dropped") and counted("failed"))

        with ThreadPoolExecutor(20) as clients:
            until(lambda: burst() or None, "drops and failures to be counted")
        instance.rows(next(numbers))
        (made,) = instance.sql("SELECT count(*) AS n FROM spans")
        assert made["n"] >= 60

        def reported() -> float:
            return counted("dropped") + counted("failed")

        until(lambda: reported() + 24 + 8 >= made["n"] or None, "the rest to fit into the queue", 5)
        until(lambda: reported() == made["n"] or None, "each span to be counted")
        assert counted("exported") == 0
        with collector(tmp_path, ports=ports) as receiver:

            def connected_again() -> bool:
                """gRPC waits longer after each attempt. Exports before the next attempt fail and are counted."""
                assert ask(instance.tap, "meanwhile", "/v1/chat/completions") == 200
                return counted("exported") > 0

            until(lambda: connected_again() or None, "an export to be counted")
            assert ask(instance.tap, "back", "/v1/chat/completions") == 200
            (row,) = instance.rows(1, "request_id = 'back'")
            rows = instance.sql(f"SELECT * FROM spans WHERE stream_id = '{row['stream_id']}'")
            _arrived(receiver, {r["span_id"]: r for r in rows})
            until(lambda: counted("exported") >= len(rows) or None, "the export to be counted")


@pytest.mark.litellm
def test_client_tap_and_litellm_spans_form_one_trace(scene: Scene) -> None:
    """Last in the file, because the gateway needs time to start."""
    litellm_answers(f"http://127.0.0.1:{scene.gateway_port}")
    instance, receiver = scene.instance, scene.backend
    provider = TracerProvider(resource=Resource.create({"service.name": "client"}))
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(f"{scene.front.http}/v1/traces")))
    with provider.get_tracer("test").start_as_current_span("ask") as client:
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        assert ask(instance.tap, "traced", "/litellm/v1/chat/completions", **headers) == 200
        (row,) = instance.rows(1, "request_id = 'traced'")
        client.end()
        context = client.get_span_context()
        trace_id, client_id = f"{context.trace_id:032x}", f"{context.span_id:016x}"
        assert row["trace_id"] == trace_id
        assert row["parent_span_id"] == client_id

        def gateways() -> list[str] | None:
            ours = instance.sql("SELECT span_id FROM spans WHERE stream_id IS NOT NULL")
            known = {r["span_id"] for r in ours} | {client_id}
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
        _three_services_in_the_table(instance, trace_id, client_id, str(row["span_id"]))


def _three_services_in_the_table(instance: Up, trace_id: str, client_id: str, tap_id: str) -> None:
    """The spans of client and gateway are stored with the tap's spans, with the right parents and without a prompt."""
    query = f"""
        SELECT span_id, parent_span_id, name, stream_id IS NOT NULL AS is_ours, attributes, events, status_message,
            attributes->>'$."service.name"' AS service
        FROM spans WHERE trace_id = '{trace_id}'"""

    def all_three() -> list[dict[str, Any]] | None:
        rows = instance.sql(query)
        services = {r["service"] for r in rows}
        # LiteLLM sends its spans in several batches; the outermost one ends last.
        is_whole = any(r["service"] == "litellm" and r["parent_span_id"] == tap_id for r in rows)
        return rows if is_whole and {"client", "streamgauge"} <= services else None

    until(all_three, "the spans of all three services")
    rows = instance.sql(query)
    by_id = {r["span_id"]: r for r in rows}
    assert len(by_id) == len(rows), "our own spans returned through the collector and are not stored twice"
    assert by_id[client_id]["parent_span_id"] is None
    assert by_id[tap_id]["parent_span_id"] == client_id
    assert by_id[tap_id]["is_ours"]
    below = [r for r in rows if r["parent_span_id"] == tap_id and not r["is_ours"]]
    assert {r["service"] for r in below} == {"litellm"}
    assert all(r["parent_span_id"] in by_id for r in rows if r["span_id"] != client_id)
    for row in rows:
        if not row["is_ours"]:
            assert PROMPT not in str(row)
            assert "runs quietly" not in str(row), "the response text in LiteLLM's spans"
            assert (row["status_message"], row["events"]) == (None, "[]")
