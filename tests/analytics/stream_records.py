"""Records as a tap writes them: OpenAI chat streams, incarnations, `Alive` records, and a store with crashes."""

import json
import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.storage.websocket_states import WebSocketStates
from streamgauge.ingest.records import Alive, AnyRecord, Closed, Frames, Opened, Request, ResponseHeaders

SECOND_NS = 1_000_000_000
START_NS = 1_800_000_000 * SECOND_NS


def stream_id(number: int, wall_ns: int = START_NS) -> str:
    """A deterministic UUIDv7."""
    ms = wall_ns // 1_000_000
    return str(uuid.UUID(int=(ms << 80) | (0x7 << 76) | (0b10 << 62) | number))


def chunk(text: str | None = None, **members: Any) -> bytes:
    """One SSE event of a chat completion."""
    delta = {} if text is None else {"content": text}
    value = {
        "id": "c1",
        "object": "chat.completion.chunk",
        "model": "m-1",
        "choices": [{"index": 0, "delta": delta}],
    }
    return b"data: " + json.dumps(value | members).encode() + b"\n\n"


def finish_chunk(reason: str = "stop") -> bytes:
    return chunk(choices=[{"index": 0, "delta": {}, "finish_reason": reason}])


def opened(
    stream: str,
    *,
    incarnation: str = "i1",
    tap: str = "tap",
    worker: int = 0,
    wall_ns: int = START_NS,
    **more: Any,
) -> Opened:
    return Opened(
        **{
            "stream": stream,
            "seq": 0,
            "tap": tap,
            "tap_worker": worker,
            "incarnation": incarnation,
            "gateway": "gw",
            "server_address": "127.0.0.1",
            "server_port": 8000,
            "method": "POST",
            "path": "/v1/chat/completions",
            "wall_ns": wall_ns,
            "mono_ns": 5,
            "client_start_ns": -100,
            "trace_id": "0" * 31 + "1",
            "span_id": "0" * 15 + "2",
            "parent_span_id": None,
            "trace_flags": 1,
            "client_id": "abc",
            "headers": [("x-request-id", "r1")],
            **more,
        }
    )


def head(status: int = 200, content_type: str = "text/event-stream") -> ResponseHeaders:
    return ResponseHeaders(status, [("content-type", content_type)], 50)


def closed(
    stream: str,
    seq: int,
    *,
    cause: Any = "complete",
    end_ns: int = 10_000,
    response_bytes: int = 0,
    **more: Any,
) -> Closed:
    return Closed(
        **{
            "stream": stream,
            "seq": seq,
            "cause": cause,
            "detail": None,
            "end_ns": end_ns,
            "connected_ns": 10,
            "request_sent_ns": 20,
            "request_bytes": 30,
            "response_bytes": response_bytes,
            "delivered_bytes": response_bytes,
            "client_drain_ns": end_ns,
            **more,
        }
    )


def alive(
    mono_s: float,
    *,
    incarnation: str = "i1",
    tap: str = "tap",
    worker: int = 0,
    started_wall_ns: int = START_NS,
    **more: Any,
) -> Alive:
    return Alive(
        tap,
        worker,
        incarnation,
        START_NS + int(mono_s * SECOND_NS),
        int(mono_s * SECOND_NS),
        started_wall_ns,
        **more,
    )


def whole_stream(
    stream: str, *, outputs: int = 3, per_record: int = 1, wall_ns: int = START_NS, incarnation: str = "i1"
) -> list[AnyRecord]:
    """All records of a stream that ends `ok`."""
    reads = [(100 + 10_000_000 * i, chunk(f"w{i} ")) for i in range(outputs)]
    reads.append((100 + 10_000_000 * outputs, finish_chunk()))
    reads.append((200 + 10_000_000 * outputs, b"data: [DONE]\n\n"))
    records: list[AnyRecord] = [
        opened(stream, wall_ns=wall_ns, incarnation=incarnation),
        Request(stream, 1, b'{"model":"m","stream":true}', False),
    ]
    for i in range(0, len(reads), per_record):
        records.append(Frames(stream, len(records), reads[i : i + per_record], head() if i == 0 else None))
    size = sum(len(data) for _, data in reads)
    records.append(closed(stream, len(records), end_ns=300 + 10_000_000 * outputs, response_bytes=size))
    return records


NEED_TEXT = ("output_fingerprint", "tool_fingerprint", "malformed_tool_call_count")
"""The columns of `streams` that redacted records do not have. Those of text itself are empty unless content is captured."""


def rows_of(assembler: Assembler) -> list[dict[str, Any]]:
    """`stream_rows` of the finished streams."""
    return stream_rows(assembler.take_finished())


def stream_rows(finished: Sequence[FinishedStream]) -> list[dict[str, Any]]:
    """Rows of `streams` without what differs after a restart, because records that commits keep have no text."""
    return measure(finished)["streams"].drop(NEED_TEXT).to_dicts()


@dataclass
class CrashingStore:
    """A store and a consumer that crashes at random. A restart has only the committed state."""

    entries: dict[str, list[list[AnyRecord]]]
    options: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    losses: list[dict[str, Any]] = field(default_factory=list)
    positions: dict[str, LogPosition] = field(default_factory=dict)
    kept: dict[tuple[str, str], list[bytes]] = field(default_factory=dict)
    folder: Path | None = None
    """Of the states of WebSockets."""
    states: WebSocketStates | None = None
    was_open: set[str] = field(default_factory=set)
    """Streams that a commit had as open."""
    replayed_entries: int = 0
    kept_count: int = 0

    def start(self) -> Assembler:
        """Restart as described in `streamgauge.analytics.assembly.assembler`."""
        states = self.states = None if self.folder is None else WebSocketStates(self.folder)
        assembler = Assembler(**self.options, store_websockets=states is not None)
        for partition, position in self.positions.items():
            assembler.resume(partition, position.open_stream_ids)
            for (of, stream), payloads in self.kept.items():
                if of == partition:
                    state = None if states is None else states.load(stream, payloads[-1])
                    assembler.restore(partition, stream, payloads, state)
            for offset in range(position.low, position.high):
                assembler.feed(partition, offset, self.entries[partition][offset])
                self.replayed_entries += 1
            assembler.end_replay(partition)
        assembler.recall(row["stream_id"] for row in self.rows)
        return assembler

    def commit(
        self, assembler: Assembler, read: dict[str, int], killed: Literal["before", "after"] | None = None
    ) -> None:
        """One transaction, before or after which the process is perhaps killed."""
        finished, losses = assembler.take_finished(), assembler.take_losses().to_dicts()
        checkpoints = assembler.checkpoint_records()
        for checkpoint in checkpoints:
            if checkpoint.state is not None:
                assert self.states is not None
                assert self.states.save(checkpoint.stream_id, checkpoint.payload, checkpoint.state)
        if killed == "before":
            return
        self.rows += stream_rows(finished)
        self.losses += losses
        for checkpoint in checkpoints:
            self.kept.setdefault((checkpoint.partition, checkpoint.stream_id), []).append(checkpoint.payload)
            self.kept_count += 1
        for stream in finished:
            self.kept.pop((stream.partition, stream.stream_id), None)
        for partition, high in read.items():
            self.positions[partition] = position = assembler.position(partition, high)
            self.was_open.update(position.open_stream_ids)
        if killed is None and self.states is not None:
            self.states.committed([stream.stream_id for stream in finished])

    def run(self, rng: random.Random, *, crash: float, commit: float) -> None:
        """Read all entries with random crashes and commits."""
        assembler, read = self.start(), self._read()
        while any(read[p] < len(self.entries[p]) for p in self.entries):
            partition = rng.choice([p for p in self.entries if read[p] < len(self.entries[p])])
            assembler.feed(partition, read[partition], self.entries[partition][read[partition]])
            read[partition] += 1
            chance = rng.random()
            if chance < crash:
                if rng.random() < 0.5:
                    self.commit(assembler, read, rng.choice(["before", "after"]))
                assembler, read = self.start(), self._read()
            elif chance < crash + commit:
                self.commit(assembler, read)
        self.commit(assembler, read)

    def _read(self) -> dict[str, int]:
        return {p: self.positions[p].high if p in self.positions else 0 for p in self.entries}


def interleave(
    rng: random.Random, sequences: Sequence[Sequence[AnyRecord]], *, width: int = 6
) -> list[AnyRecord]:
    """Interleave sequences, each in its order, about `width` at a time."""
    waiting = [list(s) for s in sequences]
    running: list[list[AnyRecord]] = []
    order: list[AnyRecord] = []
    while waiting or running:
        while waiting and len(running) < width:
            running.append(waiting.pop(0))
        turn = rng.choice(running)
        order.append(turn.pop(0))
        running = [s for s in running if s]
    return order


def with_rewinds(rng: random.Random, order: list[AnyRecord], *, chance: float) -> list[AnyRecord]:
    """Repeat the last records now and then, as a producer does after a crash."""
    written: list[AnyRecord] = []
    i = 0
    while i < len(order):
        written.append(order[i])
        i += 1
        if rng.random() < chance:
            i = max(0, i - rng.randrange(1, 12))
    return written


def in_entries(rng: random.Random, records: list[AnyRecord], *, most: int = 5) -> list[list[AnyRecord]]:
    """Split into entries of random size."""
    entries = []
    while records:
        size = rng.randrange(1, most + 1)
        entries.append(records[:size])
        records = records[size:]
    return entries
