"""TCP proxy on loopback that simulates a slow or interrupted network between the clients and the broker."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tests.deadline import DEADLINE_S

READ_BYTES = 16_384


class Proxy:
    """Forwards connections to `target`. Any thread may change its settings."""

    def __init__(self) -> None:
        self.port = 0
        self.target: tuple[str, int] | None = None
        self.delay_s = 0.0
        """Delay before each read is forwarded."""
        self.bytes_per_s = 0.0
        """Limit of each direction of a connection. 0: none."""
        self.is_cut = False
        """New connections are reset."""
        self.forwarded_bytes = 0
        self.loses_answer: tuple[bytes, bytes] | None = None
        """(before, last): the next read of a client that ends with `last`, on a connection that has carried `before`, is
        forwarded. Its answer is dropped, and both connections are reset. Then this is None."""
        self._loop = asyncio.new_event_loop()
        self._writers: set[asyncio.StreamWriter] = set()

    def cut(self) -> None:
        """Reset all connections, and new ones until `mend`."""
        self.is_cut = True
        self._loop.call_soon_threadsafe(self._reset)

    def mend(self) -> None:
        """Remove the interruption, the delay and the limit."""
        self.is_cut, self.delay_s, self.bytes_per_s = False, 0.0, 0.0

    def _reset(self) -> None:
        for writer in tuple(self._writers):
            writer.transport.abort()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.is_cut or self.target is None:
            writer.transport.abort()
            return
        try:
            target_reader, target_writer = await asyncio.open_connection(*self.target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target_writer}
        lost = asyncio.Event()
        try:
            await asyncio.gather(
                self._pump(reader, target_writer, lost, is_client=True),
                self._pump(target_reader, writer, lost),
            )
        finally:
            self._writers -= {writer, target_writer}

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        lost: asyncio.Event,
        *,
        is_client: bool = False,
    ) -> None:
        """`lost`: whether the answer to the client's last read is lost."""
        seen = False
        with contextlib.suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if lost.is_set():
                    break
                if is_client and self.loses_answer is not None:
                    before, last = self.loses_answer
                    seen = seen or before in data
                    if seen and data.endswith(last):
                        self.loses_answer = None
                        lost.set()
                pause_s = self.delay_s + (len(data) / self.bytes_per_s if self.bytes_per_s else 0.0)
                if pause_s:
                    await asyncio.sleep(pause_s)
                writer.write(data)
                self.forwarded_bytes += len(data)
                await writer.drain()
        writer.transport.abort()


@contextmanager
def proxy() -> Iterator[Proxy]:
    """A listening proxy without a target."""
    made = Proxy()
    loop = made._loop
    ready = threading.Event()

    async def serve() -> None:
        server = await asyncio.start_server(made._accept, "127.0.0.1", 0)
        made.port = server.sockets[0].getsockname()[1]
        ready.set()

    def work() -> None:
        loop.create_task(serve())
        loop.run_forever()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert ready.wait(DEADLINE_S)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(made._reset)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(DEADLINE_S)
