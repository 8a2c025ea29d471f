"""The Prometheus endpoint: the SDK's metrics as text format, or as OpenMetrics with exemplars on request.

Names follow OpenTelemetry's rules for Prometheus: dots become underscores, the unit is appended, counters end in `_total`. So a
metric has the same name whether Prometheus scrapes it here or receives it over OTLP.
"""

from __future__ import annotations

import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from opentelemetry.sdk.metrics.export import Gauge, Histogram, Metric, MetricsData, Sum
from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector
from prometheus_client.samples import Exemplar

from streamgauge.ingest.guards import Guard, Guards, guarded_thread, probe
from streamgauge.ingest.listening import STATUS, AllowedHosts

_UNITS = {"s": "seconds", "By": "bytes", "{token}/s": "per_second"}
_BAD = re.compile(r"[^a-zA-Z0-9_]")


def prometheus_name(metric: str, unit: str | None) -> str:
    name = _BAD.sub("_", metric)
    suffix = _UNITS.get(unit or "")
    return name if suffix is None or name.endswith(suffix) else f"{name}_{suffix}"


WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
SILENT_AFTER_S = 10.0
IDLE_S = 10.0
"""Longest wait for a part of a request."""
STOP_S = 0.1
"""Longest time until the server ends."""


class PrometheusEndpoint:
    """Serves `GET /metrics`, and other applications by path."""

    def __init__(
        self,
        listen: str,
        read: Callable[[], MetricsData | None],
        allowed_hosts: Iterable[str] = (),
        apps: Mapping[str, WsgiApp] | None = None,
        guards: Guards | None = None,
    ) -> None:
        """`apps`: other applications by path.

        `allowed_hosts`: see `streamgauge.ingest.listening`. Raises OSError (one line) if it cannot bind the address."""
        host, _, port = listen.rpartition(":")
        registry = CollectorRegistry()
        self.collector = _Families(read)
        registry.register(self.collector)
        hosts = AllowedHosts(allowed_hosts, listen_host=host)
        app = _checked(_by_path(apps or {}, make_wsgi_app(registry)), hosts)
        bare = host.strip("[]") or "127.0.0.1"
        try:
            family = socket.getaddrinfo(bare, int(port), type=socket.SOCK_STREAM)[0][0]
            server = _ServerIPv6 if family == socket.AF_INET6 else _Server
            self._server = make_server(bare, int(port), app, server, handler_class=_QuietHandler)
        except OSError as e:
            raise OSError(
                f"cannot bind {listen} for metrics: {e.strerror}. Choose another address with --metrics"
            ) from None
        guard = self._server.guard = (guards or Guards()).guard(
            "metrics server", silent_after_s=SILENT_AFTER_S
        )
        self._ended = threading.Event()
        self._thread = guarded_thread(guard, self._serve, self._ended)
        self._thread.start()
        self.root = f"http://{host or '127.0.0.1'}:{self._server.server_port}"
        self.url = f"{self.root}/metrics"

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=STOP_S)
        self._ended.set()

    def close(self) -> None:
        self._server.shutdown()
        self._ended.set()
        self._server.server_close()
        self._thread.join(5)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    guard: Guard

    def service_actions(self) -> None:
        """The loop calls this between requests, at least every `STOP_S`."""
        self.guard.beat()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that pauses for too long or disconnects is not an error of ours."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _ServerIPv6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    timeout = IDLE_S

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are not logged."""


def _by_path(apps: Mapping[str, WsgiApp], other: Any) -> WsgiApp:
    def routed(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        found: Iterable[bytes] = apps.get(environ["PATH_INFO"], other)(environ, start_response)
        return found

    return routed


def recording_probe(guards: Guards) -> WsgiApp:
    """`/recordingz`: 200 while every thread of the process works, else 503 with one line per fault."""

    def answered(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        status, body = probe(guards.faults())
        headers = [("Content-Type", "text/plain; charset=utf-8")]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body.encode()]

    return answered


def _checked(app: WsgiApp, hosts: AllowedHosts) -> WsgiApp:
    """WSGI middleware that refuses requests with other hosts. WSGI joins repeated headers with commas, which are refused."""

    def checked(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        received = [[environ[key]] if key in environ else [] for key in ("HTTP_HOST", "HTTP_ORIGIN")]
        reason = hosts.refusal(*received)
        if reason is None:
            return app(environ, start_response)
        start_response(
            f"{STATUS} {HTTPStatus(STATUS).phrase}", [("Content-Type", "text/plain; charset=utf-8")]
        )
        return [reason.encode() + b"\n"]

    return checked


class _Families(Collector):
    def __init__(self, read: Callable[[], MetricsData | None]) -> None:
        self._read = read

    def collect(self) -> Iterable[Family]:
        data = self._read()
        for resource in data.resource_metrics if data is not None else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    family = family_of(metric)
                    if family is not None:
                        yield family


def family_of(metric: Metric) -> Family | None:
    """The Prometheus family of a metric, None for kinds that analytics does not have."""
    name, text, data = prometheus_name(metric.name, metric.unit), metric.description or "", metric.data
    names = sorted({key for point in data.data_points for key in (point.attributes or {})})
    labels = [_BAD.sub("_", key) for key in names]

    def values(point: Any) -> list[str]:
        return [str((point.attributes or {}).get(key, "")) for key in names]

    family: Any
    if isinstance(data, Histogram):
        family = HistogramMetricFamily(name, text, labels=labels)
        for point in data.data_points:
            family.add_metric(values(point), _buckets(point), point.sum)
    elif isinstance(data, (Sum, Gauge)):
        is_counter = isinstance(data, Sum) and data.is_monotonic
        family = (CounterMetricFamily if is_counter else GaugeMetricFamily)(name, text, labels=labels)
        for number in data.data_points:
            family.add_metric(values(number), number.value)
    else:
        return None
    return family  # type: ignore[no-any-return]


def _buckets(point: Any) -> list[Any]:
    """Cumulative counts with the exemplar of each bucket."""
    bounds = [*point.explicit_bounds, float("inf")]
    exemplars: dict[int, Exemplar] = {}
    for seen in point.exemplars:
        if seen.trace_id and seen.span_id:
            bucket = next(i for i, bound in enumerate(bounds) if seen.value <= bound)
            labels = {"trace_id": f"{seen.trace_id:032x}", "span_id": f"{seen.span_id:016x}"}
            exemplars[bucket] = Exemplar(labels, seen.value, seen.time_unix_nano / 1e9)
    found, total = [], 0
    for i, (bound, count) in enumerate(zip(bounds, point.bucket_counts, strict=True)):
        total += count
        le = "+Inf" if bound == float("inf") else str(bound)
        found.append((le, total, exemplars[i]) if i in exemplars else (le, total))
    return found
