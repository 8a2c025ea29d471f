"""Clients and servers on blocking threads that end, pause and close exactly as told, with or without TLS.

asyncio and uvloop decide themselves when they read, and close TLS with a closing alert. These peers do neither.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from streamgauge.ingest.tap.sockets import reset_on_close
from tests.deadline import DEADLINE_S

End = Literal["half-close", "close", "reset", "stay"]
"""What a peer does once it has sent everything; it reads on after `half-close` and `stay`. Over TLS no end sends a closing alert."""
LIMIT_S = DEADLINE_S


def talk(
    sock: socket.socket,
    sends: bytes,
    end: End,
    *,
    pauses: Sequence[tuple[int, float]] = (),
    leave: threading.Event | None = None,
) -> tuple[bytes, str]:
    """Send and receive at the same time. Returns what arrived and how the other side ended: `eof`, `reset`, or `open` if this
    side left first. `pauses`: (bytes received, seconds without reading from then on). `leave`: leave early when it is set."""
    sock.setblocking(False)
    unsent, received, waiting = memoryview(sends), bytearray(), list(pauses)
    ended = over = False
    paused_until_s, limit_s = 0.0, time.monotonic() + LIMIT_S
    would_block = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
    try:
        while leave is None or not leave.is_set():
            if not unsent and not ended:
                ended = True
                if end == "half-close":
                    with contextlib.suppress(OSError):  # already reset: what has arrived can still be read
                        socket.socket.shutdown(
                            sock, socket.SHUT_WR
                        )  # SSLSocket.shutdown would end decryption
                elif end != "stay":
                    break
            if over and not unsent:
                return bytes(received), "eof"
            now_s = time.monotonic()
            if now_s > limit_s:
                raise TimeoutError(f"{len(unsent)} bytes unsent, {len(received)} bytes received")
            if waiting and len(received) >= waiting[0][0]:
                paused_until_s = now_s + waiting.pop(0)[1]
            reading = now_s >= paused_until_s and not over
            if not (reading and isinstance(sock, ssl.SSLSocket) and sock.pending()):
                wait_s = max(0.0, paused_until_s - now_s) or 0.1
                select.select([sock] if reading else [], [sock] if unsent else [], [], wait_s)
            try:
                if unsent:
                    unsent = unsent[sock.send(unsent[:65_536]) :]
            except would_block:
                pass
            except (ConnectionError, ssl.SSLError):  # what has arrived can still be read
                unsent, ended = unsent[:0], True
            with contextlib.suppress(*would_block):
                if reading:
                    data = sock.recv(65_536)
                    received += data
                    over = not data
        return bytes(received), "open"
    except ssl.SSLEOFError:  # the end of the connection without a closing alert
        return bytes(received), "eof"
    except (ConnectionError, ssl.SSLError):
        return bytes(received), "reset"
    finally:
        if end == "reset":
            reset_on_close(sock)
        sock.close()


def read_head(sock: socket.socket) -> bytes:
    """Read a head byte by byte, so that nothing after it is taken."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = sock.recv(1)
        if not byte:
            raise ConnectionError("the connection ended within a head")
        head += byte
    return head


def connect(address: tuple[str, int], tls: ssl.SSLContext | None, receive_bytes: int = 0) -> socket.socket:
    """A blocking connection. `receive_bytes`: size of the kernel's receive buffer; 0: its default."""
    sock = socket.socket()
    if receive_bytes:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    sock.settimeout(LIMIT_S)
    sock.connect(address)
    return (
        sock
        if tls is None
        else tls.wrap_socket(sock, server_hostname="localhost", suppress_ragged_eofs=False)
    )


@contextlib.contextmanager
def server(
    serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None, receive_bytes: int = 0
) -> Iterator[tuple[int, ThreadPoolExecutor]]:
    """Run `serve` on a thread for each connection. Yields the port, and threads for clients."""
    listener = socket.socket()
    if receive_bytes:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    listener.bind(("127.0.0.1", 0))
    listener.listen(100)
    threads = ThreadPoolExecutor(100)

    def handle(sock: socket.socket) -> None:
        sock.settimeout(LIMIT_S)
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            if tls is not None:
                sock = tls.wrap_socket(sock, server_side=True, suppress_ragged_eofs=False)
            stack.callback(sock.close)
            serve(sock)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threads.submit(handle, listener.accept()[0])

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield listener.getsockname()[1], threads
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join()
        threads.shutdown()
