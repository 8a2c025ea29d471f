"""Events per second on one core: SSE and dialect alone, and with assembling and measuring, for each dialect.

Streams of 400 output events; each figure is the median of 5 runs in CPU time of this one process, after a warm-up. `decode`
is `StreamDecoder` from bytes to event columns, its text not kept; `measured` goes the way of `analyze`: records in, rows of
all tables out (one frame of polars for 50 streams). Both with one event a read, as honest streams arrive, unless
--events-per-read says otherwise.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
import uuid
from collections.abc import Callable
from functools import partial

from analytics.assemble import Assembler
from analytics.decode import StreamDecoder
from analytics.dialects import all_dialects
from analytics.dialects.shape import Exchange
from analytics.measure import measure
from bench._streams import WORKLOADS, Workload, reads_of
from ingest.records import AnyRecord, Closed, Frames, Opened, ResponseHead

EVENTS_PER_STREAM = 400
READS_PER_RECORD = 40
STREAMS_PER_BATCH = 50
GAP_NS = 12_000_000
RUNS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench decode", description=__doc__)
    parser.add_argument("--events", type=int, default=60_000, help="events of a run")
    parser.add_argument("--events-per-read", type=int, default=1)
    parser.add_argument("--only", help="dialects or workloads whose name holds this")
    arguments = parser.parse_args()
    missing = {d.name for d in all_dialects()} - {w.dialect for w in WORKLOADS}
    if missing:
        print(f"no workload for {', '.join(sorted(missing))}: bench/_streams.py")
    print(f"{'':<30} {'bytes/event':>11} {'decode ev/s':>12} {'measured ev/s':>14}")
    for workload in WORKLOADS:
        if arguments.only and arguments.only not in workload.name:
            continue
        streams = max(1, arguments.events // EVENTS_PER_STREAM)
        bodies = [
            reads_of(workload, EVENTS_PER_STREAM, arguments.events_per_read) for _ in range(min(streams, 20))
        ]
        _check(workload, bodies[0])
        events = sum(_event_count(workload, body) for body in bodies) / len(bodies) * streams
        size = sum(map(len, bodies[0])) / _event_count(workload, bodies[0])
        decoded = _median(partial(_decode, workload, bodies, streams))
        measured = _median(partial(_measure, workload, bodies, streams))
        print(
            f"{workload.name:<30} {size:>11.0f} {events / decoded:>12,.0f} {events / measured:>14,.0f}",
            flush=True,
        )
    return 0 if not missing else 1


def _median(run: Callable[[], float]) -> float:
    times = []
    for number in range(RUNS + 1):
        times.append(run())
        gc.unfreeze()
        if number == 0:
            times.clear()  # a warm-up
    return statistics.median(times)


def _frames(body: list[bytes]) -> list[tuple[int, bytes]]:
    return [(n * GAP_NS, data) for n, data in enumerate(body)]


def _exchange(workload: Workload) -> Exchange:
    return Exchange(path=workload.path, content_type=workload.content_type)


def _event_count(workload: Workload, body: list[bytes]) -> int:
    decoder = StreamDecoder(_exchange(workload))
    decoder.feed(_frames(body))
    return decoder.event_count


def _check(workload: Workload, body: list[bytes]) -> None:
    """What is timed must be what it says it is."""
    decoder = StreamDecoder(_exchange(workload))
    decoder.feed(_frames(body))
    decoder.finish()
    outputs = decoder.output_event_count
    if decoder.dialect != workload.dialect or (outputs < EVENTS_PER_STREAM and workload.dialect != "unknown"):
        raise ValueError(f"{workload.name}: read as {decoder.dialect} with {outputs} output events")


def _decode(workload: Workload, bodies: list[list[bytes]], streams: int) -> float:
    exchange = _exchange(workload)
    frames = [_frames(body) for body in bodies]
    batches = [[f[at : at + READS_PER_RECORD] for at in range(0, len(f), READS_PER_RECORD)] for f in frames]
    gc.collect()
    gc.freeze()  # what the bench itself holds is not what is timed
    start_s = time.process_time()
    for number in range(streams):
        decoder = StreamDecoder(exchange)
        for batch in batches[number % len(batches)]:
            decoder.feed(batch)
        decoder.finish()
    return time.process_time() - start_s


def _records(workload: Workload, body: list[bytes]) -> list[AnyRecord]:
    stream = str(uuid.uuid4())
    frames = _frames(body)
    end_ns = frames[-1][0]
    records: list[AnyRecord] = [
        Opened(
            stream=stream, seq=0, tap="bench", tap_worker=0, incarnation="i", gateway="g", server_address="127.0.0.1",
            server_port=80, method="POST", path=workload.path, wall_ns=1_800_000_000_000_000_000, mono_ns=0,
            client_start_ns=0, trace_id="0" * 32, span_id="0" * 16, parent_span_id=None, trace_flags=0,
            client_id=None, headers=[],
        )
    ]  # fmt: skip
    head = ResponseHead(200, [("content-type", workload.content_type)], 0)
    for at in range(0, len(frames), READS_PER_RECORD):
        records.append(Frames(stream, len(records), frames[at : at + READS_PER_RECORD], None if at else head))
    size = sum(map(len, body))
    records.append(
        Closed(
            stream=stream, seq=len(records), cause="complete", detail=None, end_ns=end_ns, connected_ns=0,
            request_sent_ns=0, request_bytes=0, response_bytes=size, delivered_bytes=size, client_drain_ns=end_ns,
        )
    )  # fmt: skip
    return records


def _measure(workload: Workload, bodies: list[list[bytes]], streams: int) -> float:
    records = [_records(workload, bodies[number % len(bodies)]) for number in range(streams)]
    assembler = Assembler()
    gc.collect()
    gc.freeze()  # what the bench itself holds is not what is timed
    start_s = time.process_time()
    offset = 0
    for at in range(0, streams, STREAMS_PER_BATCH):
        for one in records[at : at + STREAMS_PER_BATCH]:
            for record in one:
                assembler.feed("p", offset, [record])
                offset += 1
        rows = measure(assembler.take_finished())
        if not len(rows["streams"]):
            raise ValueError("nothing was measured")
    return time.process_time() - start_s
