"""Queries to a running analytics over the Unix socket `DATA/run/query.sock`. Needs only the standard library.

Protocol (`pipe_messages`)
1. The server accepts and sends `{"ready": true}`. A caller that does not receive it at once treats analytics as not running.
2. The caller sends one request `{"sql", "form", "max_rows", "timeout_s"}`. The answer is `{}` with the rendered rows as the body, or
   the error (`errors.to_wire`). Then the server closes the connection.

Only the user of analytics and root can connect, because the socket has mode 0600.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from streamgauge.analytics.query import pipe_messages
from streamgauge.analytics.query.errors import of_kind, too_slow

SOCKET = "run/query.sock"
"""Path in the data folder."""
MAX_RENDERED_BYTES = 32 * 2**20
"""Longest answer over the socket, because analytics holds it in memory."""
GREETING_S = 1.0
GRACE_S = 2.0
"""Time beyond that of the query until the caller gives up: for a waiting slot and the answer's way."""
_MAX_PATH_BYTES = 100
"""Kernels limit the address of a Unix socket to 104 to 108 bytes."""


class NotListening(Exception):
    """No analytics answers on the socket."""


@contextmanager
def address(path: Path) -> Iterator[str]:
    """The path, or a shorter one to the same file. Raises OSError."""
    if len(os.fsencode(path)) <= _MAX_PATH_BYTES:
        yield str(path)
        return
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def limit_waits(connection: socket.socket, seconds: float) -> None:
    """Let reads and writes fail with BlockingIOError when nothing moves for this long."""
    whole, part = divmod(max(seconds, 0.001), 1)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(whole), int(part * 1e6)))


def ask(data: Path, sql: str, form: str, *, max_rows: int, timeout_s: float) -> bytes:
    """The rows of one SELECT, as `render.render` writes them. Raises NotListening and QueryError."""
    with socket.socket(socket.AF_UNIX) as connection:
        limit_waits(connection, GREETING_S)
        try:
            with address(data / SOCKET) as path:
                connection.connect(path)
            greeting = pipe_messages.receive(connection.fileno())
        except (OSError, pipe_messages.BrokenMessage) as e:
            raise NotListening(str(e)) from None
        if greeting is None:
            raise NotListening("the connection was closed")
        if "error" in greeting[0]:
            raise of_kind(greeting[0]["error"], greeting[0].get("message"))
        limit_waits(connection, timeout_s + GRACE_S)
        request = {"sql": sql, "form": form, "max_rows": max_rows, "timeout_s": timeout_s}
        try:
            pipe_messages.send(connection.fileno(), request)
            answer = pipe_messages.receive(connection.fileno(), MAX_RENDERED_BYTES)
        except BlockingIOError:
            raise too_slow(timeout_s) from None
        except (OSError, pipe_messages.BrokenMessage) as e:
            raise NotListening(str(e)) from None
    if answer is None:
        raise NotListening("the connection was closed")
    header, body = answer
    if "error" in header:
        raise of_kind(header["error"], header.get("message"), header.get("position"))
    return body
