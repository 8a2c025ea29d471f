"""Write streams to an embedded log in real time, as a tap does. Arguments: DATA RATE SECONDS START_NS.

Stream n starts at START_NS (CLOCK_MONOTONIC) + n x 100 / RATE s and lasts two seconds with an event every 20 ms. As in the tap,
every 30 ms one entry is appended with frames older than 65 ms and with ended streams. Events are generated in advance to save
CPU time. A late tick appends what is due without changing arrival times, so its delay counts as a delay.
"""

from __future__ import annotations

import sys
import time
import uuid
from bisect import bisect_right
from collections import deque
from pathlib import Path

from bench.analytics.workload import EVENTS_A_STREAM, at_ns, chunks, model
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
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

TICK_S = 0.03
WAIT_NS = 65_000_000
ALIVE_S = 2.0
KINDS = 60
"""Streams with generated events, a multiple of the number of models."""
OFFSETS_NS = [at_ns(event, 0) for event in range(EVENTS_A_STREAM)]
LAST_NS = OFFSETS_NS[-1]
"""Time from a stream's start to its last byte."""
_INCARNATION = "01a0c450-6c00-7000-8000-000000000000"
_HEAD = ResponseHeaders(200, [("content-type", "text/event-stream")], OFFSETS_NS[0] - 1)


def stream_id(number: int, wall_ns: int) -> str:
    return str(uuid.UUID(int=((wall_ns // 1_000_000) << 80) | (7 << 76) | (2 << 62) | number))


def number_of(sid: str) -> int:
    """The number in a `stream_id`."""
    return uuid.UUID(sid).int & (2**62 - 1)


def spacing_ns(rate: float) -> float:
    """Time between the starts of two streams at `rate` events per second."""
    return EVENTS_A_STREAM / rate * 1e9


class _Stream:
    """A stream in flight."""

    __slots__ = ("began_ns", "frames", "sent", "seq", "sid")

    def __init__(self, number: int, began_ns: int, frames: list[tuple[int, bytes]]) -> None:
        self.began_ns, self.frames = began_ns, frames
        self.seq, self.sent = 2, 0
        self.sid = stream_id(number, began_ns + time.time_ns() - time.monotonic_ns())

    def opening(self, number: int) -> list[AnyRecord]:
        wall_ns = self.began_ns + time.time_ns() - time.monotonic_ns()
        hexadecimal = self.sid.replace("-", "")
        return [
            Opened(
                self.sid, 0, "bench", 0, _INCARNATION, f"gw-{number % 2}", "127.0.0.1", 80, "POST", "/v1/chat/completions",
                wall_ns, self.began_ns, 0, hexadecimal, hexadecimal[16:], None, 1, None, [],
            ),
            Request(self.sid, 1, b'{"model":"%b","stream":true}' % model(number).encode(), False),
        ]  # fmt: skip

    def due(self, now_ns: int) -> AnyRecord | None:
        """A record of the arrived frames, if the first has waited long enough or the last has arrived."""
        past_ns = now_ns - self.began_ns
        upto = bisect_right(OFFSETS_NS, past_ns)
        if upto == self.sent or (upto < EVENTS_A_STREAM and past_ns - OFFSETS_NS[self.sent] < WAIT_NS):
            return None
        record = Frames(self.sid, self.seq, self.frames[self.sent : upto], _HEAD if self.sent == 0 else None)
        self.seq, self.sent = self.seq + 1, upto
        return record

    def closing(self) -> AnyRecord:
        size = sum(len(data) for _, data in self.frames)
        return Closed(
            self.sid, self.seq, "complete", None, LAST_NS + 1000, 0, 0, 60, size, size, LAST_NS + 1000
        )


def play(folder: Path, rate: float, seconds: float, start_ns: int) -> None:
    """Write all streams that start within `seconds`."""
    made = [
        [
            (offset_ns, b"data: " + data + b"\n\n")
            for offset_ns, data in zip(OFFSETS_NS, (*chunks(n), b"[DONE]"), strict=True)
        ]
        for n in range(KINDS)
    ]
    between_ns = spacing_ns(rate)
    streams = int(seconds * 1e9 / between_ns)
    running: deque[_Stream] = deque()
    begun, reported_s = 0, float("-inf")
    with EmbeddedWriter(folder, "w0", cap_bytes=8 * 2**30) as writer:
        while begun < streams or running:
            now_ns = time.monotonic_ns()
            batch: list[AnyRecord] = []
            while begun < streams and start_ns + begun * between_ns <= now_ns:
                running.append(_Stream(begun, int(start_ns + begun * between_ns), made[begun % KINDS]))
                batch += running[-1].opening(begun)
                begun += 1
            for stream in running:
                record = stream.due(now_ns)
                if record is not None:
                    batch.append(record)
            while running and running[0].sent == EVENTS_A_STREAM:
                batch.append(running.popleft().closing())
            if time.monotonic() - reported_s >= ALIVE_S:
                reported_s = time.monotonic()
                batch.append(Alive("bench", 0, _INCARNATION, time.time_ns(), now_ns, time.time_ns()))
            if batch:
                writer.append([pack(batch, compress=True)])
            time.sleep(max(0.0, TICK_S - (time.monotonic_ns() - now_ns) / 1e9))


if __name__ == "__main__":
    play(Path(sys.argv[1]) / "log", float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]))
