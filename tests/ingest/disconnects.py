"""Run random responses and tunnels whose ends pause and leave, through the tap and directly. Both must deliver the same bytes.

`python -m tests.ingest.disconnects KIND COUNT [SEED]` runs COUNT of one kind and prints a summary. The kinds:

- `responses`: a TLS server closes TCP at once, without a closing alert. The client receives every byte, however slowly it reads.
- `tunnels`: both sides send, pause and end their direction. Each receives everything.
- `walks`: either side also closes or resets, with and without TLS, in tunnels and exchanges. Each receives a prefix, and nothing is
  left in the tap.

The seed determines everything except the time.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvloop

from streamgauge.ingest.records import AnyRecord, Closed
from tests.ingest import peers, running_tap
from tests.ingest.peers import End
from tests.ingest.running_tap import SSE_HEAD, RunningTap

AT_ONCE = 12
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
UPGRADE = b"GET /%d HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n"
POST = b"POST /%d HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
_SIZES = [0, 1, 1000, 65_536, 300_000, 2**21, 2**23]

Result = tuple[bytes, str]
"""What a side received, and how the other one ended."""


@dataclass
class Side:
    """What one side does."""

    sends: bytes
    end: End
    pauses: list[tuple[int, float]] = field(default_factory=list)

    def talk(self, sock: Any) -> Result:
        return peers.talk(sock, self.sends, self.end, pauses=self.pauses)


@dataclass
class Plan:
    """One response or tunnel. `client_receive_bytes`: the kernel's buffer of the client; 0: its default."""

    client: Side
    server: Side
    head: bytes
    """Sent by the client first: it has no part in `client.sends`."""
    answer: bytes
    """Sent by the server after it has read `head`."""
    client_receive_bytes: int


def _pauses(rng: random.Random) -> list[tuple[int, float]]:
    at, found = 0, []
    for _ in range(rng.choice([0, 1, 2, 4])):
        at += rng.choice([0, 1, 50_000, 500_000])
        found.append((at, rng.choice([0.01, 0.05, 0.3])))
    return found


def _events(rng: random.Random, size: int) -> bytes:
    """A stream of chat completion chunks."""
    text = rng.randbytes(min(size, 2**20) // 2).hex()
    event = b'data: {"id": "1", "object": "chat.completion.chunk", "model": "m", "choices": [{"index": 0, %s}]}\n\n'
    delta = event % (b'"delta": {"content": "%s"}, "finish_reason": null' % text.encode())
    finish = event % b'"delta": {}, "finish_reason": "stop"'
    return delta * (size // len(delta) + 1) + finish + b"data: [DONE]\n\n"


def response(rng: random.Random, number: int) -> Plan:
    """A response of 1 kB to 8 MB from a server that closes at once."""
    body = _events(rng, rng.choice([1000, 20_000, 100_000, 300_000, 2_000_000, 8_000_000]))
    framing = rng.choice(["length", "chunked", "close"])
    if framing == "length":
        sent = (
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(body)
            + body
        )
    elif framing == "close":
        sent = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n" + body
    else:
        cut = rng.choice([50, 5_000, 500_000, len(body)])
        pieces = (
            [body[at : at + cut] for at in range(0, len(body), cut)] if len(body) // cut < 5000 else [body]
        )
        sent = SSE_HEAD + b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"
    slow = rng.random() < 0.7
    return Plan(
        Side(b"", "stay", _pauses(rng) if slow else []),
        Side(sent, "close"),
        b"GET /%d HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n" % number,
        b"",
        rng.choice([0, 4096, 65_536]) if slow else 0,
    )


def tunnel(rng: random.Random, number: int) -> Plan:
    """A tunnel in which both sides end their direction."""
    client, server = (Side(rng.randbytes(rng.choice(_SIZES)), "half-close", _pauses(rng)) for _ in range(2))
    return Plan(client, server, UPGRADE % number, SWITCH, rng.choice([0, 4096, 65_536]))


def walk(rng: random.Random, number: int) -> Plan:
    """A tunnel or an upload with its response, in which either side may leave at any time."""
    planned = tunnel(rng, number)
    ends: list[End] = ["stay", "half-close", "close", "reset"]
    if rng.random() < 0.5:
        length = len(planned.client.sends)
        body = planned.server.sends
        planned.head, planned.answer = POST % (number, length + rng.choice([0, 0, 1000])), b""
        planned.server.sends = (
            b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % (len(body) + rng.choice([0, 0, 1000]))
            + body
        )
    leaves = rng.choice([planned.client, planned.server])
    leaves.end = rng.choice(ends[2:])
    for side in (planned.client, planned.server):
        if side is not leaves:
            side.end = rng.choice(ends)
    return planned


class Run:
    """Plans of one kind, carried out through a tap or directly."""

    def __init__(self, make: Callable[[random.Random, int], Plan], seed: int) -> None:
        self._make, self._seed = make, seed
        self._plans: dict[int, Plan] = {}
        self._served: dict[int, Future[Result]] = {}

    def serve(self, sock: Any) -> None:
        number = int(peers.read_head(sock).split(b" ", 2)[1].rpartition(b"/")[2])
        planned = self._plans[number]
        served = self._served[number] = Future()
        try:
            sock.sendall(planned.answer)
            served.set_result(planned.server.talk(sock))
        except OSError:
            served.set_result((b"", "reset"))
        except BaseException as e:
            served.set_exception(e)

    def _client(self, number: int, address: tuple[str, int], tls: ssl.SSLContext | None) -> Result:
        planned = self._plans[number]
        try:
            sock = peers.connect(address, tls, planned.client_receive_bytes)
            sock.sendall(planned.head)
            if planned.answer and not peers.read_head(sock).startswith(b"HTTP/1.1 101"):
                return b"", "reset"  # the server left before
            return planned.client.talk(sock)
        except ConnectionError:
            return b"", "reset"

    async def one(
        self, number: int, address: tuple[str, int], tls: ssl.SSLContext | None, threads: ThreadPoolExecutor
    ) -> tuple[Plan, Result, Result]:
        """Returns the plan and what the client and the server received."""
        self._plans[number] = planned = self._make(random.Random(f"{self._seed}/{number}"), number)
        received = await asyncio.wrap_future(threads.submit(self._client, number, address, tls))
        served = self._served.pop(number, None)
        return planned, received, (b"", "reset") if served is None else await asyncio.wrap_future(served)


def tls_contexts(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """For a server and for its clients. The certificate is its own CA, in `cert.pem` with `key.pem`."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "key.pem",
         "-out", "cert.pem", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    return server, ssl.create_default_context(cafile=str(folder / "cert.pem"))


def check_response(planned: Plan, received: Result, served: Result) -> None:
    assert received[0].partition(b"\r\n\r\n")[2] == planned.server.sends.partition(b"\r\n\r\n")[2]


def check_tunnel(planned: Plan, received: Result, served: Result) -> None:
    assert received == (planned.server.sends, "eof")
    assert served == (planned.client.sends, "eof")


def check_walk(planned: Plan, received: Result, served: Result) -> None:
    sent, got = planned.server.sends, received[0]
    if not planned.answer:  # the tap may change the head, or answer itself
        sent = sent.partition(b"\r\n\r\n")[2] if got.startswith(b"HTTP/1.1 200") else got
        got = got.partition(b"\r\n\r\n")[2] if got.startswith(b"HTTP/1.1 200") else got
    assert sent.startswith(got)
    assert planned.client.sends.startswith(served[0])


KINDS = {
    "responses": (response, check_response),
    "tunnels": (tunnel, check_tunnel),
    "walks": (walk, check_walk),
}


async def run(
    kind: str,
    seed: int,
    count: int,
    *,
    upstream_tls: bool,
    client_tls: bool = False,
    records: list[AnyRecord] | None = None,
    directly: bool = False,
    **options: Any,
) -> Counter[str]:
    """Carry out `count` plans of a kind and count how they ended. Raises AssertionError with the number of the first difference."""
    make, check = KINDS[kind]
    plans, seen = Run(make, seed), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        server_context, client_context = tls_contexts(Path(folder))
        pem = (
            {"tls_cert": Path(folder) / "cert.pem", "tls_key": Path(folder) / "key.pem"} if client_tls else {}
        )
        context = client_context if (upstream_tls if directly else client_tls) else None
        scheme = "https" if upstream_tls else "http"
        with peers.server(plans.serve, server_context if upstream_tls else None) as (port, threads):
            async with running_tap.running_tap(
                None,
                upstreams=[f"{scheme}://localhost:{port}"],
                upstream_ca=Path(folder) / "cert.pem",
                **pem,
                **options,
            ) as tap:

                async def lane(first: int) -> None:
                    for number in range(first, count, AT_ONCE):
                        address = ("127.0.0.1", port) if directly else tap.worker.address
                        planned, received, served = await plans.one(number, address, context, threads)
                        try:
                            check(planned, received, served)
                        except AssertionError as e:
                            sizes = [
                                len(received[0]),
                                len(planned.server.sends),
                                len(served[0]),
                                len(planned.client.sends),
                            ]
                            raise AssertionError(
                                f"{kind} {seed}/{number}: {sizes} {received[1]} {served[1]}"
                            ) from e
                        seen["bytes"] += len(received[0]) + len(served[0])

                await asyncio.gather(*(lane(first) for first in range(min(AT_ONCE, count))))
                await nothing_is_left(tap)
                if records is not None:
                    records += tap.log.records
                seen.update(r.cause for r in tap.log.records if isinstance(r, Closed))
    return seen


async def nothing_is_left(tap: RunningTap) -> None:
    """Wait until every connection and exchange of the tap has ended and is recorded."""
    context = tap.worker.context
    await tap.wait_until(lambda: not context.exchanges and not context.clients)
    assert not tap.worker.hangups._callbacks
    assert not context.guards.failures().get("ends of client connections")
    opened = tap.worker.recording.counters.streams_opened
    await tap.wait_until(lambda: sum(isinstance(r, Closed) for r in tap.log.records) == opened)


def main() -> int:
    kind, count = sys.argv[1], int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    flags = sys.argv[4:]  # upstream_tls, client_tls, directly
    started_s = time.monotonic()
    options: dict[str, Any] = {"upstream_tls": "upstream_tls" in flags}
    options |= {name: True for name in flags if name != "upstream_tls"}
    total = uvloop.run(run(kind, seed, count, **options))
    print(f"{count} {kind} {flags} in {time.monotonic() - started_s:.0f} s: {dict(total)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
