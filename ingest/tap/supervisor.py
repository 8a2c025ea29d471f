"""The children of a tap with several workers: started, watched, asked for their counters, stopped together.

A worker that dies is started again, at growing intervals, under the same number; its counters since its start are gone
with it, except for those last heard, which stay in the sums so that a total never goes down.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import dataclasses
import json
import logging
import os
import pickle
import signal
import socket
import sys
from collections.abc import Mapping

from ingest.tap.metrics import add_up
from ingest.tap.options import TapOptions

logger = logging.getLogger("streamgauge.tap")

_ANSWER_TIMEOUT_S = 2.0
_START_TIMEOUT_S = 30.0
_HEARD_EVERY_S = 1.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.2, 5.0
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def _prepare_child() -> None:
    """In the child: a group of its own, for Ctrl-C is the parent's to handle; and its end with the parent's, for a tap
    that was killed cannot tell its workers, and they must not keep its address."""
    os.setpgid(0, 0)
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Child:
    """One worker process and the socket to ask it."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.process = process
        self._reader = reader
        self._writer = writer
        self._lock = asyncio.Lock()
        self.last: Mapping[str, int] = {}

    async def ask(self) -> Mapping[str, int]:
        """Its counters now, or as last heard."""
        async with self._lock:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                self._writer.write(b"stats\n")
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    line = await self._reader.readline()
                if line:
                    self.last = json.loads(line)
        return self.last

    async def hear_last(self) -> None:
        """What it said before it ended."""
        async with self._lock:
            with contextlib.suppress(OSError, TimeoutError, ValueError):
                async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                    while line := await self._reader.readline():
                        self.last = json.loads(line)
        self._writer.close()


class Workers:
    """The worker processes."""

    def __init__(self, options: TapOptions, client_key: bytes, listen: str) -> None:
        self._options = options
        self._key = client_key
        self._listen = listen
        self._children: dict[int, _Child] = {}
        self._gone: dict[str, int] = {}
        self._restarts = 0
        self._stop = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        """All of them serve."""
        return len(self._children) == self._options.workers and not self._stop.is_set()

    def stop(self) -> None:
        """Stop them all; asked twice, they do not wait for open streams."""
        self._stop.set()
        for child in self._children.values():
            with contextlib.suppress(ProcessLookupError):
                child.process.send_signal(signal.SIGTERM)

    async def start(self) -> None:
        """Start all and wait until they serve. Raises OSError when one cannot."""
        for number in range(self._options.workers):
            child = await self._start(number)
            if child is None:
                self.stop()
                await asyncio.gather(*(c.process.wait() for c in self._children.values()))
                raise OSError(f"worker {number} could not start; its reason is in the line above")
            self._children[number] = child
        self._tasks = [asyncio.create_task(self._watch(number)) for number in range(self._options.workers)]
        self._tasks.append(asyncio.create_task(self._listen_in()))

    async def serve(self) -> None:
        """Until all have stopped."""
        await asyncio.gather(*self._tasks[:-1])
        self._tasks[-1].cancel()

    async def gather(self) -> list[Mapping[str, int]]:
        """The counters of all workers, of those that died, and ours."""
        alive = await asyncio.gather(*(child.ask() for child in list(self._children.values())))
        ours = {"workers_now": len(self._children), "worker_restarts": self._restarts}
        return [*alive, self._gone, ours]

    async def _start(self, number: int) -> _Child | None:
        ours, theirs = socket.socketpair()
        options = dataclasses.replace(self._options, worker=number, listen=self._listen)
        with theirs:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "ingest.tap.worker_process", f"tap-worker-{number}", str(theirs.fileno()),
                stdin=asyncio.subprocess.PIPE, pass_fds=(theirs.fileno(),), preexec_fn=_prepare_child,
            )  # fmt: skip
        assert process.stdin is not None
        root = logging.getLogger()
        formatter = root.handlers[0].formatter if root.handlers else None
        process.stdin.write(pickle.dumps((options, self._key, root.level, formatter)))
        process.stdin.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=1 << 20)
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                if await reader.readline() == b"ready\n":
                    return _Child(process, reader, writer)
        except (OSError, TimeoutError):
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        writer.close()
        await process.wait()
        return None

    async def _watch(self, number: int) -> None:
        pause_s = _FIRST_PAUSE_S
        loop = asyncio.get_running_loop()
        while True:
            child = self._children[number]
            started_s = loop.time()
            code = await child.process.wait()
            await child.hear_last()
            del self._children[number]
            ended = {k: v for k, v in child.last.items() if not k.endswith("_now")}
            self._gone = add_up([self._gone, ended])
            while not self._stop.is_set():
                if loop.time() - started_s > _LONGEST_PAUSE_S * 2:
                    pause_s = _FIRST_PAUSE_S
                logger.warning(
                    "worker %d died (exit code %s), started again in %.1f s", number, code, pause_s
                )
                self._restarts += 1
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause_s):
                        await self._stop.wait()
                pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
                if self._stop.is_set():
                    return
                fresh = await self._start(number)
                if fresh is not None:
                    self._children[number] = fresh
                    if self._stop.is_set():
                        fresh.process.send_signal(signal.SIGTERM)
                    break
            else:
                return

    async def _listen_in(self) -> None:
        """Hear each worker now and then, so that little is forgotten of one that dies."""
        while True:
            await asyncio.sleep(_HEARD_EVERY_S)
            await asyncio.gather(*(child.ask() for child in list(self._children.values())))
