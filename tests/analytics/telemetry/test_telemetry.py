"""Metrics agree with rows. Export is bounded and failures are counted."""

from __future__ import annotations

import json
import re
import threading
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest
import yaml
from opentelemetry.sdk.metrics.export import HistogramDataPoint
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.intake.otlp_receiver import OtlpReceiver, signals
from streamgauge.analytics.intake.received_events import event_queue
from streamgauge.analytics.intake.received_spans import span_queue
from streamgauge.analytics.intake.server_spans import ServerSpanJob
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.open_streams import Silence
from streamgauge.analytics.schema.dimensions import NO_REQUESTS, OTHER
from streamgauge.analytics.telemetry.analytics_metrics import MAX_VALUES, Metrics
from streamgauge.analytics.telemetry.export_queue import ExportQueue
from streamgauge.analytics.telemetry.metric_definitions import metric_definitions
from streamgauge.analytics.telemetry.prometheus import PrometheusEndpoint, prometheus_name
from streamgauge.analytics.telemetry.semconv import PROFILES, SECONDS_BOUNDS, names_of
from streamgauge.analytics.telemetry.telemetry import Telemetry, resource_of
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Request
from tests import host_headers
from tests.analytics import stream_records
from tests.analytics.log_entries import MS, stream
from tests.analytics.stores import new_store
from tests.deadline import DEADLINE_S
from tests.options import telemetry_options

ROOT = Path(__file__).resolve().parents[3]


def finished(*streams: list[AnyRecord]) -> list[FinishedStream]:
    assembler = Assembler()
    for n, records in enumerate(streams):
        assembler.feed("w0", n, records)
    return assembler.take_finished()


def telemetry_of(
    streams: list[FinishedStream], profile: str = "1.41", **options: Any
) -> tuple[Telemetry, dict[str, pl.DataFrame]]:
    """Telemetry that has counted these streams, and their rows."""
    tables = measure(streams)
    with pytest.MonkeyPatch.context() as environment:
        if profile != "1.41":
            suffix = "/dup" if "+" in profile else ""
            environment.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", f"http, gen_ai_latest_experimental{suffix}")
        telemetry = Telemetry(telemetry_options(metrics="127.0.0.1:0", **options))
    telemetry.rows(streams, tables)
    telemetry.committed()
    return telemetry, tables


def counted(**options: Any) -> tuple[Telemetry, dict[str, pl.DataFrame]]:
    """Telemetry that has counted 60 streams of different speed."""
    return telemetry_of(
        finished(*(stream(n, chunks=3 + n, gap_ns=n * 7 * MS) for n in range(1, 61))), **options
    )


def metrics_of(telemetry: Telemetry) -> list[Any]:
    assert telemetry.metrics is not None
    data = telemetry.metrics.read()
    assert data is not None
    return [m for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics]


def points(telemetry: Telemetry, name: str) -> list[Any]:
    return [p for m in metrics_of(telemetry) if m.name == name for p in m.data.data_points]


def bucket_of(point: HistogramDataPoint, rank: int) -> tuple[float, float]:
    """The bounds of the bucket with the value of this rank (from 0)."""
    total = 0
    bounds = (float("-inf"), *point.explicit_bounds, float("inf"))
    for i, n in enumerate(point.bucket_counts):
        total += n
        if total > rank:
            return bounds[i], bounds[i + 1]
    raise AssertionError(f"{point.count} values, none of rank {rank}")


@pytest.mark.parametrize(
    ("metric", "column"),
    [
        ("gen_ai.client.operation.duration", "end_ns"),
        ("gen_ai.client.operation.time_to_first_chunk", "ttfc_ns"),
        ("streamgauge.stream.ttft", "ttft_ns"),
        ("streamgauge.stream.ttfo", "ttfo_ns"),
        ("streamgauge.stream.itl", "itl_ns"),
        ("gen_ai.server.request.duration", "end_ns"),
        ("gen_ai.server.time_to_first_token", "ttft_ns"),
        ("gen_ai.server.time_per_output_token", "itl_ns"),
    ],
)
def test_histogram_quantiles_match_those_of_the_rows(metric: str, column: str) -> None:
    telemetry, tables = counted(server_metrics=True)
    (point,) = points(telemetry, metric)
    telemetry.close()
    values = tables["streams"][column].drop_nulls() / 1e9
    assert point.count == len(values)
    assert point.sum == pytest.approx(values.sum())
    assert (point.min, point.max) == (pytest.approx(values.min()), pytest.approx(values.max()))
    for q in (0.0, 0.01, 0.25, 0.5, 0.75, 0.95, 0.99, 1.0):
        value, rank = values.quantile(q, "linear"), q * (len(values) - 1)  # quantile_cont
        assert value is not None
        low, _ = bucket_of(point, int(rank))
        _, high = bucket_of(point, min(int(rank) + 1, len(values) - 1) if rank % 1 else int(rank))
        assert low < value <= high


def test_time_per_output_chunk_counts_every_gap() -> None:
    telemetry, _ = counted()
    (point,) = points(telemetry, "gen_ai.client.operation.time_per_output_chunk")
    telemetry.close()
    expected = [0] * (len(SECONDS_BOUNDS) + 1)
    for n in range(1, 61):
        gap_s = n * 7 * MS / 1e9
        expected[next((i for i, b in enumerate(SECONDS_BOUNDS) if gap_s <= b), len(SECONDS_BOUNDS))] += 2 + n
    assert list(point.bucket_counts) == expected


def test_counters_equal_the_sums_of_rows() -> None:
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


def answer(n: int, text: str, *last: bytes) -> list[AnyRecord]:
    """A stream with its first output after 130 ms."""
    records = stream(n, chunks=0)
    body = stream_records.chunk(text) + b"".join(last) + stream_records.finish_chunk() + b"data: [DONE]\n\n"
    return [
        msgspec.structs.replace(r, frames=[(130 * MS, body)]) if isinstance(r, Frames) else r for r in records
    ]


def test_prompt_cache_counts_only_streams_that_report_it() -> None:
    def usage(**more: Any) -> bytes:
        report = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105, **more}
        return stream_records.chunk(choices=[], usage=report)

    cached = usage(prompt_tokens_details={"cached_tokens": 80})
    telemetry, tables = telemetry_of(finished(answer(1, "a", cached), answer(2, "a", usage())))
    (known,) = points(telemetry, "streamgauge.prompt_cache.input_tokens")
    (hits,) = points(telemetry, "streamgauge.prompt_cache.hit_tokens")
    telemetry.close()
    assert tables["streams"]["input_tokens"].to_list() == [100, 100]
    assert (known.value, hits.value) == (100, 80)


def test_ttft_drift_is_observed_minus_reported() -> None:
    def reported(s: float) -> bytes:
        return stream_records.chunk(choices=[], stats={"time_to_first_token": s})

    telemetry, _ = telemetry_of(
        finished(answer(1, "a", reported(0.1)), answer(2, "a", reported(9)), answer(3, "a"))
    )
    (drift,) = points(telemetry, "streamgauge.stream.ttft_drift")
    telemetry.close()
    assert (drift.count, drift.min, drift.max) == (2, 0, pytest.approx(0.03))


def test_prometheus_endpoint_has_exemplars_with_trace_ids() -> None:
    telemetry, tables = counted()
    assert telemetry.endpoint is not None
    request = urllib.request.Request(
        telemetry.endpoint.url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request) as response:
        families = {f.name: f for f in text_string_to_metric_families(response.read().decode())}
    telemetry.close()
    samples = families["gen_ai_client_operation_duration_seconds"].samples
    (count,) = [s.value for s in samples if s.name.endswith("_count")]
    assert count == 60
    rows = tables["streams"].select("trace_id", "span_id", "end_ns").rows()
    exemplars = [s.exemplar for s in samples if s.exemplar]
    assert len(exemplars) > 3
    for one in exemplars:
        assert (one.labels["trace_id"], one.labels["span_id"], round(one.value * 1e9)) in rows


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_prometheus_endpoint_refuses_foreign_hosts_and_origins(listen: str) -> None:
    endpoint = PrometheusEndpoint(listen, lambda: None, ["gauge.example.com"])
    try:
        for headers in (*host_headers.FOREIGN, "Host: localhost\r\nHost: evil.example"):
            status, text = host_headers.answer(endpoint.url, headers)
            assert (status, "--allowed-host" in text) == (403, True)
        assert [host_headers.answer(endpoint.url, h)[0] for h in host_headers.OWN] == [200, 200, 200]
    finally:
        endpoint.close()


def test_models_beyond_the_limit_are_other() -> None:
    metrics = Metrics(PROFILES["1.41"], resource_of(""))
    row = {"outcome": "ok", "end_ns": 5, "operation": "chat", "stream_id": "x"}
    (one,) = finished(stream(1))
    rows = [{**row, "request_model": f"m{n}"} for n in range(MAX_VALUES + 50)]
    metrics.count([one] * len(rows), rows)
    data = metrics.read()
    metrics.close()
    assert data is not None
    (duration,) = [
        m for s in data.resource_metrics[0].scope_metrics for m in s.metrics if m.name.endswith("duration")
    ]
    by_model = {p.attributes["gen_ai.request.model"]: p.count for p in duration.data.data_points}
    assert len(by_model) == MAX_VALUES + 1
    assert by_model[OTHER] == 50


def test_labels_with_metrics_are_counted_by_value_and_bounded() -> None:
    metrics = Metrics(PROFILES["1.41"], resource_of(""), labels=["team"])
    row = {"end_ns": 5, "operation": "chat", "stream_id": "x", "output_tokens": 3}
    (one,) = finished(stream(1))
    rows = [
        {**row, "outcome": "ok", "labels": {"team": f"t{n}", "user": "u"}} for n in range(MAX_VALUES + 50)
    ]
    rows += [
        {**row, "outcome": "http_error", "labels": {"team": "t0"}},
        {**row, "outcome": "ok", "labels": None},
    ]
    metrics.count([one] * len(rows), rows)
    data = metrics.read()
    metrics.close()
    assert data is not None
    found = {
        m.name.removeprefix("streamgauge.label."): {
            (p.attributes["streamgauge.label"], p.attributes["streamgauge.value"]): p.value
            for p in m.data.data_points
        }
        for s in data.resource_metrics[0].scope_metrics
        for m in s.metrics
        if m.name.startswith("streamgauge.label.")
    }
    assert found.keys() == {"streams", "errors", "input_tokens", "output_tokens"}
    assert len(found["streams"]) == MAX_VALUES + 1
    assert [found["streams"]["team", value] for value in ("t0", "t1", OTHER)] == [2, 1, 50]
    assert (found["errors"]["team", "t0"], found["output_tokens"]["team", OTHER]) == (1, 150)


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize(
    "setting", ["", "false", "no_content", "event_only", "true", "SPAN_ONLY", "span_and_event"]
)
def test_exported_spans_have_text_only_if_captured_and_enabled(
    setting: str, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", setting)
    sid = stream_records.stream_id(1)
    body = b'{"model":"m","messages":[{"role":"user","content":"planted-prompt"}]}'
    frames = [(MS, stream_records.chunk("planted-answer")), (2 * MS, stream_records.finish_chunk())]
    records: list[AnyRecord] = [
        stream_records.opened(sid),
        Request(sid, 1, body, False),
        Frames(sid, 2, frames, stream_records.head(200)),
        stream_records.closed(sid, 3, end_ns=3 * MS),
    ]
    assembler = Assembler(capture=("*",) if kept else ())
    assembler.feed("w0", 0, records)
    streams = assembler.take_finished()
    telemetry = Telemetry(telemetry_options(metrics="127.0.0.1:0"))
    rows = telemetry.rows(streams, measure(streams))["spans"].write_json()
    exported = "".join(span.to_json() for span in telemetry._build(streams[0], telemetry._rows[0]))
    telemetry.committed()
    read = str(metrics_of(telemetry))
    telemetry.close()
    assert "planted" not in read
    for text in ("planted-prompt", "planted-answer", "gen_ai.input.messages", "gen_ai.output.messages"):
        for output in (rows, exported):
            assert (text in output) is (kept and setting in ("true", "SPAN_ONLY", "span_and_event"))


def test_stuck_otlp_endpoint_fills_a_bounded_queue_and_is_counted() -> None:
    stuck, began = threading.Event(), threading.Event()

    def send(batch: Any) -> bool:
        began.set()
        return stuck.wait(60)

    queue = ExportQueue(send, lambda: None, name="t", queue_size=100, batch_size=10, delay_s=0.001)
    queue.offer(range(10))
    assert began.wait(DEADLINE_S)
    for _ in range(50):
        queue.offer(range(10))
    assert (queue.waiting, queue.dropped) == (100, 400)
    stuck.set()
    queue.close(30)
    assert (queue.exported, queue.dropped, queue.failed) == (110, 400, 0)


def test_rejected_export_is_counted() -> None:
    queue = ExportQueue(lambda batch: 1 / 0 > 0, lambda: None, name="t", queue_size=100, delay_s=0.001)  # type: ignore[var-annotated]
    queue.offer([1, 2, 3])
    queue.close(30)
    assert (queue.exported, queue.failed) == (0, 3)


def test_time_per_output_chunk_counts_an_event_of_several_choices_for_each() -> None:
    def both(at_ms: int) -> tuple[int, bytes]:
        deltas = [{"index": i, "delta": {"content": "a"}} for i in (0, 1)]
        return at_ms * MS, stream_records.chunk(choices=deltas)

    sid = stream_records.stream_id(1)
    reads = [both(100), both(130), both(1100), (1200 * MS, stream_records.finish_chunk())]
    records: list[AnyRecord] = [
        stream_records.opened(sid),
        Request(sid, 1, b"{}", False),
        Frames(sid, 2, reads, stream_records.head(200)),
        stream_records.closed(sid, 3, end_ns=1300 * MS),
    ]
    telemetry, tables = telemetry_of(finished(records))
    (point,) = points(telemetry, "gen_ai.client.operation.time_per_output_chunk")
    telemetry.close()
    assert tables["streams"]["icl_max_ns"].to_list() == [970 * MS]
    assert (point.count, point.sum) == (4, pytest.approx(2.0))


def failed(number: int) -> list[AnyRecord]:
    """A stream that the upstream ended early."""
    records = stream(number, chunks=10, per_record=5)
    closed = records[-1]
    assert isinstance(closed, Closed)
    whole = records[:-2]  # without the last frames: finish, usage, [DONE]
    return [*whole, msgspec.structs.replace(closed, cause="upstream_reset", seq=len(whole))]


def test_error_type_is_only_on_the_duration_metric() -> None:
    telemetry, tables = telemetry_of(finished(stream(1), failed(2)))
    assert tables["streams"]["outcome"].to_list() == ["ok", "upstream_reset"]
    kinds = {
        p.attributes.get("error.type"): p.count for p in points(telemetry, "gen_ai.client.operation.duration")
    }
    (ttft,) = points(telemetry, "streamgauge.stream.ttft")
    outcomes = {
        p.attributes["streamgauge.outcome"]: p.value for p in points(telemetry, "streamgauge.streams")
    }
    telemetry.close()
    assert kinds == {None: 1, "upstream_reset": 1}
    assert ttft.count == 2
    assert outcomes == {"ok": 1, "upstream_reset": 1}


@pytest.mark.parametrize("profile", PROFILES)
def test_server_metrics_are_optional_and_their_token_times_have_no_failures(profile: str) -> None:
    counts = {}
    for enabled in (False, True):
        telemetry, _ = telemetry_of(finished(stream(1), failed(2)), profile=profile, server_metrics=enabled)
        found = {m.name: m.data.data_points for m in metrics_of(telemetry) if "gen_ai.server." in m.name}
        telemetry.close()
        counts[enabled] = {name: sum(p.count for p in found[name]) for name in found}
    assert counts[False] == {}
    assert counts[True] == {
        "gen_ai.server.request.duration": 2,
        "gen_ai.server.time_to_first_token": 1,
        "gen_ai.server.time_per_output_token": 1,
    }


def test_genai_main_counts_tokens_and_excludes_failures_from_histograms() -> None:
    telemetry, tables = telemetry_of(
        finished(stream(1), stream(2, chunks=30), failed(3)), profile="genai-main"
    )
    named = {m.name: m for m in metrics_of(telemetry)}
    telemetry.close()
    assert not any(".operation.duration" in name or "token.usage" in name for name in named)
    rows = tables["streams"].filter(pl.col("outcome") == "ok")
    base = "gen_ai.client.inference."
    for name in ("input_tokens", "output_tokens"):
        (histogram,) = named[f"{base}operation.{name}"].data.data_points
        assert (histogram.count, histogram.sum) == (2, rows[name].sum())
        assert "gen_ai.token.type" not in histogram.attributes
        counters = named[f"{base}usage.{name}"].data
        assert counters.is_monotonic
        assert {p.attributes["gen_ai.token.modality"] for p in counters.data_points} == {"unknown"}
        assert sum(p.value for p in counters.data_points) == rows[name].sum()
    (cached,) = named[f"{base}usage.cache_read.input_tokens"].data.data_points
    assert cached.value == 0
    assert sum(p.count for p in named[f"{base}duration"].data.data_points) == 3


def test_with_both_profiles_each_metric_has_the_values_of_its_profile() -> None:
    streams = finished(stream(1), stream(2, chunks=30), failed(3))

    def counted(profile: str) -> dict[str, Any]:
        telemetry, _ = telemetry_of(streams, profile)
        found = {
            m.name: [
                (dict(p.attributes), getattr(p, "count", None), getattr(p, "sum", None))
                for p in m.data.data_points
            ]
            for m in metrics_of(telemetry)
            if m.name.startswith("gen_ai.")
        }
        telemetry.close()
        return found

    old, new = counted("1.41"), counted("genai-main")
    assert counted("1.41+genai-main") == old | new
    assert {"gen_ai.client.operation.duration", "gen_ai.client.token.usage"} <= old.keys() - new.keys()


@pytest.mark.parametrize(("profile", "expected"), [("1.41", 2), ("genai-main", 1)])
def test_tokens_of_failures_are_in_the_histogram_of_the_released_profile(profile: str, expected: int) -> None:
    metrics = Metrics(PROFILES[profile], resource_of(""))
    (one,) = finished(stream(1))
    row = {"operation": "chat", "input_tokens": 9, "output_tokens": 4}
    metrics.count([one, one], [{**row, "outcome": outcome} for outcome in ("ok", "upstream_reset")])
    data = metrics.read()
    metrics.close()
    assert data is not None
    named = {m.name: m for s in data.resource_metrics[0].scope_metrics for m in s.metrics}
    points = [p for name in set(PROFILES[profile].token_metrics) for p in named[name].data.data_points]
    assert [p.count for p in points if p.count] == [expected] * 2
    for name in PROFILES[profile].token_counters.values():
        assert name in named


def test_refused_request_is_in_no_duration() -> None:
    metrics = Metrics(PROFILES["1.41"], resource_of(""))
    (one,) = finished(stream(1))
    row = {"operation": "chat", "end_ns": 5}
    metrics.count([one, one], [{**row, "outcome": outcome} for outcome in ("ok", "refused")])
    data = metrics.read()
    metrics.close()
    assert data is not None
    named = {m.name: m.data.data_points for s in data.resource_metrics[0].scope_metrics for m in s.metrics}
    assert sum(p.count for p in named["gen_ai.client.operation.duration"]) == 1
    assert sum(p.value for p in named["streamgauge.streams"]) == 2


@pytest.mark.parametrize("operation", NO_REQUESTS)
def test_what_is_no_request_is_in_no_metric_of_streams(operation: str) -> None:
    metrics = Metrics(PROFILES["1.41"], resource_of(""))
    one, another = finished(stream(1), stream(2))
    row = {"operation": "chat", "end_ns": 5, "outcome": "ok"}
    metrics.count([one, another], [row, {**row, "operation": operation, "outcome": "http_error"}])
    data = metrics.read()
    metrics.close()
    assert data is not None
    named = {m.name: m.data.data_points for s in data.resource_metrics[0].scope_metrics for m in s.metrics}
    assert sum(p.count for p in named["gen_ai.client.operation.duration"]) == 1
    assert [p.attributes["streamgauge.outcome"] for p in named["streamgauge.streams"] if p.value] == ["ok"]


@pytest.mark.parametrize("profile", ["genai-main", "1.41+genai-main"])
def test_genai_main_uses_the_general_duration_for_other_operations(profile: str) -> None:
    metrics = Metrics(names_of(profile), resource_of(""))
    (one,) = finished(stream(1))
    metrics.count([one], [{"outcome": "ok", "end_ns": 5, "operation": "embeddings", "input_tokens": 9}])
    data = metrics.read()
    metrics.close()
    assert data is not None
    named = {m.name: m.data.data_points for s in data.resource_metrics[0].scope_metrics for m in s.metrics}
    assert sum(p.count for p in named["gen_ai.client.operation.duration"]) == 1
    assert not any(name.startswith("gen_ai.client.inference.usage") for name in named)


def silence(model: str, silent_s: int) -> Silence:
    return Silence("id", "gw", model, None, "mid_stream", silent_s * 1_000_000_000)


def test_gauges_of_streams_in_flight_have_bounded_models_and_return_to_zero() -> None:
    telemetry = Telemetry(telemetry_options(metrics="127.0.0.1:0"))
    for models in (range(MAX_VALUES), range(MAX_VALUES, 2 * MAX_VALUES)):
        telemetry.update_open_streams([silence(f"m{n}", n) for n in models])
    found = {
        name: {
            p.attributes["gen_ai.request.model"]: p.value
            for p in points(telemetry, f"streamgauge.stream.{name}")
        }
        for name in ("silence", "in_flight")
    }
    telemetry.close()
    for name, value in (("silence", 2 * MAX_VALUES - 1), ("in_flight", MAX_VALUES)):
        assert found[name] == {**{f"m{n}": 0 for n in range(MAX_VALUES)}, OTHER: value}


@pytest.mark.parametrize("profile", PROFILES)
def test_exported_metrics_match_their_definitions(profile: str, tmp_path: Path) -> None:
    telemetry, _ = counted(profile=profile, server_metrics=True)
    telemetry.update_health(
        {"streams.active": 1, "pipeline.lag": 0, "pipeline.since_commit": 0, "store.size": 1}
    )
    telemetry.update_health(
        {f"pipeline.{n}": 0 for n in ("loop_lag", "log_size", "captured", "lost_records")}
    )
    telemetry.update_health({f"store.{n}": 0 for n in ("conflicts", "overtaken")})
    telemetry.update_health({f"hops.{n}": 0 for n in ("pending", "ambiguous", "skipped")})
    telemetry.update_health(
        {f"{kind}.{n}": 0 for kind in ("markers", "silences") for n in ("stored", "refused")}
    )
    telemetry.update_incidents([{"severity": "page", "metric": "ttft", "model": "gpt-test"}])
    telemetry.update_health({"queries.refused": 0})
    telemetry.update_health({f"plugin_exports.{n}": 0 for n in ("exported", "failed", "dropped")})
    names = ("firing", "ignored", "sent", "send_failed", "send_dropped")
    telemetry.update_health({f"alerts.{n}": 0 for n in names})
    telemetry.update_open_streams([silence("gpt-test", 1)])
    hop = {"outer_gateway": "litellm", "model": None, "added_ttft_ns": 5 * MS, "added_event_p50_ns": -1}
    telemetry.count_hops(pl.DataFrame([hop]))
    store = new_store(tmp_path)
    queues = span_queue(store.cursor), event_queue(store.cursor)
    receiver = OtlpReceiver(signals(*queues, b"key"), listen="127.0.0.1:0")
    job = ServerSpanJob(store, Guards())
    telemetry.update_health(receiver.health() | job.health())
    receiver.close()
    job.close()
    store.close()
    emitted = {m.name: (m.unit, m.description) for m in metrics_of(telemetry)}
    telemetry.close()
    known = {i.name: (i.unit, i.description) for i in metric_definitions(PROFILES[profile])}
    del known["streamgauge.stream.ttft_drift"]  # no server reports its timing here
    for name in ("burn_rate", "budget_spent"):  # the store has no objectives here
        del known[f"streamgauge.objective.{name}"]
    absent = (
        "streamgauge.budget.",
        "streamgauge.rate_limit.",
    )  # nor budgets, nor limits that responses report
    for name in [name for name in known if name.startswith(absent)]:
        del known[name]
    for name in ("streams", "errors", "input_tokens", "output_tokens"):  # no label has metrics here
        del known[f"streamgauge.label.{name}"]
    if profile == "genai-main":
        del known["gen_ai.client.operation.duration"]  # there are no other operations here
    assert emitted == known


def samples(profile: str = "1.41") -> set[str]:
    """All sample names of the Prometheus endpoint."""
    ends = {
        "histogram": ("_bucket", "_count", "_sum"),
        "counter": ("_total",),
        "total": ("_total",),
        "gauge": ("",),
    }
    return {
        prometheus_name(i.name, i.unit) + end
        for i in metric_definitions(PROFILES[profile])
        for end in ends[i.kind]
    }


def test_hops_are_counted_by_gateway_and_model_without_negative_values() -> None:
    telemetry = Telemetry(telemetry_options(metrics="127.0.0.1:0"))
    hop = {"outer_gateway": "litellm", "model": "m", "added_ttft_ns": 5 * MS, "added_event_p50_ns": -2 * MS}
    telemetry.count_hops(pl.DataFrame([hop, {**hop, "added_ttft_ns": None}]))
    [ttft], [delay] = (points(telemetry, f"streamgauge.hop.{name}") for name in ("added_ttft", "event_delay"))
    telemetry.close()
    assert dict(ttft.attributes) == {"streamgauge.gateway": "litellm", "gen_ai.request.model": "m"}
    assert (ttft.count, ttft.sum) == (1, pytest.approx(0.005))
    assert (delay.count, delay.sum) == (2, 0)


def test_grafana_dashboard_and_alerts_use_only_existing_metrics() -> None:
    alerts = yaml.safe_load((ROOT / "deploy/otel/alerts.yaml").read_text())
    grafana = json.loads((ROOT / "deploy/otel/grafana.json").read_text())
    expressions = [rule["expr"] for group in alerts["groups"] for rule in group["rules"]]
    expressions += [target["expr"] for panel in grafana["panels"] for target in panel.get("targets", [])]
    assert len(expressions) > 12
    for expression in expressions:
        names = set(re.findall(r"\b(?:up|(?:streamgauge|gen_ai)_\w+)(?=\{|\[|\)| |$)", expression))
        labels = set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", expression)) | set(
            re.findall(r"\w+", " ".join(re.findall(r"by\s*\(([^)]*)\)", expression)))
        )
        names -= labels
        assert names, expression
        assert names <= samples() | {"up"}, expression
