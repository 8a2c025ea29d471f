"""The telemetry of the command of `streamgauge run`: accepted at once, and forwarded when analytics has started.

An agent waits for its receiver when it exits, and analytics starts beside it. So the agent is answered before its events are stored:
they are lost if `run` is killed. Nothing is parsed here, and nothing is written.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from streamgauge.ingest.guards import Guards, guarded_thread
from streamgauge.ingest.listening import AllowedHosts, HostGate, bind, join_address

if TYPE_CHECKING:
    import uvicorn
    from starlette.requests import Request
    from starlette.responses import Response

MAX_BYTES = 16 * 2**20
"""Of the bodies that wait. Further ones get a 503."""
MAX_AT_ONCE = 8
FORWARD_WITHIN_S = 10.0
FINISH_WITHIN_S = 30.0
"""On a busy machine analytics may still be starting."""
POLL_S = 0.05
_HEADERS = ("content-type", "content-encoding")


class TelemetrySpool:
    """Listens from the start until `finish`. Each method may be called once."""

    def __init__(self, receiver: Callable[[], str | None]) -> None:
        """`receiver`: the URL of the OTLP receiver, None while it is not ready. Raises OSError if no port is free."""
        self._receiver = receiver
        self._waiting: deque[tuple[str, dict[str, str], bytes]] = deque()
        self._taken_bytes = self._sent_bytes = 0  # each of one thread
        self._refused = 0
        self._until_s = float("inf")
        self._socket = bind("127.0.0.1:0")
        self._socket.listen(128)  # what is sent before the server runs waits there
        self.url = f"http://{join_address(*self._socket.getsockname()[:2])}"
        self._server: uvicorn.Server | None = None
        self._closing, self._done = threading.Event(), threading.Event()
        guards = Guards()
        self._thread = guarded_thread(guards.guard("telemetry"), self._serve, self._closing)
        self._forwarder = guarded_thread(guards.guard("forwarding of telemetry"), self._forward, self._done)
        self._thread.start()
        self._forwarder.start()

    def finish(self) -> int:
        """Stop when everything is forwarded, at the latest after `FINISH_WITHIN_S`. Returns how many requests are lost."""
        self._closing.set()
        if self._server is not None:
            self._server.should_exit = True  # it answers what has arrived
        self._thread.join(FINISH_WITHIN_S)
        self._until_s = time.monotonic() + FINISH_WITHIN_S
        self._forwarder.join(2 * FINISH_WITHIN_S)
        self._socket.close()
        return len(self._waiting) + self._refused

    def _serve(self) -> None:
        import uvicorn  # here, because the command would wait for the import
        from starlette.applications import Starlette
        from starlette.middleware import Middleware
        from starlette.routing import Route

        app = Starlette(
            routes=[Route("/{path:path}", self._take, methods=["POST"])],
            middleware=[Middleware(HostGate, hosts=AllowedHosts())],
        )
        config = uvicorn.Config(
            app, log_config=None, access_log=False, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        self._server = server = uvicorn.Server(config)
        server.should_exit = self._closing.is_set()
        with self._socket.dup() as sock:
            server.run(sockets=[sock])

    async def _take(self, request: Request) -> Response:
        from starlette.requests import ClientDisconnect
        from starlette.responses import Response

        parts = []
        try:
            async for part in request.stream():
                parts.append(part)
                if self._taken_bytes - self._sent_bytes + sum(map(len, parts)) > MAX_BYTES:
                    return Response(status_code=503, headers={"Retry-After": "1"})
        except ClientDisconnect:
            return Response(status_code=400)
        headers = {name: value for name in _HEADERS if (value := request.headers.get(name)) is not None}
        body = b"".join(parts)
        self._taken_bytes += len(body)
        self._waiting.append((request.url.path, headers, body))
        is_json = headers.get("content-type", "").startswith("application/json")
        return Response(b"{}" if is_json else b"", media_type=headers.get("content-type"))

    def _forward(self) -> None:
        with ThreadPoolExecutor(MAX_AT_ONCE) as senders:
            while self._thread.is_alive() or self._waiting:
                url = self._receiver() if self._waiting else None
                batch = list(islice(self._waiting, MAX_AT_ONCE)) if url is not None else []
                done = list(senders.map(partial(self._send, str(url)), batch))
                for each, is_done in zip(batch, done, strict=True):
                    self._waiting.popleft()
                    if is_done:
                        self._sent_bytes += len(each[2])
                    else:
                        self._waiting.append(each)
                if not any(done):
                    if time.monotonic() > self._until_s:
                        break
                    time.sleep(POLL_S)
        self._done.set()

    def _send(self, url: str, request: tuple[str, dict[str, str], bytes]) -> bool:
        """False: send it again later. The receiver answers after its commit."""
        path, headers, body = request
        try:
            with closing(HTTPConnection(urlsplit(url).netloc, timeout=FORWARD_WITHIN_S)) as connection:
                connection.request("POST", path, body, headers)
                status = connection.getresponse().status
        except (OSError, HTTPException):
            return False
        if status not in (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE):
            self._refused += 1
        return status != HTTPStatus.SERVICE_UNAVAILABLE
