"""Every metric of analytics: name, unit, description, buckets. The counting code, the reference page and the tests use this list."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analytics.telemetry.semconv import OWN, SECONDS_BOUNDS, TOKEN_BOUNDS, Names

ITL_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
TPS_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)

Kind = Literal["histogram", "counter", "gauge", "total"]
"""`total` and `gauge` are read on export. The others are updated with each stream."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric."""

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


OWN_HISTOGRAMS = (
    _seconds(OWN + "stream.ttft", "ttft_ns", "Time to the first output, reasoning included"),
    _seconds(OWN + "stream.ttfo", "ttfo_ns", "Time to the first output other than reasoning"),
    _seconds(OWN + "stream.itl", "itl_ns", "Inter-token latency", ITL_BOUNDS),
    Instrument(
        OWN + "stream.tps", "histogram", "{token}/s", "Output tokens per second after the first output", TPS_BOUNDS, "tps_user"
    ),
)  # fmt: skip
STREAMS = Instrument(OWN + "streams", "counter", "{stream}", "Finished streams by outcome")
STALLS = Instrument(OWN + "stream.stalls", "counter", "{stall}", "Stalls in finished streams")
STALLED = Instrument(OWN + "stream.stalled", "counter", "s", "Time spent in stalls")

OWN_OBSERVED = (
    Instrument(OWN + "streams.active", "gauge", "{stream}", "Streams in flight"),
    Instrument(OWN + "pipeline.lag", "gauge", "{entry}", "Log entries not consumed yet"),
    Instrument(
        OWN + "pipeline.log_size",
        "gauge",
        "By",
        "Size of the largest local record log, as reported by the taps",
    ),
    Instrument(
        OWN + "pipeline.freshness", "gauge", "s", "Time from the end of the newest stream to its commit"
    ),
    Instrument(OWN + "pipeline.since_commit", "gauge", "s", "Time since the last commit"),
    Instrument(OWN + "pipeline.loop_lag", "gauge", "s", "Longest pause of a tap's event loop"),
    Instrument(OWN + "store.size", "gauge", "By", "Size of the store: Parquet files and catalog"),
    Instrument(OWN + "store.conflicts", "total", "{transaction}", "Commits repeated after a conflict"),
    Instrument(OWN + "pipeline.captured", "total", "{stream}", "Streams opened, as reported by the taps"),
    Instrument(OWN + "pipeline.stored", "total", "{stream}", "Streams committed by this process"),
    Instrument(OWN + "pipeline.lost", "total", "{stream}", "Streams committed as tap_lost by this process"),
    Instrument(
        OWN + "pipeline.lost_records",
        "total",
        "{record}",
        "Records dropped, as reported by the taps",
    ),
    Instrument(OWN + "spans_exported", "total", "{span}", "Spans accepted by the OTLP endpoint"),
    Instrument(
        OWN + "spans_dropped", "total", "{span}", "Spans dropped because the export queue was full or closed"
    ),
    Instrument(OWN + "spans_failed", "total", "{span}", "Spans rejected by the OTLP endpoint"),
    Instrument(OWN + "spans_not_made", "total", "{stream}", "Streams whose spans could not be built"),
    Instrument(OWN + "otlp.received", "total", "{span}", "Spans received over OTLP and queued"),
    Instrument(OWN + "otlp.stored", "total", "{span}", "Received spans that were committed"),
    Instrument(OWN + "otlp.doubled", "total", "{span}", "Received spans that were already stored"),
    Instrument(OWN + "otlp.refused", "total", "{span}", "Received spans that were invalid"),
    Instrument(
        OWN + "otlp.turned_away",
        "total",
        "{span}",
        "Received spans rejected because the queue was full; the sender retries",
    ),
    Instrument(
        OWN + "events_dropped",
        "total",
        "{event}",
        "Exception events dropped or rejected by the OTLP endpoint",
    ),
)


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
    """Every metric of a profile."""
    return (*convention_metrics(names), *OWN_HISTOGRAMS, STREAMS, STALLS, STALLED, *OWN_OBSERVED)
