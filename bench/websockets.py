"""WebSockets: decoded messages per CPU second, tunnels compared with nginx, and the memory of idle sockets in the tap.

- `decode`: messages of OpenAI's Responses API with permessage-deflate and context takeover, from records to the rows of all tables.
- `round trips`: 32 sockets that echo messages of 300 bytes, through nginx and through the tap, which records them.
- `bulk`: 8 sockets on which the server sends frames of 16 KiB as fast as it can.
- `idle`: memory of the tap for each of 5,000 sockets that were used once.

Rates are per second, and per second of the proxy's CPU time, its log included. It runs on the first core, client and server on the
others.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # must be set before the import of polars

from bench.tap.processes import cpu_s, memory_bytes
from bench.tap.servers import OTHER_CORES, Target, nginx, tap
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from tests.analytics.sockets import COMPRESSIONS, create, events, recorded

HEAD = (
    b"GET /ws HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
MESSAGE = b"\x82\x7e\x01\x2c" + b"x" * 300
BULK = (b"\x82\x7e\x40\x00" + b"x" * 16_384) * 4
RUN_S = 4.0
ROUNDS = 3
READ_BYTES = 262_144


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench websockets", description=__doc__)
    parser.add_argument("--idle", type=int, default=5000, help="idle sockets")
    parser.add_argument("--decode-only", action="store_true")
    arguments = parser.parse_args()
    print(f"decode: {statistics.median(decode() for _ in range(5)):,.0f} compressed messages/s of a core")
    if arguments.decode_only:
        return 0
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        port = served()
        targets = [stack.enter_context(tap("tap", folder / "data", port))]
        peer = stack.enter_context(nginx(folder, port))
        if peer is not None:
            targets.append(peer)
        for kind, load in (("round trips", round_trips), ("bulk MB", bulk)):
            found: dict[tuple[str, str], list[float]] = {}
            for _ in range(ROUNDS):
                for target in targets:
                    used_s, began_s = -cpu_s(target.pids), time.monotonic()
                    total = load(target.port)
                    used_s += cpu_s(target.pids)
                    found.setdefault((target.name, "/s"), []).append(total / (time.monotonic() - began_s))
                    found.setdefault((target.name, "/CPU s"), []).append(total / used_s)
            for (target_name, unit), rates in found.items():
                print(f"{target_name}: {statistics.median(rates):,.0f} {kind}{unit}")
        print(f"idle: {idle(targets[0], arguments.idle):.1f} KiB each of {arguments.idle} sockets in the tap")
    return 0


def decode() -> float:
    """Messages a second of CPU time."""
    sent = []
    count = 0
    for turn in range(20):
        answer = events(f"resp_{turn}", [f"word{n * 7919 % 1000} " for n in range(400)])
        sent.append((turn * 10_000, "client", create()))
        sent += [(turn * 10_000 + 10 * (n + 1), "server", event) for n, event in enumerate(answer)]
        count += 1 + len(answer)
    records = recorded(sent, compression=COMPRESSIONS[1], reads_per_record=40)
    begin_s = time.process_time()
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("p", offset, [record])
    rows = measure(assembler.take_finished())
    took_s = time.process_time() - begin_s
    if len(rows["streams"]) != 21 or rows["streams"]["output_tokens"].sum() != 8000:
        raise ValueError("not every answer was measured")
    return count / took_s


def served() -> int:
    """The port of a server in another process. It echoes messages, and sends without an end after `BULK`."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=8192)
    multiprocessing.Process(target=_serve, args=(listener,), daemon=True).start()
    return int(listener.getsockname()[1])


def _serve(listener: socket.socket) -> None:
    os.sched_setaffinity(0, OTHER_CORES)
    threading.stack_size(65_536)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_answer, args=(connection,), daemon=True).start()


def _answer(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        head = connection.recv(65_536)
        assert head.endswith(b"\r\n\r\n")
        connection.sendall(SWITCH)
        while data := connection.recv(READ_BYTES):
            if data == b"bulk":
                while True:
                    connection.sendall(BULK)
            connection.sendall(data)
    except OSError:
        connection.close()


def _connected(port: int) -> socket.socket:
    client = socket.create_connection(("127.0.0.1", port), 30)
    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    client.sendall(HEAD)
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):
        answer += client.recv(1)
    return client


def _together(port: int, count: int, one: Callable[[socket.socket, float], int]) -> float:
    """What `one` counts on all sockets."""
    until_s, counts = time.monotonic() + RUN_S, [0] * count
    clients = [_connected(port) for _ in range(count)]

    def work(number: int) -> None:
        counts[number] = one(clients[number], until_s)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for client in clients:
        client.close()
    return sum(counts)


def round_trips(port: int) -> float:
    def one(client: socket.socket, until_s: float) -> int:
        count = 0
        while time.monotonic() < until_s:
            client.sendall(MESSAGE)
            left = len(MESSAGE)
            while left:
                left -= len(client.recv(left))
            count += 1
        return count

    return _together(port, 32, one)


def bulk(port: int) -> float:
    def one(client: socket.socket, until_s: float) -> int:
        client.sendall(b"bulk")
        size, buffer = 0, bytearray(READ_BYTES)
        while time.monotonic() < until_s:
            size += client.recv_into(buffer)
        return size

    return _together(port, 8, one) / 1e6


def idle(target: Target, count: int) -> float:
    """KiB of the target for each idle socket."""
    before_bytes = memory_bytes(target.pids)
    clients = []
    for _ in range(count):
        client = _connected(target.port)
        client.sendall(MESSAGE)
        client.recv(len(MESSAGE))
        clients.append(client)
    time.sleep(3)
    each_bytes = (memory_bytes(target.pids) - before_bytes) / count
    for client in clients:
        client.close()
    return each_bytes / 1024
