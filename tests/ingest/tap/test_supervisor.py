"""The supervisor, the admin port and the hang-up watch go on after exceptions; the probes say what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamgauge.ingest.admin import Admin
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.ingest.listening import AllowedHosts, bind, bind_tap
from streamgauge.ingest.metrics import Report
from streamgauge.ingest.tap.process import supervisor
from streamgauge.ingest.tap.process.supervisor import Supervisor
from streamgauge.ingest.tap.sockets import HangupWatch
from tests.deadline import DEADLINE_S
from tests.guard_injection import Injection
from tests.options import tap_options

LIMIT_S = DEADLINE_S


async def until(met: Callable[[], Any], limit_s: float = LIMIT_S) -> None:
    async with asyncio.timeout(limit_s):
        while not met():  # noqa: ASYNC110 - the condition has no event
            await asyncio.sleep(0.005)


async def test_each_hangup_is_delivered_although_a_callback_fails():
    guards = Guards()
    watch = HangupWatch(asyncio.get_running_loop(), guards.guard("hang-ups"))
    delivered: list[int] = []
    pairs = [socket.socketpair() for _ in range(4)]

    def callback(number: int) -> Callable[[bool], None]:
        def on_hangup(broken: bool) -> None:
            delivered.append(number)
            if len(delivered) == 1:
                raise ValueError

        return on_hangup

    for number, (ours, _) in enumerate(pairs):
        watch.watch(ours, callback(number))
    for _, peer in pairs:
        peer.close()
    await until(lambda: len(delivered) == 4)
    assert sorted(delivered) == [0, 1, 2, 3]
    assert guards.failures() == {"hang-ups": 1}
    watch.close()
    for ours, _ in pairs:
        ours.close()


async def test_probes_of_the_admin_port_are_independent():
    faults: dict[str, str] = {"log thread": "has made no progress for 9 s", "record log": "is full"}

    async def report() -> Report:
        return Report({"faults_now": len(faults)}, faults, {"log thread": 2})

    admin = Admin(report, lambda: True, lambda: faults, AllowedHosts((), listen_host="127.0.0.1"))
    sock = bind("127.0.0.1:0", shared=False)
    await admin.start(sock)

    async def get(path: str) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection(*sock.getsockname())
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
        return int(head.split()[1]), body

    assert await get("/recordingz") == (
        503,
        "log thread: has made no progress for 9 s\nrecord log: is full\n",
    )
    assert await get("/readyz") == (200, "ready\n")
    assert await get("/healthz") == (200, "ok\n")
    _, metrics = await get("/metrics")
    assert "streamgauge_tap_faults 2" in metrics
    assert 'streamgauge_tap_guard_failures_total{guard="log thread"} 2' in metrics
    assert 'streamgauge_tap_guard_fault{guard="record log"} 1' in metrics
    faults.clear()
    assert await get("/recordingz") == (200, "recording\n")
    assert 'streamgauge_tap_guard_fault{guard="log thread"} 0' in (await get("/metrics"))[1]
    admin.close()


async def test_supervisor_goes_on_after_a_restart_that_fails_and_after_exceptions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        logging.getLogger(), "handlers", []
    )  # the workers get its formatter, which pytest's cannot be
    monkeypatch.setattr(supervisor, "_MIN_BACKOFF_S", 0.05)
    monkeypatch.setattr(supervisor, "_POLL_INTERVAL_S", 0.05)
    with contextlib.ExitStack() as opened:
        *sockets, _ = map(opened.enter_context, bind_tap("127.0.0.1:0", "127.0.0.1:0", 2))
        options = tap_options(upstreams=parse_upstreams(["http://127.0.0.1:1"]), data=tmp_path, workers=2)
        tap = Supervisor(options, b"k" * 32, sockets)
        await tap.start()
        serving = asyncio.create_task(tap.serve())
        spawn = Supervisor._spawn
        refused: list[dict[str, str]] = []

        async def spawn_once_refused(self: Supervisor, number: int, *descriptors: int) -> Any:
            if not refused:
                refused.append(tap.faults())
                raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
            return await spawn(self, number, *descriptors)

        monkeypatch.setattr(Supervisor, "_spawn", spawn_once_refused)
        os.kill(tap._workers[0].process.pid, signal.SIGKILL)
        await until(lambda: "start of worker 0" in tap.faults())
        assert refused[0]["worker 0"] == "is not running"
        assert tap.ready  # the other worker forwards
        await until(lambda: not tap.faults(), 60)
        assert tap.guards.failures()["start of worker 0"] == 1
        for guard in tap.guards.all():
            if not guard.name.startswith("start"):
                with Injection(guard, tap.guards.faults) as injection:
                    await until(lambda injection=injection: injection.raised and injection.works_again)
                assert guard.name in tap.faults()
        report = await tap.report()
        assert report.stats["workers_now"] == 2
        assert report.failures["worker 1: log thread"] == 0
        assert not serving.done()
        tap.stop()
        await asyncio.wait_for(serving, DEADLINE_S)
