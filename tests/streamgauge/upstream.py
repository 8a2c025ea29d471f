"""An upstream that answers each request at once, with a stream of three events or with a JSON response."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_EVENTS = b"".join(
    b"data: %s\n\n"
    % json.dumps(
        {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": d, "finish_reason": f}]}
    ).encode()
    for d, f in (({"content": "x"}, None), ({"content": "y"}, None), ({}, "stop"))
)
STREAM = _EVENTS + b"data: [DONE]\n\n"
JSON = json.dumps(
    {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": "stop"}],
    }
).encode()


class _Upstream(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body_bytes = int(self.headers["Content-Length"])
        given = self.rfile.read(body_bytes)
        if len(given) < body_bytes:  # the connection broke
            self.close_connection = True
            return
        request = json.loads(given)
        kind, body = ("text/event-stream", STREAM) if request["stream"] else ("application/json", JSON)
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if request.get("chunked"):  # an event in each chunk, and the tap's relay forwards them
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            for part in body.splitlines(keepends=True):
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.write(b"0\r\n\r\n")
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def upstream() -> Iterator[str]:
    """A server that answers with `STREAM` or `JSON`."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Upstream) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()
