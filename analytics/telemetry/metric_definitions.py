"""Every metric of analytics: name, unit, description, buckets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from streamgauge.analytics.telemetry.semconv import (
    NAMESPACE,
    SECONDS_BOUNDS,
    SERVER_DURATION,
    SERVER_TPOT,
    SERVER_TPOT_BOUNDS,
    SERVER_TTFT,
    SERVER_TTFT_BOUNDS,
    TOKEN_BOUNDS,
    Names,
)

ITL_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
TPS_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)

Kind = Literal["histogram", "counter", "gauge", "total"]
"""`total` and `gauge` are read on export. The others are updated with each stream."""


@dataclass(frozen=True, slots=True)
class Instrument:
    name: str
    kind: Kind
    unit: str
    description: str
    bounds: tuple[float, ...] = ()
    column: str | None = None
    """Column of `streams` with the recorded value."""
    factor: float = 1
    """Converts the column's unit to the metric's."""


def _seconds(
    name: str, column: str | None, text: str, bounds: tuple[float, ...] = SECONDS_BOUNDS
) -> Instrument:
    return Instrument(name, "histogram", "s", text, bounds, column, 1e-9)


STREAM_HISTOGRAMS = (
    _seconds(NAMESPACE + "stream.ttft", "ttft_ns", "Time to the first output, reasoning included"),
    _seconds(NAMESPACE + "stream.ttfo", "ttfo_ns", "Time to the first output other than reasoning"),
    _seconds(NAMESPACE + "stream.itl", "itl_ns", "Inter-token latency", ITL_BOUNDS),
    Instrument(
        NAMESPACE + "stream.tps", "histogram", "{token}/s", "Output tokens per second after the first output", TPS_BOUNDS, "tps_user"
    ),
)  # fmt: skip
SERVER_HISTOGRAMS = (
    _seconds(SERVER_DURATION, "end_ns", "Duration of the request at the server (with `--server-metrics`)"),
    _seconds(SERVER_TTFT, "ttft_ns", "Time to the first output (with `--server-metrics`)", SERVER_TTFT_BOUNDS),
    _seconds(SERVER_TPOT, "itl_ns", "Time per output token after the first (with `--server-metrics`)", SERVER_TPOT_BOUNDS),
)  # fmt: skip
"""For operations that generate output. TTFT and time per output token only if the operation succeeded."""
HOP_HISTOGRAMS = (
    _seconds(NAMESPACE + "hop.added_ttft", "added_ttft_ns", "Time to first token that a gateway adds", ITL_BOUNDS),
    _seconds(NAMESPACE + "hop.event_delay", "added_event_p50_ns", "Median delay of a stream's output events by a gateway", ITL_BOUNDS),
)  # fmt: skip
"""Their columns are of table `hops`."""
STREAMS = Instrument(NAMESPACE + "streams", "counter", "{stream}", "Finished streams by outcome")
STALLS = Instrument(NAMESPACE + "stream.stalls", "counter", "{stall}", "Stalls in finished streams")
CACHE_INPUT = Instrument(
    NAMESPACE + "prompt_cache.input_tokens",
    "counter",
    "{token}",
    "Input tokens of streams that report cached ones",
)
CACHE_HITS = Instrument(
    NAMESPACE + "prompt_cache.hit_tokens", "counter", "{token}", "Input tokens read from the prompt cache"
)
TTFT_DRIFT = _seconds(
    NAMESPACE + "stream.ttft_drift",
    None,
    "Time to first token minus the one that the server reports, at least 0",
)
STALLED = Instrument(NAMESPACE + "stream.stalled", "counter", "s", "Time spent in stalls")

IN_FLIGHT = Instrument(
    NAMESPACE + "stream.in_flight",
    "gauge",
    "{stream}",
    "Streams in flight that are expected to generate output",
)
SILENCE = Instrument(
    NAMESPACE + "stream.silence", "gauge", "s", "Longest time without output of a stream in flight"
)
BURN_RATE = Instrument(
    NAMESPACE + "objective.burn_rate",
    "gauge",
    "{budget}",
    "Share of bad streams in the window / error budget of the objective",
)
BUDGET_SPENT = Instrument(
    NAMESPACE + "objective.budget_spent", "gauge", "{budget}", "Share of the error budget spent in 30 days"
)

GUARD_FAULT = Instrument(
    NAMESPACE + "guard.fault",
    "gauge",
    "{guard}",
    "1 while the thread, loop or task fails or makes no progress, else 0",
)
GUARD_FAILURES = Instrument(
    NAMESPACE + "guard.failures",
    "total",
    "{exception}",
    "Exceptions that a thread, loop or task has survived",
)

_OBSERVED: tuple[tuple[str, Kind, str, str], ...] = (
    ("streams.active", "gauge", "{stream}", "Streams in flight"),
    ("pipeline.lag", "gauge", "{entry}", "Log entries not consumed yet"),
    ("pipeline.log_size", "gauge", "By", "Size of the largest local record log, as reported by the taps"),
    ("pipeline.freshness", "gauge", "s", "Time from the end of the newest stream to its commit"),
    ("pipeline.since_commit", "gauge", "s", "Time since the last commit"),
    ("pipeline.loop_lag", "gauge", "s", "Longest pause of a tap's event loop"),
    ("store.size", "gauge", "By", "Size of the store: Parquet files and catalog"),
    ("store.conflicts", "total", "{transaction}", "Commits repeated after a conflict"),
    ("pipeline.captured", "total", "{stream}", "Streams opened, as reported by the taps"),
    ("pipeline.stored", "total", "{stream}", "Streams committed by this process"),
    ("pipeline.lost", "total", "{stream}", "Streams committed as tap_lost by this process"),
    ("pipeline.lost_records", "total", "{record}", "Records dropped, as reported by the taps"),
    ("spans_exported", "total", "{span}", "Spans accepted by the OTLP endpoint"),
    ("spans_dropped", "total", "{span}", "Spans dropped because the export queue was full or closed"),
    ("spans_failed", "total", "{span}", "Spans rejected by the OTLP endpoint"),
    ("spans_not_made", "total", "{stream}", "Streams whose spans could not be built"),
    ("otlp.received", "total", "{span}", "Spans received over OTLP and queued"),
    ("otlp.stored", "total", "{span}", "Received spans that were committed"),
    ("otlp.doubled", "total", "{span}", "Received spans that were already stored"),
    ("otlp.refused", "total", "{span}", "Received spans that were invalid"),
    (
        "otlp.turned_away",
        "total",
        "{span}",
        "Received spans rejected because the queue was full; the sender retries",
    ),
    ("otlp.connections_late", "total", "{connection}", "Connections of span senders closed at a deadline"),
    (
        "otlp.connections_turned_away",
        "total",
        "{connection}",
        "Connections and bodies of span senders closed for lack of room",
    ),
    ("markers.stored", "total", "{marker}", "Markers that were committed"),
    ("markers.refused", "total", "{request}", "Requests to store a marker that were refused"),
    ("queries.refused", "total", "{query}", "Queries of `sql` and `status` refused because too many ran"),
    ("hops.pending", "gauge", "{stream}", "Stored streams whose hops are not final"),
    ("hops.ambiguous", "total", "{stream}", "Streams without hops because several streams were possible"),
    ("hops.skipped", "total", "{stream}", "Streams without hops after an error or because too many waited"),
    ("events_dropped", "total", "{event}", "Exception events dropped or rejected by the OTLP endpoint"),
    ("alerts.firing", "gauge", "{alert}", "Alerts that are firing"),
    ("alerts.ignored", "total", "{alert}", "Conditions of alerts ignored because too many alerts are firing"),
    ("alerts.sent", "total", "{notification}", "Notifications accepted by the webhook or a plugin"),
    (
        "alerts.send_failed",
        "total",
        "{notification}",
        "Notifications that the webhook or a plugin did not accept",
    ),
    (
        "alerts.send_dropped",
        "total",
        "{notification}",
        "Notifications dropped because the queue was full or closed",
    ),
    ("plugin_exports.exported", "total", "{commit}", "Commits that exporters of plugins accepted"),
    ("plugin_exports.failed", "total", "{commit}", "Commits that exporters of plugins did not accept"),
    (
        "plugin_exports.dropped",
        "total",
        "{commit}",
        "Commits not exported because a plugin's queue was full or closed",
    ),
)
OBSERVED = tuple(Instrument(NAMESPACE + name, kind, unit, text) for name, kind, unit, text in _OBSERVED)


def convention_metrics(names: Names) -> tuple[Instrument, ...]:
    """The metrics required by the conventions of a profile."""
    found = [
        _seconds(names.duration_metric, "end_ns", "Duration of the operation"),
        _seconds(names.other_duration_metric, "end_ns", "Duration of the operation"),
        _seconds(names.first_chunk_metric, "ttfc_ns", "Time to the first chunk of a streamed response"),
        _seconds(names.per_chunk_metric, None, "Time between two output chunks"),
    ]
    for name, column in zip(names.token_metrics, ("input_tokens", "output_tokens"), strict=True):
        found.append(Instrument(name, "histogram", "{token}", "Tokens of an operation", TOKEN_BOUNDS, column))
    for column, name in names.token_counters.items():
        found.append(Instrument(name, "counter", "{token}", "Tokens used", (), column))
    return tuple({i.name: i for i in found}.values())


def metric_definitions(names: Names) -> tuple[Instrument, ...]:
    return (
        *convention_metrics(names),
        *SERVER_HISTOGRAMS,
        *HOP_HISTOGRAMS,
        *STREAM_HISTOGRAMS,
        STREAMS,
        STALLS,
        STALLED,
        IN_FLIGHT,
        SILENCE,
        CACHE_INPUT,
        CACHE_HITS,
        TTFT_DRIFT,
        BURN_RATE,
        BUDGET_SPENT,
        GUARD_FAULT,
        GUARD_FAILURES,
        *OBSERVED,
    )
