"""Run a real OpenTelemetry collector and parse the spans that it logs."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S, until
from tests.e2e.running import ROOT
from tests.ports import free_ports

_LOG_EVERYTHING = """
receivers:
  otlp:
    protocols:
      grpc: {endpoint: "${env:OTLP_GRPC_LISTEN}"}
      http: {endpoint: "${env:OTLP_HTTP_LISTEN}"}
exporters:
  debug: {verbosity: detailed, sampling_initial: 1000000, sampling_thereafter: 1}
service:
  pipelines:
    traces: {receivers: [otlp], exporters: [debug]}
    metrics: {receivers: [otlp], exporters: [debug]}
    logs: {receivers: [otlp], exporters: [debug]}
"""
_SPAN = re.compile(
    r"Span #\d+\n\s+Trace ID\s+: (\w+)\n\s+Parent ID\s+: (\w*)\n\s+ID\s+: (\w+)\n\s+Name\s+: (.*)\n\s+Kind\s+: (\w+)"
    r"(?:\n.*){0,6}?\n\s+Status code\s+: (\w+)"
)


@dataclass(frozen=True)
class LoggedSpan:
    """A span in the collector's log."""

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

    def spans(self) -> dict[str, LoggedSpan]:
        """Logged spans by span id, with the default configuration."""
        return {m[2]: LoggedSpan(*m) for m in _SPAN.findall(self.log.read_text())}

    def environment(self, protocol: str) -> dict[str, str]:
        """Environment variables of an exporter to this collector."""
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self.grpc if protocol == "grpc" else self.http,
            "OTEL_EXPORTER_OTLP_PROTOCOL": protocol,
            "OTEL_EXPORTER_OTLP_INSECURE": "true",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }


def built(script: str) -> Path:
    """The output path of a script of deploy/otel that `make test-setup` has run. Skips the test otherwise."""
    try:
        done = subprocess.run(
            [ROOT / "deploy/otel" / script], capture_output=True, text=True, timeout=DEADLINE_S, check=False
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"deploy/otel/{script} was not run yet. Run make test-setup.")
    if done.returncode:
        pytest.skip(f"deploy/otel/{script} failed: {done.stderr.strip()[-200:]}")
    return Path(done.stdout.strip())


@contextmanager
def collector(
    folder: Path,
    config: Path | None = None,
    *,
    extra_config: Path | None = None,
    ports: tuple[int, int] | None = None,
    **environment: str,
) -> Iterator[Collector]:
    """Run a collector until it is ready. `config` None: log everything. `ports`: gRPC and HTTP.

    `extra_config`: a second configuration file.
    """
    binary = os.environ.get("STREAMGAUGE_OTELCOL") or built("collector-for-tests")
    grpc, http = ports or free_ports(2)
    if config is None:
        config = folder / "log-everything.yaml"
        config.write_text(_LOG_EVERYTHING)
    configs = [part for path in (config, extra_config) if path is not None for part in ("--config", path)]
    log = folder / f"{config.stem}-{http}.log"
    with log.open("w") as sink:
        process = subprocess.Popen(
            # Its own metrics would need another port.
            [binary, *configs, "--config", "yaml:service::telemetry::metrics::level: none"],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env={
                **os.environ,
                "OTLP_GRPC_LISTEN": f"127.0.0.1:{grpc}",
                "OTLP_HTTP_LISTEN": f"127.0.0.1:{http}",
                **environment,
            },
        )
    try:

        def ready() -> bool | None:
            assert process.poll() is None, log.read_text()[-2000:]
            return "Everything is ready" in log.read_text() or None

        until(ready, "the collector")
        yield Collector(f"http://127.0.0.1:{grpc}", f"http://127.0.0.1:{http}", log)
    finally:
        process.terminate()
        process.wait(DEADLINE_S)
