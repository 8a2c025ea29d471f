"""Fuzz the decoding of WebSockets: any bytes, and valid connections with bytes changed, removed and repeated.

`python -m tests.ingest.websockets.fuzz SECONDS [SEED]` runs for a time and prints a summary. What must hold for each connection is in
`one_connection`.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter

import msgspec

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import AnyRecord, Frames
from streamgauge.ingest.redaction.record_redactor import Redactor
from tests.analytics.sockets import COMPRESSIONS, Sent, create, events, recorded
from tests.analytics.test_live import SESSIONS


def one_connection(rng: random.Random) -> str:
    """Damage one connection and decode it. Returns what became of it."""
    sent = list[Sent]()
    at = 1
    for number in range(rng.randint(1, 4)):
        sent.append((at, "client", create(generate=bool(rng.randrange(3)))))
        texts = [chr(rng.randint(32, 0x2FFF)) * rng.choice([1, 50, 3000]) for _ in range(rng.randrange(6))]
        answer = events(f"r{number}", texts, end=rng.choice(["completed", "failed", ""]))
        sent += [(at + 1 + i, "server", event) for i, event in enumerate(answer)]
        at += 20
    path = rng.choice(["/v1/responses", "/x", "/v1/realtime", *SESSIONS])
    sent = [*SESSIONS.get(path, sent)]
    records = recorded(sent, compression=rng.choice(COMPRESSIONS), rng=rng, path=path)
    is_whole = rng.random() < 0.1
    if not is_whole:
        records = [_damaged(record, rng) if isinstance(record, Frames) else record for record in records]
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("w0", offset, [record])
    assert not assembler.take_failures()
    assert assembler.open_count == 0
    finished = assembler.take_finished()
    assert sum(stream.opened is not None and stream.opened.connection_id is None for stream in finished) == 1
    measure(finished)
    redactor = Redactor()
    shipped = redactor.redact(records)
    assert not len(redactor)
    assert not any(isinstance(record, Frames) and record.from_client is not None for record in shipped)
    faults = assembler.counters["undecodable_websockets"]
    assert redactor.counters["undecodable_websockets"] == faults
    assert not (is_whole and faults)
    return "undecodable" if faults else f"{min(len(finished) - 1, 3)} answers"


def _damaged(record: Frames, rng: random.Random) -> AnyRecord:
    frames = []
    for at_ns, data in record.frames:
        changed = bytearray(data)
        if changed and rng.random() < 0.05:
            place = rng.randrange(len(changed))
            kind = rng.randrange(4)
            if kind == 0:
                changed[place] = rng.randrange(256)
            elif kind == 1:
                del changed[place : place + rng.randint(1, 20)]
            elif kind == 2:
                changed[place:place] = rng.randbytes(rng.randint(1, 20))
            else:
                changed = bytearray(rng.randbytes(rng.randint(0, 200)))
        frames.append((at_ns, bytes(changed)))
    return msgspec.structs.replace(record, frames=frames)


def run(seconds: float, seed: int) -> Counter[str]:
    until, found = time.monotonic() + seconds, Counter[str]()
    while time.monotonic() < until:
        found[one_connection(random.Random(seed))] += 1
        seed += 1
    return found


if __name__ == "__main__":
    print(dict(run(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1)))
