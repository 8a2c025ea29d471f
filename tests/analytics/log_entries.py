"""Synthetic log entries: chat streams split into entries of several streams, and an in-memory log."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

from streamgauge.ingest.record_log.interface import Entry, UnreadableRange
from streamgauge.ingest.records import (
    Alive,
    AnyRecord,
    Closed,
    Frames,
    Opened,
    Request,
    ResponseHeaders,
    pack,
)

MS = 1_000_000
T0_WALL_NS = 1_790_000_000_000 * MS
INCARNATION = "0198b2d0-0000-7000-8000-000000000001"


def stream_id(number: int, wall_ms: int = T0_WALL_NS // MS) -> str:
    """The `number`th id of a UUIDv7 sequence with one id per millisecond."""
    return str(uuid.UUID(int=((wall_ms + number) << 80) | (7 << 76) | (2 << 62) | number))


def chunk(text: str, model: str = "gpt-test") -> bytes:
    delta = {"id": "c1", "object": "chat.completion.chunk", "model": model}
    return (
        b"data: "
        + json.dumps({**delta, "choices": [{"index": 0, "delta": {"content": text}}]}).encode()
        + b"\n\n"
    )


def ending(model: str = "gpt-test", tokens: int = 10) -> bytes:
    base = {"id": "c1", "object": "chat.completion.chunk", "model": model}
    finish = {**base, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    usage = {
        **base,
        "choices": [],
        "usage": {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens},
    }
    return (
        b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in (finish, usage))
        + b"data: [DONE]\n\n"
    )


def opened(number: int, *, gateway: str = "gw", incarnation: str = INCARNATION, worker: int = 0) -> Opened:
    wall_ns = T0_WALL_NS + number * MS
    return Opened(
        stream=stream_id(number), seq=0, tap="tap-1", tap_worker=worker, incarnation=incarnation, gateway=gateway,
        server_address="127.0.0.1", server_port=8000, method="POST", path="/v1/chat/completions", wall_ns=wall_ns,
        mono_ns=number * MS, client_start_ns=-1000, trace_id=f"{number:032x}", span_id=f"{number:016x}",
        parent_span_id=None, trace_flags=1, client_id=None, headers=[("content-type", "application/json")],
    )  # fmt: skip


def stream(
    number: int, *, chunks: int = 10, per_record: int = 5, gap_ns: int = 20 * MS, **opened_fields: object
) -> list[AnyRecord]:
    """All records of one stream: `chunks` output events, finish, usage and [DONE]."""
    sid = stream_id(number)
    head = ResponseHeaders(200, [("content-type", "text/event-stream")], 100 * MS)
    records: list[AnyRecord] = [opened(number, **opened_fields)]  # type: ignore[arg-type]
    records.append(Request(sid, 1, b'{"model":"gpt-test","stream":true,"messages":[]}', False))
    frames = [(200 * MS + i * gap_ns, chunk(f"word{i} ")) for i in range(chunks)]
    frames.append((200 * MS + chunks * gap_ns, ending(tokens=chunks)))
    for start in range(0, len(frames), per_record):
        records.append(
            Frames(sid, len(records), frames[start : start + per_record], head if len(records) == 2 else None)
        )
    size = sum(len(data) for _, data in frames)
    records.append(
        Closed(
            stream=sid,
            seq=len(records),
            cause="complete",
            detail=None,
            end_ns=frames[-1][0] + MS,
            connected_ns=MS,
            request_sent_ns=2 * MS,
            request_bytes=50,
            response_bytes=size,
            delivered_bytes=size,
            client_drain_ns=frames[-1][0],
        )
    )
    return records


def alive(
    at_ms: int, *, incarnation: str = INCARNATION, worker: int = 0, stopping: bool = False, **counters: int
) -> Alive:
    return Alive(
        tap="tap-1", tap_worker=worker, incarnation=incarnation, wall_ns=T0_WALL_NS + at_ms * MS, mono_ns=at_ms * MS,
        started_wall_ns=T0_WALL_NS - 1000 * MS, stopping=stopping, counters=counters,
    )  # fmt: skip


def entries(numbers: range, *, width: int = 8, compress: bool = True, **kind: object) -> Iterator[bytes]:
    """Entries with one record each of `width` concurrent streams."""
    ids = list(numbers)
    for first in range(0, len(ids), width):
        lanes = [stream(number, **kind) for number in ids[first : first + width]]  # type: ignore[arg-type]
        for round_of in range(max(len(lane) for lane in lanes)):
            yield pack([lane[round_of] for lane in lanes if round_of < len(lane)], compress=compress)


@dataclass
class MemoryLog:
    """A `LogReader` over lists: partition → payloads. The offset is the index."""

    partitions_: dict[str, list[bytes]] = field(default_factory=dict)
    log_id: str = "memory"
    released: dict[str, int] = field(default_factory=dict)
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    closed: bool = False
    damage: list[UnreadableRange] = field(default_factory=list)
    """Returned by the next `take_unreadable`."""
    batch: int | None = None
    """Entries of each partition that a poll returns. None: all."""

    def __post_init__(self) -> None:
        self._at: dict[str, int] = {}

    def partitions(self) -> list[str]:
        return list(self.partitions_)

    def seek(self, partition: str, offset: int) -> None:
        self._at[partition] = offset

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        found = []
        for partition, payloads in self.partitions_.items():
            at = self._at.get(partition, 0)
            end = len(payloads) if self.batch is None else min(len(payloads), at + self.batch)
            found += [Entry(partition, i, payloads[i]) for i in range(at, end)]
            self._at[partition] = end
        return found

    def range(self, partition: str, start: int, end: int) -> list[Entry]:
        self.ranges.append((partition, start, end))
        payloads = self.partitions_[partition]
        return [Entry(partition, i, payloads[i]) for i in range(start, min(end, len(payloads)))]

    def end(self, partition: str) -> int:
        return len(self.partitions_[partition])

    def release(self, partition: str, offset: int) -> None:
        self.released[partition] = max(offset, self.released.get(partition, 0))

    def take_unreadable(self) -> list[UnreadableRange]:
        found, self.damage = self.damage, []
        return found

    def close(self) -> None:
        self.closed = True
