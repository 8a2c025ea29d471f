"""The tap's counters in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Mapping

_FAMILIES: tuple[tuple[str, str, str], ...] = (
    ("streams_opened", "counter", "Requests that the tap turned to an upstream for."),
    ("streams_closed", "counter", "Exchanges that have ended; see streams_closed_by_cause."),
    ("open_streams_now", "gauge", "Exchanges under way."),
    ("client_connections", "counter", "Connections accepted from clients."),
    ("client_connections_now", "gauge", "Connections of clients that are open."),
    ("upstream_connections", "counter", "Connections opened to upstreams."),
    ("upstream_reuses", "counter", "Exchanges that took an idle connection."),
    (
        "retries",
        "counter",
        "Requests sent again because an idle connection had just been closed by the server.",
    ),
    ("requests_refused", "counter", "Requests refused by the tap (malformed, too large, too slow)."),
    ("requests_unrouted", "counter", "Requests that named no configured upstream."),
    ("request_bytes", "counter", "Request body bytes sent upstream (of ended streams)."),
    ("body_bytes", "counter", "Response body bytes received (of ended streams)."),
    ("captured_bytes", "counter", "Response body bytes mirrored into records."),
    ("uncaptured_bytes", "counter", "Response body bytes not mirrored, by rule (content type, size)."),
    ("frames", "counter", "Reads mirrored."),
    ("records", "counter", "Records handed to the log's thread."),
    ("lost_records", "counter", "Records that were dropped; each is told in the log by Lost."),
    ("lost_bytes", "counter", "Response body bytes that were to be mirrored and were dropped."),
    ("lost_untold", "counter", "Losses that the log could not be told of."),
    ("queue_bytes_now", "gauge", "Bytes in memory that wait for the log."),
    ("log_entries", "counter", "Entries appended to the log."),
    ("log_bytes", "counter", "Bytes appended to the log, compressed."),
    ("log_append_errors", "counter", "Appends that the log refused."),
    ("log_size_bytes_now", "gauge", "Bytes of the local log on disk, as last summed."),
    ("log_trimmed_segments", "counter", "Segments removed because every reader had released them."),
    (
        "log_dropped_segments",
        "counter",
        "Unread segments removed at the log's cap in bytes or age; their streams are told by Lost.",
    ),
    ("log_dropped_records", "counter", "Records in those segments."),
    ("log_dropped_bytes", "counter", "Bytes of entries in those segments, compressed."),
    ("log_corrupt_segments", "counter", "Damaged segments that were met by the writer and set aside."),
    (
        "log_refused_entries",
        "counter",
        "Entries refused because the log was at its cap and nothing could go.",
    ),
    ("log_failed_entries", "counter", "Entries that the disk did not take; they were tried again."),
    ("log_failing_now", "gauge", "1 while the log takes no records."),
    ("bad_upstream_excess_bytes", "counter", "Bytes that upstreams sent after the end of a response."),
    ("worker_restarts", "counter", "Workers that died and were started again."),
    ("workers_now", "gauge", "Workers that are running."),
)
_LAG = (
    ("loop_lag_max_ns", "loop_lag_max_seconds", "Longest delay of the event loop since the start."),
    (
        "loop_lag_last_max_ns",
        "loop_lag_seconds",
        "Delay of the event loop, last measured, of the worst worker.",
    ),
)


def render(stats: Mapping[str, int]) -> str:
    """The exposition of these numbers."""
    lines: list[str] = []

    def family(name: str, kind: str, text: str) -> str:
        full = f"streamgauge_tap_{name}"
        lines.extend((f"# HELP {full} {text}", f"# TYPE {full} {kind}"))
        return full

    for key, kind, text in _FAMILIES:
        if key in stats:
            name = f"{key}_total" if kind == "counter" else key.removesuffix("_now")
            lines.append(f"{family(name, kind, text)} {stats[key]}")
    by_cause = {k.removeprefix("closed_"): v for k, v in stats.items() if k.startswith("closed_")}
    if by_cause:
        full = family(
            "streams_closed_by_cause_total",
            "counter",
            "Exchanges that have ended, by what the transport saw.",
        )
        lines += [f'{full}{{cause="{cause}"}} {count}' for cause, count in by_cause.items()]
    for key, name, text in _LAG:
        if key in stats:
            lines.append(f"{family(name, 'gauge', text)} {stats[key] / 1e9:.9f}")
    return "\n".join(lines) + "\n"


def add_up(parts: list[Mapping[str, int]]) -> dict[str, int]:
    """The numbers of several workers as one: sums, and the largest of what is a maximum or known to each as a whole."""
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            if key.endswith("max_ns") or key == "log_size_bytes_now":
                total[key] = max(total.get(key, 0), value)
            else:
                total[key] = total.get(key, 0) + value
    return total
