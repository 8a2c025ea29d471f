"""The screenshots of the docs, from five minutes of traffic: `python -m tests.e2e.docs_screenshots FOLDER [DARK_FOLDER]`.

`make screenshots` runs it, with the labels, prices and budgets of the demo. Two simulated gateways get mixed traffic and coding agents,
and a router in front of one of them adds a hop. After three minutes most requests of one model are rejected at one gateway, so the
Overview shows the diagnosis of an incident.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streamgauge.commands.demo_run import CONFIG, PRICES
from streamgauge.simulator.agents import run_agents
from streamgauge.simulator.router import start_router
from streamgauge.simulator.traffic import Traffic, TrafficOptions
from tests.dashboard.screenshots import main as take
from tests.deadline import DEADLINE_S
from tests.e2e.running import Up, simulator, up
from tests.ports import free_port

HEALTHY_S = 190
INCIDENT_S = 100
GATEWAYS = ("eu-gateway", "us-gateway")
BROKEN_MODEL, BROKEN_GATEWAY = "gpt-sim-large", "us-gateway"
CHAT = "/v1/chat/completions"
STREAM = """
    SELECT stream_id::VARCHAR AS id FROM streams WHERE outcome = 'ok' AND streamed
    ORDER BY (reasoning_chars > 0 AND tool_call_count > 0) DESC, end_ns DESC LIMIT 1"""
MODELS = "SELECT request_model AS model FROM streams WHERE outcome = 'ok' GROUP BY 1 ORDER BY count(*) DESC, 1 LIMIT 2"


def chat(tap: str, gateway: str, model: str, **headers: str) -> None:
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": "How high is the river?"}],
    }
    headers = {"authorization": "Bearer sk-demo-app", **headers}
    with suppress(httpx.HTTPError):
        httpx.post(f"{tap}/{gateway}{CHAT}", json=body, headers=headers, timeout=DEADLINE_S)


def traced(running: Up) -> str:
    """Send a traced request as a client with an OpenTelemetry SDK does. Returns its trace id when the stream is stored."""
    provider = TracerProvider(resource=Resource.create({"service.name": "report-writer"}))
    exporter = OTLPSpanExporter(f"{running.part('analyze')['otlp']}/v1/traces")
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("screenshots")
    with tracer.start_as_current_span("write the weekly report") as root:
        with tracer.start_as_current_span("read the figures"):
            time.sleep(0.2)
        headers: dict[str, str] = {}
        TraceContextTextMapPropagator().inject(headers)
        chat(running.tap, "router", "gpt-sim-mini", **headers)
    trace_id = f"{root.get_span_context().trace_id:032x}"
    while not running.sql(f"SELECT 1 FROM streams WHERE trace_id = '{trace_id}' OFFSET 1"):
        time.sleep(0.2)
    return trace_id


@contextmanager
def in_thread(work: Callable[[threading.Event], None]) -> Iterator[None]:
    """Call `work(stop)` in a thread, and set `stop` at the end."""
    stop = threading.Event()
    thread = threading.Thread(target=work, args=(stop,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(DEADLINE_S)


def traffic(tap: str, router_port: int, stop: threading.Event) -> None:
    """Mixed traffic to both gateways, and the router."""

    async def run() -> None:
        ended = asyncio.Event()
        found = [
            Traffic(TrafficOptions(base_url=f"{tap}/{gateway}", run=gateway, seed=gateway, rate_per_s=4.0))
            for gateway in GATEWAYS
        ]
        router = await start_router(lambda: f"{tap}/{GATEWAYS[0]}", router_port)
        tasks = [asyncio.create_task(each.run(ended)) for each in found]
        tasks += [asyncio.create_task(run_agents(each, 2, ended)) for each in found]
        await asyncio.to_thread(stop.wait)
        ended.set()
        for each in found:
            await each.cancel()
        await asyncio.wait(tasks)
        router.close()

    asyncio.run(run())


def through_router(tap: str, stop: threading.Event) -> None:
    """Requests through the router, one after another."""
    while not stop.wait(0.8):
        chat(tap, "router", "gpt-sim-mini", **{"x-team": "product"})


def rejections(tap: str, stop: threading.Event) -> None:
    """The incident: 429 for one model at one gateway, whichever the client."""
    for key in itertools.cycle(TrafficOptions(base_url=tap).keys):
        rejected = {"x-simulate": json.dumps({"fault": "http_429"}), "authorization": f"Bearer {key}"}
        chat(tap, BROKEN_GATEWAY, BROKEN_MODEL, **rejected)
        if stop.wait(0.9):
            return


def main(folder: Path, dark_folder: Path | None = None) -> int:
    os.environ["STREAMGAUGE_OTLP_LISTEN"] = "127.0.0.1:0"
    router_port = free_port()
    with (
        tempfile.TemporaryDirectory() as parent,
        simulator("--seed", "eu", "--rate-faults", "0.02") as eu,
        simulator("--seed", "us", "--rate-faults", "0.02") as us,
        up(
            [f"eu-gateway={eu}", f"us-gateway={us}", f"router=http://127.0.0.1:{router_port}"],
            Path(parent) / "streamgauge-data",
            "--config",
            str(CONFIG),
            "--price-file",
            str(PRICES),
            dashboard=True,
        ) as running,
        in_thread(lambda stop: traffic(running.tap, router_port, stop)),
        in_thread(lambda stop: through_router(running.tap, stop)),
    ):
        time.sleep(HEALTHY_S)
        with in_thread(lambda stop: rejections(running.tap, stop)):
            time.sleep(INCIDENT_S)
            url = str(running.part("dashboard")["url"])
            a, b = (row["model"] for row in running.sql(MODELS))
            paths = {
                "compare": f"&A-when=same+time&A-model={a}&B-model={b}",
                "traces": f"&trace={traced(running)}",
            }
            stream_id = str(running.sql(STREAM)[0]["id"])
            take(url, folder, stream_id=stream_id, paths=paths)
            if dark_folder is not None:
                take(url, dark_folder, dark=True, stream_id=stream_id, paths=paths)
    return 0


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:3])))
