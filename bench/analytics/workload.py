"""The streams for all contenders: chat chunks of about 220 bytes, 100 events per stream, many concurrent streams.

As log entries they match a tap's: every 100 ms one compressed entry with five frames of each stream. As messages they match a
program without a record log: one JSON chunk per message, keyed by stream.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator

from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, Request, ResponseHeaders, pack

EVENTS_A_STREAM = 100
CONCURRENT_STREAMS = 50
FRAMES_A_RECORD = 5
GAP_NS = 20_000_000
FIRST_NS = 250_000_000
MODELS = 6
START_MS = int(time.time() * 1000) - 3_600_000
"""When the first stream starts."""


def stream_id(number: int) -> str:
    """A UUIDv7. Streams start one millisecond apart."""
    return str(uuid.UUID(int=((START_MS + number) << 80) | (7 << 76) | (2 << 62) | number))


def model(number: int) -> str:
    return f"model-{number % MODELS}"


def chunks(number: int) -> list[bytes]:
    """The data of one stream's events without the terminator: text, finish reason, usage."""
    base = {
        "id": f"chatcmpl-{number:020d}",
        "object": "chat.completion.chunk",
        "created": 1_790_000_000,
        "model": model(number),
    }

    def chunk(delta: dict[str, str], finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return json.dumps(
            {**base, "system_fingerprint": "fp_0123456789", "choices": [choice]}, separators=(",", ":")
        ).encode()

    before, _, after = chunk({"content": " word"}).partition(b" word")
    texts = [b"%b word%d%b" % (before, at, after) for at in range(EVENTS_A_STREAM - 3)]
    usage = {"prompt_tokens": 25, "completion_tokens": len(texts), "total_tokens": 25 + len(texts)}
    return [
        *texts,
        chunk({}, "stop"),
        json.dumps({**base, "choices": [], "usage": usage}, separators=(",", ":")).encode(),
    ]


def at_ns(event: int, number: int) -> int:
    """When the n-th event of a stream arrived."""
    return FIRST_NS + event * GAP_NS + (event * 7919 + number * 104729) % 9_000_000


def _records(number: int) -> list[AnyRecord]:
    sid = stream_id(number)
    body = [b"data: " + data + b"\n\n" for data in (*chunks(number), b"[DONE]")]
    frames = [(at_ns(event, number), data) for event, data in enumerate(body)]
    wall_ns = (START_MS + number) * 1_000_000
    head = ResponseHeaders(200, [("content-type", "text/event-stream")], FIRST_NS - 1)
    records: list[AnyRecord] = [
        Opened(
            stream=sid, seq=0, tap="bench", tap_worker=0, incarnation="i", gateway=f"gw-{number % 2}",
            server_address="127.0.0.1", server_port=80, method="POST", path="/v1/chat/completions", wall_ns=wall_ns,
            mono_ns=number * 1_000_000, client_start_ns=0, trace_id=f"{number:032x}", span_id=f"{number:016x}",
            parent_span_id=None, trace_flags=1, client_id=None, headers=[],
        ),
        Request(sid, 1, json.dumps({"model": model(number), "stream": True}).encode(), False),
    ]  # fmt: skip
    for at in range(0, len(frames), FRAMES_A_RECORD):
        records.append(Frames(sid, len(records), frames[at : at + FRAMES_A_RECORD], None if at else head))
    size, end_ns = sum(map(len, body)), frames[-1][0] + 1_000_000
    records.append(
        Closed(
            stream=sid, seq=len(records), cause="complete", detail=None, end_ns=end_ns, connected_ns=0, request_sent_ns=0,
            request_bytes=60, response_bytes=size, delivered_bytes=size, client_drain_ns=end_ns,
        )
    )  # fmt: skip
    return records


def entries(streams: int, first: int = 0) -> Iterator[bytes]:
    """The log entries of that many streams, numbered from `first`."""
    for at in range(first, first + streams, CONCURRENT_STREAMS):
        lanes = [_records(number) for number in range(at, min(at + CONCURRENT_STREAMS, first + streams))]
        for records in zip(*lanes, strict=True):
            yield pack(list(records), compress=True)


def messages(streams: int, events_a_message: int = 1) -> Iterator[tuple[str, bytes]]:
    """(stream id, JSON) of each message with `CONCURRENT_STREAMS` streams interleaved. Each chunk has its `at_ns`."""
    for first in range(0, streams, CONCURRENT_STREAMS):
        numbers = range(first, min(first + CONCURRENT_STREAMS, streams))
        lanes = {number: [*chunks(number), b"null"] for number in numbers}
        for at in range(0, EVENTS_A_STREAM, events_a_message):
            for number in numbers:
                parts = (
                    b'{"at_ns":%d,"data":%b}' % (at_ns(event, number), lanes[number][event])
                    for event in range(at, min(at + events_a_message, EVENTS_A_STREAM))
                )
                yield stream_id(number), b'{"events":[%b]}' % b",".join(parts)
