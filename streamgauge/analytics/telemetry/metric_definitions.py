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
TTFT_DRIFT = _seconds(
    NAMESPACE + "stream.ttft_drift",
    None,
    "Time to first token minus the one that the server reports, at least 0",
)


def _table(kind: Kind, rows: str) -> tuple[Instrument, ...]:
    """One instrument a line: name without `NAMESPACE`, unit, description."""
    lines = (row.split(maxsplit=2) for row in rows.strip().splitlines())
    return tuple(Instrument(NAMESPACE + name, kind, unit, text) for name, unit, text in lines)


_COUNTERS = """
streams                    {stream} Finished streams by outcome, without warm-ups, WebSockets and pages
stream.stalls              {stall}  Stalls in finished streams
stream.stalled             s        Time spent in stalls
prompt_cache.input_tokens  {token}  Input tokens of streams that report cached ones
prompt_cache.hit_tokens    {token}  Input tokens read from the prompt cache
label.streams              {stream} Finished streams by value of a label (with `prometheus = true`)
label.errors               {stream} Of them, those with an error outcome
label.input_tokens         {token}  Their reported input tokens
label.output_tokens        {token}  Their reported output tokens
"""
_GAUGES = """
stream.in_flight       {stream} Streams in flight that are expected to generate output
stream.silence         s        Longest time without output of a stream in flight
objective.burn_rate    {budget} Share of bad streams in the window / error budget of the objective
objective.budget_spent {budget} Share of the error budget spent in 30 days
budget.spent           {budget} Share of a budget (`budgets`) spent in its current period
budget.burn_rate       {budget} Spend in the window / mean rate of the budget
budget.forecast        {budget} Forecast of the share at the end of the period: low, middle and high
rate_limit.limit       {unit}   Requests or tokens that a provider allows in its window; 1 for a quota
rate_limit.remaining   {unit}   What is left of it, as the newest response reports it
rate_limit.reset       s        Time until all of it is there again
rate_limit.forecast    s        Time until the first 429 at the current rate; missing without a forecast
guard.fault            {guard}  1 while the thread, loop or task fails or makes no progress, else 0
streams.active         {stream} Streams in flight
pipeline.lag           {entry}  Log entries not consumed yet
pipeline.log_size      By       Size of the largest local record log, as reported by the taps
pipeline.freshness     s        Time from the end of the newest stream to its commit
pipeline.since_commit  s        Time since the last commit
pipeline.loop_lag      s        Longest pause of a tap's event loop
store.size             By       Size of the store: Parquet files and catalog
hops.pending           {stream} Stored streams whose hops are not final
server_spans.pending   {span}   Received spans of model servers whose stream is not found yet
alerts.firing          {alert}  Alerts that are firing
incident.firing        {alert}  1 for each incident of the diagnosis that is firing
"""
_TOTALS = """
guard.failures               {exception}    Exceptions that a thread, loop or task has survived
store.conflicts              {transaction}  Commits repeated after a conflict
pipeline.captured            {stream}       Streams opened, as reported by the taps
pipeline.stored              {stream}       Streams committed by this process
pipeline.lost                {stream}       Streams committed as tap_lost by this process
pipeline.lost_records        {record}       Records dropped, as reported by the taps
spans_exported               {span}         Spans accepted by the OTLP endpoint
spans_dropped                {span}         Spans dropped because the export queue was full or closed
spans_failed                 {span}         Spans rejected by the OTLP endpoint
spans_not_made               {stream}       Streams whose spans could not be built
otlp.received                {span}         Spans received over OTLP and queued
otlp.stored                  {span}         Received spans that were committed
otlp.doubled                 {span}         Received spans that were already stored
otlp.refused                 {span}         Received spans that were invalid
otlp.turned_away             {span}         Received spans rejected because the queue was full; the sender retries
server_spans.matched         {span}         Spans of model servers with a stream: their times are in server_stats
server_spans.unmatched       {span}         Spans of model servers whose stream was not found in time, or that were too many
otlp.connections_late        {connection}   Connections of OTLP senders closed at a deadline
otlp.connections_turned_away {connection}   Connections and bodies of OTLP senders closed for lack of room
agent_events.received        {event}        Events of agents received over OTLP and queued
agent_events.stored          {event}        Events of agents that were committed
agent_events.doubled         {event}        Events of agents that were already stored
agent_events.refused         {event}        Events of agents that were invalid
agent_events.turned_away     {event}        Events of agents rejected because the queue was full; the sender retries
agent_events.ignored         {item}         Log records and metrics received over OTLP that have no table
markers.stored               {marker}       Markers that were committed
markers.refused              {request}      Requests to store a marker that were refused
silences.stored              {silence}      Silences of alerts that were committed
silences.refused             {request}      Requests to store a silence that were refused
queries.refused              {query}        Queries of `sql` and `status` refused because too many ran
hops.ambiguous               {stream}       Streams without hops because several streams, or more than 200, were possible
hops.skipped                 {stream}       Streams without hops after an error or because too many waited
events_dropped               {event}        Exception events dropped or rejected by the OTLP endpoint
alerts.ignored               {alert}        Conditions of alerts ignored because too many alerts are firing
alerts.sent                  {notification} Notifications accepted by the webhook or a plugin
alerts.send_failed           {notification} Notifications that the webhook or a plugin did not accept
alerts.send_dropped          {notification} Notifications dropped because the queue was full or closed
plugin_exports.exported      {commit}       Commits that exporters of plugins accepted
plugin_exports.failed        {commit}       Commits that exporters of plugins did not accept
plugin_exports.dropped       {commit}       Commits not exported because a plugin's queue was full or closed
"""
COUNTERS = _table("counter", _COUNTERS)
OBSERVED = (*_table("gauge", _GAUGES), *_table("total", _TOTALS))
"""Read on export."""


def convention_metrics(names: Names) -> tuple[Instrument, ...]:
    """The metrics required by the conventions."""
    found = []
    for profile in names.profiles:
        found += [
            _seconds(profile.duration_metric, "end_ns", "Duration of the operation"),
            _seconds(profile.other_duration_metric, "end_ns", "Duration of the operation"),
            _seconds(profile.first_chunk_metric, "ttfc_ns", "Time to the first chunk of a streamed response"),
            _seconds(profile.per_chunk_metric, None, "Time between two output chunks"),
        ]
        for name, column in zip(profile.token_metrics, ("input_tokens", "output_tokens"), strict=True):
            found.append(
                Instrument(name, "histogram", "{token}", "Tokens of an operation", TOKEN_BOUNDS, column)
            )
        for column, name in profile.token_counters.items():
            found.append(Instrument(name, "counter", "{token}", "Tokens used", (), column))
    return tuple({i.name: i for i in found}.values())


def metric_definitions(names: Names) -> tuple[Instrument, ...]:
    ours = (*HOP_HISTOGRAMS, *STREAM_HISTOGRAMS, TTFT_DRIFT, *COUNTERS, *OBSERVED)
    return (*convention_metrics(names), *SERVER_HISTOGRAMS, *ours)
