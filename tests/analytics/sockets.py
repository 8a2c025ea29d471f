"""WebSocket connections as a tap records them: messages, framed, fragmented, masked, compressed and cut at random."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, Literal

from wsproto.extensions import PerMessageDeflate
from wsproto.frame_protocol import FrameProtocol

from streamgauge.ingest.records import AnyRecord, Frames, ResponseHeaders
from tests.analytics.stream_records import closed, opened, stream_id

SOCKET = stream_id(1)
MS = 1_000_000
Side = Literal["client", "server"]
Sent = tuple[int, Side, bytes]
"""(time in ms since t0, sender, payload)."""
COMPRESSIONS = (
    None,
    "permessage-deflate",
    "permessage-deflate; client_no_context_takeover",
    "permessage-deflate; server_no_context_takeover; client_max_window_bits=10",
    "permessage-deflate; client_no_context_takeover; server_no_context_takeover",
)


TOOL = {"type": "function", "name": "shell"}


def create(model: str = "m", **more: Any) -> bytes:
    """A client's message that begins an answer."""
    return json.dumps(
        {"type": "response.create", "model": model, "input": "hello", "tools": [TOOL], **more}
    ).encode()


def events(
    response_id: str, texts: Sequence[str], *, stream_id: str | None = None, end: str = "completed"
) -> list[bytes]:
    """A server's events of one answer. `end` "": it does not end."""
    key = {} if stream_id is None else {"stream_id": stream_id}
    response: dict[str, Any] = {
        "id": response_id,
        "object": "response",
        "model": "m-1",
        "status": "in_progress",
    }
    found: list[dict[str, Any]] = [{"type": "response.created", "response": response}]
    found += [
        {
            "type": "response.output_text.delta",
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": text,
        }
        for text in texts
    ]
    if end:
        usage = {"input_tokens": 5, "output_tokens": len(texts), "total_tokens": 5 + len(texts)}
        found.append({"type": f"response.{end}", "response": response | {"status": end, "usage": usage}})
    return [json.dumps(event | key).encode() for event in found]


class Framer:
    """Frames the messages of one side."""

    def __init__(self, side: Side, compression: str | None, rng: random.Random | None = None) -> None:
        extensions = []
        if compression is not None:
            extensions.append(PerMessageDeflate())
            extensions[0].finalize(compression)
            extensions[0]._enabled = True
        self._protocol = FrameProtocol(client=side == "client", extensions=list(extensions))
        self._rng = rng

    def frames(self, payload: bytes) -> list[bytes]:
        """The frames of one message, with pings between them."""
        rng, protocol = self._rng, self._protocol
        text: str | bytes = payload.decode()
        if rng is None:
            return [protocol.send_data(text, fin=True)]
        text = payload if rng.random() < 0.2 else text
        found = []
        while True:
            size = rng.choice([0, 1, 7, 200, 10_000])
            part, text = text[:size], text[size:]
            found.append(protocol.send_data(part, fin=not text))
            if not text:
                return found
            if rng.random() < 0.3:
                found.append(protocol.ping(b"p") if rng.random() < 0.5 else protocol.pong(b"q"))

    def close(self) -> bytes:
        return self._protocol.close(1000)


def recorded(
    messages: Sequence[Sent],
    *,
    compression: str | None = None,
    rng: random.Random | None = None,
    path: str = "/v1/responses",
    end: tuple[int, str] = (1_000_000, "client_left"),
    close_by: Side | None = None,
    stream: str = SOCKET,
    reads_per_record: int = 1,
    request_headers: Sequence[tuple[str, str]] = (),
    user_agent: str = "codex/1",
    **more: Any,
) -> list[AnyRecord]:
    """The records of one connection, without `rng` a record for each frame. `end`: time in ms and cause."""
    framers = {side: Framer(side, compression, rng) for side in ("client", "server")}
    reads: list[tuple[int, Side, bytes]] = []
    for at, side, payload in messages:
        data = b"".join(framers[side].frames(payload))
        # Only the last read of a message may be at its time: the parts before it are earlier.
        pieces = _cut(data, rng)
        first = reads[-1][0] if reads else 0
        reads += [(max(first, at * MS - len(pieces) + i), side, piece) for i, piece in enumerate(pieces[:-1])]
        reads.append((at * MS, side, pieces[-1]))
    if close_by is not None:
        reads.append((end[0] * MS, close_by, framers[close_by].close()))
    headers = [] if compression is None else [("sec-websocket-extensions", compression)]
    head = ResponseHeaders(101, [("server", "s"), *headers], 50)
    records: list[AnyRecord] = [
        opened(
            stream, path=path, method="GET",
            headers=[("upgrade", "websocket"), ("user-agent", user_agent), *request_headers], **more,
        )
    ]  # fmt: skip
    at = 0
    while at < len(reads) or len(records) < 2:
        count = reads_per_record if rng is None else rng.choice([0, 1, 2, 5, 40])
        part = reads[at : at + count]
        at += count
        frames = [(at_ns, data) for at_ns, _, data in part]
        from_client = [i for i, (_, side, _) in enumerate(part) if side == "client"]
        response = head if len(records) == 1 else None
        records.append(Frames(stream, len(records), frames, response, from_client=from_client))
    sizes = {side: sum(len(data) for _, s, data in reads if s == side) for side in ("client", "server")}
    records.append(
        closed(
            stream, len(records), cause=end[1], end_ns=end[0] * MS, tunnel=True, request_bytes=sizes["client"],
            response_bytes=sizes["server"],
        )
    )  # fmt: skip
    return records


def _cut(data: bytes, rng: random.Random | None) -> list[bytes]:
    if rng is None:
        return [data]
    pieces = []
    while data:
        size = rng.choice([1, 3, 50, 1000, 65_536])
        pieces.append(data[:size])
        data = data[size:]
    return pieces
