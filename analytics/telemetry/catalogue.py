"""Every metric that analytics tells: the one list that the counting, the documentation's table and the tests are made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from analytics.telemetry.semconv import OWN, SECONDS_BOUNDS, TOKEN_BOUNDS, Names

ITL_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.5, 1.0, 2.0, 5.0)
TPS_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)

Kind = Literal["histogram", "counter", "gauge", "total"]
"""`total` and `gauge` are asked for when somebody reads; the others are added to, stream by stream."""


@dataclass(frozen=True, slots=True)
class Instrument:
    """One metric."""

    name: str
    kind: Kind
    unit: str
    description: str
    bounds: tuple[float, ...] = ()
    column: str | None = None
    """Column of `streams` whose value is recorded."""
    factor: float = 1
    """From the column's unit to this one's."""


def _seconds(
    name: str, column: str | None, text: str, bounds: tuple[float, ...] = SECONDS_BOUNDS
) -> Instrument:
    return Instrument(name, "histogram", "s", text, bounds, column, 1e-9)


OWN_HISTOGRAMS = (
    _seconds(OWN + "stream.ttft", "ttft_ns", "Time to the first output of any channel"),
    _seconds(OWN + "stream.ttfo", "ttfo_ns", "Time to the first output that is not reasoning"),
    _seconds(OWN + "stream.itl", "itl_ns", "Inter-token latency", ITL_BOUNDS),
    Instrument(
        OWN + "stream.tps", "histogram", "{token}/s", "Tokens per second as the reader sees them", TPS_BOUNDS, "tps_user"
    ),
)  # fmt: skip
STREAMS = Instrument(OWN + "streams", "counter", "{stream}", "Finished streams by outcome")
STALLS = Instrument(OWN + "stream.stalls", "counter", "{stall}", "Stalls in finished streams")
STALLED = Instrument(OWN + "stream.stalled", "counter", "s", "Time spent in stalls")

OWN_OBSERVED = (
    Instrument(OWN + "streams.active", "gauge", "{stream}", "Streams in flight"),
    Instrument(OWN + "pipeline.lag", "gauge", "{entry}", "Entries of the log that are not consumed yet"),
    Instrument(OWN + "pipeline.log_size", "gauge", "By", "Size of the taps' local log, as far as they told"),
    Instrument(
        OWN + "pipeline.freshness", "gauge", "s", "Age of the newest stored stream's end when it was stored"
    ),
    Instrument(OWN + "pipeline.since_commit", "gauge", "s", "Time since the last commit"),
    Instrument(OWN + "pipeline.loop_lag", "gauge", "s", "Longest pause of a tap's event loop"),
    Instrument(OWN + "store.size", "gauge", "By", "Bytes of the store: Parquet files and catalog"),
    Instrument(OWN + "store.conflicts", "total", "{transaction}", "Commits repeated after a conflict"),
    Instrument(
        OWN + "pipeline.captured", "total", "{stream}", "Streams that the taps opened, as far as they told"
    ),
    Instrument(
        OWN + "pipeline.stored", "total", "{stream}", "Rows of streams that were committed by this process"
    ),
    Instrument(OWN + "pipeline.lost", "total", "{stream}", "Streams stored as tap_lost by this process"),
    Instrument(
        OWN + "pipeline.lost_records",
        "total",
        "{record}",
        "Records that the taps dropped, as far as they told",
    ),
    Instrument(OWN + "spans_exported", "total", "{span}", "Spans that a receiver took"),
    Instrument(
        OWN + "spans_dropped", "total", "{span}", "Spans dropped because the export queue was full or closed"
    ),
    Instrument(OWN + "spans_failed", "total", "{span}", "Spans that the receiver did not take"),
    Instrument(OWN + "spans_not_made", "total", "{stream}", "Streams whose spans could not be made"),
    Instrument(
        OWN + "otlp.received", "total", "{span}", "Spans of others that came over OTLP and were queued"
    ),
    Instrument(OWN + "otlp.stored", "total", "{span}", "Spans of others that were committed"),
    Instrument(OWN + "otlp.doubled", "total", "{span}", "Spans of others that were in the table already"),
    Instrument(OWN + "otlp.refused", "total", "{span}", "Spans of others that cannot be any"),
    Instrument(
        OWN + "otlp.turned_away",
        "total",
        "{span}",
        "Spans of others for which the queue had no room; to be sent again",
    ),
    Instrument(OWN + "events_dropped", "total", "{event}", "Exception events dropped or not taken"),
)


def of_conventions(names: Names) -> tuple[Instrument, ...]:
    """What the conventions of a profile ask for."""
    found = [
        _seconds(names.duration_metric, "end_ns", "Duration of the operation"),
        _seconds(names.other_duration_metric, "end_ns", "Duration of the operation"),
        _seconds(names.first_chunk_metric, "ttfc_ns", "Time to the first chunk of a streamed answer"),
        _seconds(names.per_chunk_metric, None, "Time between two output chunks"),
    ]
    for name, column in zip(names.token_metrics, ("input_tokens", "output_tokens"), strict=True):
        found.append(Instrument(name, "histogram", "{token}", "Tokens of an operation", TOKEN_BOUNDS, column))
    for column, name in names.token_counters.items():
        found.append(Instrument(name, "counter", "{token}", "Tokens used", (), column))
    return tuple({i.name: i for i in found}.values())


def catalogue(names: Names) -> tuple[Instrument, ...]:
    """Every metric of a profile."""
    return (*of_conventions(names), *OWN_HISTOGRAMS, STREAMS, STALLS, STALLED, *OWN_OBSERVED)
