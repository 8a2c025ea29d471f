"""The counters of a process that records, with their meaning, and their Prometheus text format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

FAMILIES = {
    "streams_opened": "Requests accepted for forwarding to an upstream, and recorded refusals.",
    "streams_closed": "Exchanges that have ended; see streams_closed_by_cause.",
    "streams_relayed": "Responses handed to the native relay.",
    "open_streams_now": "Exchanges in progress.",
    "client_connections": "Connections accepted from clients.",
    "client_connections_now": "Open connections of clients.",
    "upstream_connections": "Connections opened to upstreams.",
    "upstream_reuses": "Exchanges on an idle connection from the pool.",
    "retries": "Requests repeated because the server had just closed an idle connection.",
    "requests_refused": "Requests refused by the tap (malformed, too large, too slow).",
    "requests_unrouted": "Requests without a configured upstream.",
    "refusals_unrecorded": "Refused and unrouted requests without a row: too many per second.",
    "request_bytes": "Request body bytes sent upstream (of ended streams).",
    "body_bytes": "Response body bytes received (of ended streams).",
    "captured_bytes": "Response body bytes recorded.",
    "uncaptured_bytes": "Response body bytes not recorded, by rule (kind of the body, size).",
    "frames": "Recorded reads of response bodies.",
    "records": "Records handed to the log thread.",
    "lost_records": "Dropped records, reported in the log as Lost records.",
    "lost_bytes": "Response body bytes dropped instead of recorded.",
    "lost_untold": "Losses that no Lost record reports.",
    "recording_failed": "Exceptions in recording (bugs); their streams are stored as tap_lost.",
    "queue_bytes_now": "Bytes of records in memory that wait for the log.",
    "log_entries": "Entries appended to the log.",
    "log_bytes": "Bytes appended to the log, compressed.",
    "log_append_errors": "Failed appends to the log.",
    "log_size_bytes_now": "Size of the local log on disk at the last scan.",
    "log_trimmed_segments": "Segments removed because every reader had released them.",
    "log_dropped_segments": "Unread segments removed at the log's size or age limit, reported as lost.",
    "log_dropped_records": "Records in the dropped segments.",
    "log_dropped_bytes": "Bytes of entries in the dropped segments, compressed.",
    "log_corrupt_segments": "Damaged segments that the writer found and quarantined.",
    "log_refused_entries": "Entries refused because the log was full and nothing could be dropped.",
    "log_failed_entries": "Failed writes of entries to disk; they were retried.",
    "log_failing_now": "1 while appends to the log fail, else 0.",
    "bad_upstream_excess_bytes": "Bytes that upstreams sent after the end of a response.",
    "native_relays_now": "Workers that use the native relay.",
    "compiled_workers_now": "Workers that run the compiled code.",
    "relay_waits_dropped": "Waits for clients and delays of the tap that the native relay dropped because its queue was full.",
    "capture_packets": "Captured packets, of all connections on the chosen ports.",
    "capture_packets_unknown_link": "Captured packets with a link type that is not read.",
    "capture_packets_not_tcp": "Captured packets without TCP, such as QUIC.",
    "capture_packets_fragmented": "Captured fragments of IP packets, which are not joined.",
    "capture_packets_cut_off": "Captured packets that end within their headers.",
    "capture_packets_untimed": "Captured packets without a time.",
    "capture_packets_other_ports": "Captured packets of other ports than the chosen ones.",
    "capture_packets_without_start": "Captured packets of connections whose start was not captured, before their next request.",
    "capture_dropped": "Packets that the kernel dropped because the capture was too slow.",
    "capture_connections": "Captured TCP connections.",
    "capture_connections_tls": "Captured connections that cannot be read: TLS.",
    "capture_connections_http2": "Captured connections that cannot be read: HTTP/2.",
    "capture_connections_other": "Captured connections that cannot be read: neither HTTP/1.x nor TLS nor HTTP/2.",
    "capture_connections_without_request": "Captured connections that ended without a request.",
    "capture_connections_evicted": "Captured connections that were dropped at a limit; their open streams are stored as tap_lost.",
    "capture_segments_inconsistent": "Captured segments that repeat bytes of their connection with different content. The first is kept.",
    "capture_gaps": "Gaps in captured connections; the streams with a gap are stored as tap_lost.",
    "capture_gap_bytes": "Bytes missing in these gaps.",
    "faults_now": "Threads, loops and tasks at fault; see guard_fault.",
    "worker_restarts": "Restarts of workers that died.",
    "workers_now": "Running workers.",
}
"""Meaning by name in `Report.stats`. Names that end in `_now` are gauges, all others totals."""
CAPTURE = "capture_"
"""Prefix of the counters of captured packets."""
_DURATIONS = (
    ("loop_lag_max_ns", "loop_lag_max_seconds", "Longest delay of the event loop since the start."),
    ("loop_lag_last_max_ns", "loop_lag_seconds", "Last measured delay of the event loop, worst worker."),
    ("loop_blocked_ns", "loop_blocked_seconds_total", "Time in which the event loop was blocked."),
)


class Report(NamedTuple):
    """The state of one worker, or of all. `faults` and `failures` as `Guards` has them."""

    stats: Mapping[str, int]
    faults: Mapping[str, str]
    failures: Mapping[str, int]


def render(report: Report) -> str:
    stats = report.stats
    lines: list[str] = []

    def family(name: str, text: str) -> str:
        full = f"streamgauge_tap_{name}"
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.extend((f"# HELP {full} {text}", f"# TYPE {full} {kind}"))
        return full

    for key, text in FAMILIES.items():
        if key in stats:
            name = key.removesuffix("_now") if key.endswith("_now") else f"{key}_total"
            lines.append(f"{family(name, text)} {stats[key]}")
    by_cause = {k.removeprefix("closed_"): v for k, v in stats.items() if k.startswith("closed_")}
    if by_cause:
        full = family("streams_closed_by_cause_total", "Exchanges that have ended, by transport-level cause.")
        lines += [f'{full}{{cause="{cause}"}} {count}' for cause, count in by_cause.items()]
    for key, name, text in _DURATIONS:
        if key in stats:
            lines.append(f"{family(name, text)} {stats[key] / 1e9:.9f}")
    full = family("guard_failures_total", "Exceptions that a thread, loop or task has survived.")
    lines += [f'{full}{{guard="{name}"}} {count}' for name, count in report.failures.items()]
    full = family("guard_fault", "1 while the thread, loop or task fails or makes no progress, else 0.")
    names = report.failures.keys() | report.faults.keys()
    lines += [f'{full}{{guard="{name}"}} {int(name in report.faults)}' for name in sorted(names)]
    return "\n".join(lines) + "\n"


def add_up(parts: list[Mapping[str, int]]) -> dict[str, int]:
    """Combine the counters of several workers: the maximum of maxima and of the shared log's size, otherwise the sum."""
    total: dict[str, int] = {}
    for part in parts:
        for key, value in part.items():
            if key.endswith("max_ns") or key == "log_size_bytes_now":
                total[key] = max(total.get(key, 0), value)
            else:
                total[key] = total.get(key, 0) + value
    return total
