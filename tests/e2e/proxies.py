"""Real proxies before and behind a tap, with the configurations of the how-to guides.

`alone` is client → tap → simulator. `front` puts the proxy behind the tap, `behind` the tap behind the proxy.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from bench.tap.peers import Missing, caddy_program, python_peers, running
from bench.tap.servers import debian_program
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.simulator.server import Simulator, SimulatorOptions
from tests.analytics.stream_records import rows_of
from tests.deadline import DEADLINE_S
from tests.e2e.running import ROOT
from tests.ingest.running_tap import RunningTap, running_tap
from tests.ports import free_port

HOW_TO = ROOT / "docs" / "how-to"
LIMIT_S = DEADLINE_S


class Case(NamedTuple):
    """A request. `leave_after`: the client disconnects after this many bytes of the response; None: it reads to the end."""

    simulate: dict[str, Any]
    leave_after: int | None = None
    exact: bool = True
    """All bytes arrive, so that counts are the same everywhere."""


CASES = {
    "complete": Case({}),
    "http_429": Case({"fault": "http_429"}),
    "http_503": Case({"fault": "http_503"}),
    "inband_error": Case({"fault": "inband_error"}),
    "truncate": Case({"fault": "truncate"}),
    "malformed": Case({"fault": "malformed"}),
    "cut": Case({"fault": "cut"}),
    "reset": Case({"fault": "reset"}, exact=False),
    "reset_before_head": Case({"fault": "reset_before_head"}),
    "abort": Case({"gap_ms": 100, "tokens": 200}, leave_after=300, exact=False),
    "abort_before_head": Case({"fault": "slow_first_byte", "ttft_ms": 20_000}, leave_after=0, exact=False),
}
COMPARED = ("outcome", "error_type", "error_phase", "http_status")
COUNTED = (
    "finish_reason",
    "event_count",
    "output_event_count",
    "output_tokens",
    "text_chars",
    "streamed",
    "dialect",
)
Row = dict[str, Any]


class Proxy(NamedTuple):
    """`argv` takes the program and the file of the configuration, in which ports are replaced."""

    page: str
    title: str
    ports: tuple[int, int]
    """Those of the page: where the proxy listens, and its upstream."""
    program: Callable[[], str | None]
    argv: Callable[[str, Path], list[str]]


def nginx_program() -> str | None:
    return debian_program("nginx", "nginx-light")


PROXIES = {
    "envoy": Proxy(
        "envoy.md", "envoy.yaml", (8080, 4100), lambda: str(python_peers() / "envoy"),
        lambda program, file: [program, "-c", str(file), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"],
    ),
    "nginx": Proxy(
        "nginx.md", "nginx.conf", (4443, 4100), nginx_program,
        lambda program, file: [program, "-p", str(file.parent), "-c", file.name],
    ),
    "haproxy": Proxy(
        "nginx.md", "haproxy.cfg", (8080, 4100), lambda: debian_program("haproxy", "haproxy"),
        lambda program, file: [program, "-db", "-f", str(file)],
    ),
    "caddy": Proxy(
        "nginx.md", "Caddyfile", (8080, 4100), caddy_program,
        lambda program, file: [program, "run", "--config", str(file), "--adapter", "caddyfile"],
    ),
}  # fmt: skip


@contextmanager
def proxy(name: str, folder: Path, upstream: int, change: Callable[[str], str] = str) -> Iterator[int]:
    """Run a proxy in front of a port. Yields its own port."""
    of = PROXIES[name]
    try:
        program = of.program()
    except Missing as e:
        pytest.skip(str(e))
    if program is None or shutil.which("curl") is None:
        pytest.skip(f"{name} or curl is not installed")
    blocks = dict(re.findall(r"```\w* ?title=\"(.+?)\"\n(.*?)```", (HOW_TO / of.page).read_text(), re.S))
    port = free_port()
    # The page's nginx has TLS and the dashboard, which need files and another part.
    text = re.sub(r"(?m)^ *ssl_certificate.*\n|(?<=\d) ssl(?=;)", "", change(blocks[of.title]))
    text = text.replace("8443", str(free_port()))
    for number, replaced in zip(of.ports, (port, upstream), strict=True):
        text, count = re.subn(rf"\b{number}\b", str(replaced), text)
        assert count, f"{of.page} has no port {number}"
    folder.mkdir()
    file = folder / of.title
    file.write_text(text)
    with running(name, of.argv(program, file), port, folder / "log"):
        yield port


def simulated(case: Case) -> tuple[str, str]:
    """The header `x-simulate` and the body of the request."""
    forced = {"ttft_ms": 20, "gap_ms": 2, "tokens": 24, "chunk_tokens": 2, "fault_after": 4, **case.simulate}
    message = {"role": "user", "content": "a"}
    body = {
        "model": "gpt-sim-mini",
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [message],
    }
    return json.dumps(forced), json.dumps(body)


async def request(port: int, name: str, case: Case, *options: str) -> None:
    """One request by curl, which is killed to leave."""
    header, body = simulated(case)
    argv = [
        "curl",
        "-sN",
        *options,
        "-d",
        body,
        "-H",
        "content-type: application/json",
        "-H",
        f"x-request-id: {name}",
    ]
    argv += ["-H", f"x-simulate: {header}"]
    process = await asyncio.create_subprocess_exec(
        *argv, f"http://127.0.0.1:{port}/v1/chat/completions", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        if case.leave_after is None:
            await process.stdout.read()
        else:
            await process.stdout.readexactly(case.leave_after)
            if not case.leave_after:
                await asyncio.sleep(0.5)  # nothing shows the client that its request has arrived
            process.kill()
        await process.wait()


@contextlib.asynccontextmanager
async def simulator() -> AsyncIterator[str]:
    simulated = Simulator(SimulatorOptions(listen="127.0.0.1:0", rate_faults=0))
    await simulated.start()
    try:
        yield simulated.url
    finally:
        await simulated.stop()


async def rows(tap: RunningTap, port: int, cases: dict[str, Case], version: str) -> dict[str, Row]:
    """The rows of the cases. The requests go to `port`."""
    await asyncio.gather(*(request(port, name, case, version) for name, case in cases.items()))
    return {row["request_id"]: row for row in await finished(tap, len(cases))}


async def finished(tap: RunningTap, count: int) -> list[Row]:
    await tap.records(count)
    assembler = Assembler()
    assembler.feed("w0", 0, tap.log.records)
    return rows_of(assembler)


async def measured(
    where: str, name: str, folder: Path, version: str = "--http1.1", cases: dict[str, Case] = CASES
) -> dict[str, Row]:
    """The rows with a proxy (`name`) at a place: `alone`, `front` or `behind`."""
    async with contextlib.AsyncExitStack() as stack:
        url = await stack.enter_async_context(simulator())
        if where == "front":
            port = stack.enter_context(proxy(name, folder, int(url.rpartition(":")[2])))
            url = f"http://127.0.0.1:{port}"
        tap = await stack.enter_async_context(running_tap(None, upstreams=[f"a={url}"]))
        port = tap.worker.address[1]
        if where == "behind":
            port = stack.enter_context(proxy(name, folder, port))
        return await rows(tap, port, cases, version)


def differences(
    found: dict[str, Row], expected: dict[str, Row], cases: dict[str, Case] = CASES
) -> dict[str, dict[str, Any]]:
    """Case → column → value, for values that are not those without a proxy."""
    compared = {name: (*COMPARED, *(COUNTED if case.exact else ())) for name, case in cases.items()}
    return {
        name: changed
        for name, columns in compared.items()
        if (changed := {c: found[name][c] for c in columns if found[name][c] != expected[name][c]})
    }
