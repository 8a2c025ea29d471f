"""A real OpenTelemetry collector as a process of its own, and what it says that it received."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.running import ROOT, until
from tests.ports import free_ports

_CONFIG = """
receivers:
  otlp:
    protocols:
      grpc: {{endpoint: "127.0.0.1:{grpc}"}}
      http: {{endpoint: "127.0.0.1:{http}"}}
exporters:
  debug: {{verbosity: detailed, sampling_initial: 1000000, sampling_thereafter: 1}}
service:
  telemetry:
    metrics: {{level: none}}
  pipelines:
    traces: {{receivers: [otlp], exporters: [debug]}}
    metrics: {{receivers: [otlp], exporters: [debug]}}
    logs: {{receivers: [otlp], exporters: [debug]}}
"""
_SPAN = re.compile(
    r"Span #\d+\n\s+Trace ID\s+: (\w+)\n\s+Parent ID\s+: (\w*)\n\s+ID\s+: (\w+)\n\s+Name\s+: (.*)\n\s+Kind\s+: (\w+)"
    r"(?:\n.*){0,6}?\n\s+Status code\s+: (\w+)"
)


@dataclass(frozen=True)
class Seen:
    """A span as the collector tells it."""

    trace_id: str
    parent_id: str
    span_id: str
    name: str
    kind: str
    status: str


@dataclass
class Collector:
    grpc: str
    http: str
    log: Path

    def spans(self) -> dict[str, Seen]:
        """By span id."""
        return {m[2]: Seen(*m) for m in _SPAN.findall(self.log.read_text())}

    def environment(self, protocol: str) -> dict[str, str]:
        """What an exporter is told to reach it."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.grpc if protocol == "grpc" else self.http,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }


def _binary() -> str:
    named = os.environ.get("STREAMGAUGE_OTELCOL")
    if named:
        return named
    if shutil.which("go") is None:
        pytest.skip("Go is not installed: no collector can be built")
    try:  # make test-setup has built it; a test has no time for that
        built = subprocess.run(
            [ROOT / "deploy/otel/collector-for-tests"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except subprocess.TimeoutExpired:
        pytest.skip("the collector is not built: make test-setup")
    if built.returncode:
        pytest.skip(f"the collector cannot be built here: {built.stderr.strip()[-200:]}")
    return built.stdout.strip()


@contextmanager
def collector(folder: Path) -> Iterator[Collector]:
    """A collector that is ready; skips, with the reason, where none can be had."""
    binary = _binary()
    grpc, http = free_ports(2)
    (folder / "otelcol.yaml").write_text(_CONFIG.format(grpc=grpc, http=http))
    log = folder / "otelcol.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            [binary, "--config", str(folder / "otelcol.yaml")], stdout=sink, stderr=subprocess.STDOUT
        )
    try:

        def ready() -> bool | None:
            assert process.poll() is None, log.read_text()[-2000:]
            return "Everything is ready" in log.read_text() or None

        until(ready, "the collector")
        yield Collector(f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{http}", log)
    finally:
        process.terminate()
        process.wait(30)
