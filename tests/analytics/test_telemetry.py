"""Metrics say what the rows say; a receiver that is down costs a bounded queue and a counter."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from analytics.assemble import Assembler
from analytics.measure import measure
from analytics.semconv import OTHER, PROFILES, SECONDS_BOUNDS
from analytics.telemetry import Telemetry, TelemetryOptions, resource_of
from analytics.telemetry_export import ExportQueue
from analytics.telemetry_metrics import (
    MAX_VALUES,
    OWN_COUNTERS,
    OWN_GAUGES,
    OWN_HISTOGRAMS,
    OWN_TOTALS,
    Metrics,
)  # fmt: skip
from analytics.telemetry_prometheus import prometheus_name
from tests.analytics.traffic import MS, stream

ROOT = Path(__file__).resolve().parents[2]


def counted(**options: Any) -> tuple[Telemetry, dict[str, pl.DataFrame]]:
    """A telemetry that was told of 60 streams of different speed."""
    assembler = Assembler()
    for n in range(1, 61):
        assembler.feed("w0", n, stream(n, chunks=3 + n, gap_ns=n * 7 * MS))
    finished = assembler.take_finished()
    tables = measure(finished)
    telemetry = Telemetry(TelemetryOptions(metrics="127.0.0.1:0", **options))
    telemetry.rows(finished, tables)
    telemetry.committed()
    return telemetry, tables


def points(telemetry: Telemetry, name: str) -> list[Any]:
    assert telemetry.metrics is not None
    data = telemetry.metrics.read()
    assert data is not None
    metrics = [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]
    return [p for m in metrics if m.name == name for p in m.data.data_points]


def holds(point: HistogramDataPoint, value: float, q: float) -> bool:
    """Whether the bucket that has this quantile has the value."""
    rank, total = q * point.count, 0
    bounds = (0.0, *point.explicit_bounds, float("inf"))
    for i, n in enumerate(point.bucket_counts):
        total += n
        if total >= rank:
            low = bounds[max(0, i - 1)]
            return low <= value <= bounds[min(i + 2, len(bounds) - 1)]
    return False


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("gen_ai.client.operation.duration", "end_ns"),
        ("gen_ai.client.operation.time_to_first_chunk", "ttfc_ns"),
        ("streamgauge.stream.ttft", "ttft_ns"),
        ("streamgauge.stream.itl", "itl_ns"),
    ],
)
def test_histograms_agree_with_the_rows(metric: str, column: str) -> None:
    telemetry, tables = counted()
    (point,) = points(telemetry, metric)
    telemetry.close()
    values = tables["streams"][column].drop_nulls() / 1e9
    assert point.count == len(values)
    assert point.sum == pytest.approx(values.sum())
    for q in (0.5, 0.95, 0.99):
        value = values.quantile(q, "linear")
        assert value is not None
        assert holds(point, value, q)


def test_time_per_output_chunk_has_every_gap_in_its_bucket() -> None:
    telemetry, _ = counted()
    (point,) = points(telemetry, "gen_ai.client.operation.time_per_output_chunk")
    telemetry.close()
    expected = [0] * (len(SECONDS_BOUNDS) + 1)
    for n in range(1, 61):
        gap_s = n * 7 * MS / 1e9
        expected[next((i for i, b in enumerate(SECONDS_BOUNDS) if gap_s <= b), len(SECONDS_BOUNDS))] += 2 + n
    assert list(point.bucket_counts) == expected


def test_counters_agree_exactly() -> None:
    telemetry, tables = counted()
    (streams,) = points(telemetry, "streamgauge.streams")
    stalls = points(telemetry, "streamgauge.stream.stalls")
    tokens = points(telemetry, "gen_ai.client.token.usage")
    (stored,) = points(telemetry, "streamgauge.pipeline.stored")
    telemetry.close()
    rows = tables["streams"]
    assert streams.value == stored.value == 60
    assert sum(p.value for p in stalls) == rows["stall_count"].sum()
    by_type = {p.attributes["gen_ai.token.type"]: p.sum for p in tokens}
    assert by_type == {"input": rows["input_tokens"].sum(), "output": rows["output_tokens"].sum()}


def test_prometheus_is_answered_with_exemplars_that_are_traces() -> None:
    telemetry, _ = counted()
    assert telemetry.metrics_url is not None
    asked = urllib.request.Request(
        telemetry.metrics_url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(asked) as response:
        families = {f.name: f for f in text_string_to_metric_families(response.read().decode())}
    telemetry.close()
    samples = families["gen_ai_client_operation_duration_seconds"].samples
    (count,) = [s.value for s in samples if s.name.endswith("_count")]
    assert count == 60
    traces = {f"{n:032x}" for n in range(1, 61)}
    exemplars = [s.exemplar.labels["trace_id"] for s in samples if s.exemplar]
    assert exemplars
    assert set(exemplars) <= traces


def test_models_beyond_the_cap_are_other() -> None:
    metrics = Metrics(PROFILES["1.41"], resource_of(""))
    row = {"outcome": "ok", "end_ns": 5, "operation": "chat", "stream_id": "x"}
    metrics.count([(0, {**row, "request_model": f"m{n}"}) for n in range(MAX_VALUES + 50)], None)
    data = metrics.read()
    metrics.close()
    assert data is not None
    (duration,) = [
        m for s in data.resource_metrics[0].scope_metrics for m in s.metrics if m.name.endswith("duration")
    ]
    by_model = {p.attributes["gen_ai.request.model"]: p.count for p in duration.data.data_points}
    assert len(by_model) == MAX_VALUES + 1
    assert by_model[OTHER] == 50


def test_a_stuck_receiver_costs_a_bounded_queue_and_a_counter() -> None:
    stuck, began = threading.Event(), threading.Event()

    def send(batch: Any) -> bool:
        began.set()
        return stuck.wait(60)

    queue = ExportQueue(send, lambda: None, name="t", queue_size=100, batch_size=10, delay_s=0.001)
    queue.offer(range(10))
    assert began.wait(30)
    for _ in range(50):
        queue.offer(range(10))
    assert (queue.waiting, queue.dropped) == (100, 400)
    stuck.set()
    queue.close(30)
    assert (queue.exported, queue.dropped, queue.failed) == (110, 400, 0)


def test_a_receiver_that_refuses_is_counted() -> None:
    queue = ExportQueue(lambda batch: 1 / 0 > 0, lambda: None, name="t", delay_s=0.001)  # type: ignore[var-annotated]
    queue.offer([1, 2, 3])
    queue.close(30)
    assert (queue.exported, queue.failed) == (0, 3)


def emitted() -> set[str]:
    """Every sample name that analytics' endpoint can have."""
    names = PROFILES["1.41"]
    histograms = {names.duration_metric: "s", names.first_chunk_metric: "s", names.per_chunk_metric: "s"}
    histograms |= dict.fromkeys(names.token_metrics, "{token}")
    histograms |= {name: unit for name, (_, unit, *_rest) in OWN_HISTOGRAMS.items()}
    found = {
        prometheus_name(n, u) + end for n, u in histograms.items() for end in ("_bucket", "_count", "_sum")
    }
    found |= {prometheus_name(n, u) + "_total" for n, (u, _) in (OWN_COUNTERS | OWN_TOTALS).items()}  # type: ignore[operator]
    return found | {prometheus_name(n, u) for n, (u, _) in OWN_GAUGES.items()}


def test_the_dashboard_and_the_alerts_ask_only_for_metrics_that_exist() -> None:
    alerts = yaml.safe_load((ROOT / "deploy/otel/alerts.yaml").read_text())
    grafana = json.loads((ROOT / "deploy/otel/grafana.json").read_text())
    expressions = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in grafana["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 12
    for expression in expressions:
        asked = set(re.findall(r"\b(?:streamgauge|gen_ai)_\w+(?=\{|\[|\)| |$)", expression))
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", expression)) | set(
            re.findall(r"\w+", " ".join(re.findall(r"by\s*\(([^)]*)\)", expression)))
        )
        asked -= labels
        assert asked, expression
        assert asked <= emitted(), expression
