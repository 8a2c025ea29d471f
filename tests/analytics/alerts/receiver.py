"""A real HTTP receiver of webhooks that answers as a test says."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = "T000/B000/verysecretpath"


@dataclass
class Receiver:
    """`answers`: what each request gets, the last one repeatedly: a status, (status, headers), `hang` or `reset`."""

    answers: Sequence[int | str | tuple[int, dict[str, str]]] = (200,)
    url: str = ""
    received: list[dict[str, Any]] = field(default_factory=list)
    """Bodies of all requests."""
    headers: list[dict[str, str]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    """Ends the requests that hang."""


@contextmanager
def receiver(*answers: int | str | tuple[int, dict[str, str]]) -> Iterator[Receiver]:
    found = Receiver(answers or (200,))

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            number = len(found.received)
            found.received.append(json.loads(body))
            found.headers.append(dict(self.headers.items()))
            found.times_s.append(time.monotonic())
            answer = found.answers[min(number, len(found.answers) - 1)]
            if answer == "hang":
                found.released.wait(30)
                self.close_connection = True
                return
            if answer == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                self.close_connection = True
                return
            assert not isinstance(answer, str)
            status, headers = answer if isinstance(answer, tuple) else (answer, {})
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

        def finish(self) -> None:
            with suppress(OSError):  # the connection was reset
                super().finish()

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    found.url = f"http://127.0.0.1:{server.server_port}/services/{SECRET}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        found.released.set()
        server.shutdown()
        server.server_close()
