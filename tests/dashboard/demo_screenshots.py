"""The screenshots of the docs, from a demo of five minutes: `python -m tests.dashboard.demo_screenshots FOLDER`.

`make screenshots` runs it. The stream page shows the slowest stream with a tool call and reasoning, Compare the two busiest
models, and Traces a trace with spans of an OpenTelemetry SDK in the client.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tests.dashboard.screenshots import main as take
from tests.tables import tables

SECONDS = 900
"""Time limit. The demo is stopped after the screenshots."""
WARM_UP_S = 290
"""Time before the screenshots, so the pages show five minutes of traffic."""
STREAM = """
    SELECT stream_id::VARCHAR AS id FROM streams WHERE outcome = 'ok' AND streamed
    ORDER BY (reasoning_chars > 0 AND tool_call_count > 0) DESC, end_ns DESC LIMIT 1"""
MODELS = "SELECT request_model AS model FROM streams WHERE outcome = 'ok' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 2"
CHAT = """
    SELECT path, mode(request_model) AS model FROM streams WHERE dialect = 'openai_chat' AND outcome = 'ok' AND streamed
    GROUP BY 1 ORDER BY count(*) DESC LIMIT 1"""


def traced(data: Path) -> str:
    """Send a traced request as a client with an OpenTelemetry SDK does. Returns its trace id when the stream is stored."""
    parts = {name: json.loads((data / "run" / f"{name}.json").read_text()) for name in ("tap", "analyze")}
    (chat,) = tables(data).query(CHAT).to_dicts()
    provider = TracerProvider(resource=Resource.create({"service.name": "report-writer"}))
    exporter = OTLPSpanExporter(f"{parts['analyze']['otlp']}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("screenshots")
    with tracer.start_as_current_span("write the weekly report") as root:
        with tracer.start_as_current_span("read the figures"):
            time.sleep(0.2)
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        body = {
            "model": chat["model"],
            "stream": True,
            "messages": [{"role": "user", "content": "Summarise."}],
        }
        response = httpx.post(
            f"{parts['tap']['listen']}{chat['path']}", json=body, headers=headers, timeout=60
        )
        response.raise_for_status()
    trace_id = f"{root.get_span_context().trace_id:032x}"
    while not tables(data).query(f"SELECT 1 FROM streams WHERE trace_id = '{trace_id}'").height:
        time.sleep(0.2)
    return trace_id


def main(folder: Path) -> int:
    with tempfile.TemporaryDirectory() as folder_name:
        data = Path(folder_name) / "streamgauge-data"
        ports = ["--dashboard-port", "0"]
        ports += [word for flag in ("--listen", "--admin") for word in (flag, "127.0.0.1:0")]
        demo = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "streamgauge",
                "demo",
                "--seconds",
                str(SECONDS),
                "--rate",
                "10",
                "--data",
                data.name,  # relative, as in the docs
                *ports,
            ],
            cwd=folder_name,
            env={**os.environ, "STREAMGAUGE_OTLP_LISTEN": "127.0.0.1:0"},
        )
        try:
            began_s = time.monotonic()
            while time.monotonic() - began_s < WARM_UP_S:
                if demo.poll() is not None:
                    return 1
                time.sleep(1)
            url = json.loads((data / "run" / "dashboard.json").read_text())["url"]
            stream_id = str(tables(data).query(STREAM)["id"][0])
            a, b = tables(data).query(MODELS)["model"]
            paths = {
                "compare": f"&A-when=same+time&A-model={a}&B-model={b}",
                "traces": f"&trace={traced(data)}",
            }
            take(url, folder, stream_id=stream_id, paths=paths)
            return 0
        finally:
            demo.terminate()
            demo.wait()


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
