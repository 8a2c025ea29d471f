"""Events per second on one core, for each dialect: decoding alone, with measuring, and from log records.

Each figure is the median of 5 runs after a warm-up, in CPU time of this process, with polars limited to one thread:

- `decode`: `StreamDecoder`, from the bytes of each read to event columns (content coding, SSE, dialect), without keeping text.
- `+ measure`: also `measure`, the rows of all tables as data frames, for 50 streams at a time. The target applies to this.
- `from records`: unpack log entries, assemble, decode and measure: everything but the store.

Each read holds one event unless --events-per-read is given; a record holds 40 reads.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import partial

os.environ.setdefault("POLARS_MAX_THREADS", "1")  # must be set before the import of polars

from bench._streams import RNG, WORKLOADS, Workload, reads_of
from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.finished_stream import FinishedStream
from streamgauge.analytics.assembly.partition import MAX_PENDING_FRAMES
from streamgauge.analytics.decoding.decoded_body import body_of
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects import all_dialects
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.measure import measure
from streamgauge.ingest.records import AnyRecord, Closed, Frames, Opened, ResponseHeaders, pack, unpack

READS_PER_RECORD = 40
STREAMS_PER_BATCH = 50
GAP_NS = 12_000_000
RUNS = 5


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench decode", description=__doc__)
    parser.add_argument("--events", type=int, default=60_000, help="output events per run")
    parser.add_argument("--events-per-stream", type=int, default=400, help="output events per stream")
    parser.add_argument("--events-per-read", type=int, default=1)
    parser.add_argument("--only", help="only workloads whose name contains this")
    arguments = parser.parse_args()
    missing = {d.name for d in all_dialects()} - {w.dialect for w in WORKLOADS} - {"embeddings"}  # one body
    if missing:
        print(f"no workload for {', '.join(sorted(missing))}: add one to bench/_streams.py")
    print(
        f"{'events a second':<30} {'bytes/event':>11} {'decode':>12} {'+ measure':>12} {'from records':>13}"
    )
    per_stream = arguments.events_per_stream
    for workload in WORKLOADS:
        if arguments.only and arguments.only not in workload.name:
            continue
        streams = max(1, arguments.events // per_stream)
        bodies = [reads_of(workload, per_stream, arguments.events_per_read) for _ in range(min(streams, 20))]
        _check(workload, bodies[0], per_stream)
        events = sum(_event_count(workload, body) for body in bodies) / len(bodies) * streams
        size = sum(map(len, bodies[0])) / _event_count(workload, bodies[0])
        rates = [
            events / _median(partial(run, workload, bodies, streams))
            for run in (_decode, _measure, _assemble)
        ]
        print(
            f"{workload.name:<30} {size:>11.0f} {rates[0]:>12,.0f} {rates[1]:>12,.0f} {rates[2]:>13,.0f}",
            flush=True,
        )
    return 0 if not missing else 1


def _median(run: Callable[[], float]) -> float:
    times = []
    for number in range(RUNS + 1):
        times.append(run())
        gc.unfreeze()
        if number == 0:
            times.clear()  # drop the warm-up run
    return statistics.median(times)


def _frames(body: list[bytes]) -> list[tuple[int, bytes]]:
    return [(n * GAP_NS, data) for n, data in enumerate(body)]


def _exchange(workload: Workload) -> ExchangeInfo:
    return ExchangeInfo(path=workload.path, content_type=workload.content_type)


def _event_count(workload: Workload, body: list[bytes]) -> int:
    decoder = StreamDecoder(_exchange(workload))
    decoder.feed(_frames(body))
    return decoder.event_count


def _check(workload: Workload, body: list[bytes], expected: int) -> None:
    """Check that the workload decodes as intended."""
    decoder = StreamDecoder(_exchange(workload))
    decoder.feed(_frames(body))
    decoder.finish()
    outputs = decoder.output_event_count
    if decoder.dialect != workload.dialect or (outputs < expected and workload.dialect != "unknown"):
        raise ValueError(f"{workload.name}: decoded as {decoder.dialect} with {outputs} output events")


def _decoded(exchange: ExchangeInfo, batches: list[list[tuple[int, bytes]]]) -> StreamDecoder:
    decoder = StreamDecoder(exchange)
    for batch in batches:
        decoder.feed(batch)
    decoder.finish()
    return decoder


def _batches(bodies: list[list[bytes]]) -> list[list[list[tuple[int, bytes]]]]:
    """The reads of each body, in the batches that `streamgauge.analytics.assembly.partition` makes."""
    frames = [_frames(body) for body in bodies]
    return [[f[at : at + MAX_PENDING_FRAMES] for at in range(0, len(f), MAX_PENDING_FRAMES)] for f in frames]


def _decode(workload: Workload, bodies: list[list[bytes]], streams: int) -> float:
    return _timed(decoding(workload, bodies, streams))


def _measure(workload: Workload, bodies: list[list[bytes]], streams: int) -> float:
    return _timed(measuring(workload, bodies, streams))


def _timed(work: Callable[[], None]) -> float:
    gc.collect()
    gc.freeze()  # keep the benchmark's own objects out of the measurement
    start_s = time.process_time()
    work()
    return time.process_time() - start_s


def decoding(workload: Workload, bodies: list[list[bytes]], streams: int) -> Callable[[], None]:
    """Prepare to decode that many streams."""
    exchange, batches = _exchange(workload), _batches(bodies)

    def work() -> None:
        for number in range(streams):
            _decoded(exchange, batches[number % len(batches)])

    return work


def measuring(workload: Workload, bodies: list[list[bytes]], streams: int) -> Callable[[], None]:
    """Prepare to decode and measure that many streams. The work raises ValueError if one is missing."""
    exchange, batches = _exchange(workload), _batches(bodies)
    ended = _assembled([_records(workload, body) for body in bodies])

    def work() -> None:
        for at in range(0, streams, STREAMS_PER_BATCH):
            numbers = [number % len(bodies) for number in range(at, min(at + STREAMS_PER_BATCH, streams))]
            rows = measure([replace(ended[n], body=body_of(_decoded(exchange, batches[n]))) for n in numbers])
            if len(rows["streams"]) != len(numbers):
                raise ValueError("not every stream was measured")

    return work


def _assembled(records: list[list[AnyRecord]]) -> list[FinishedStream]:
    assembler = Assembler()
    for offset, stream_records in enumerate(records):
        assembler.feed("p", offset, stream_records)
    return assembler.take_finished()


def _records(workload: Workload, body: list[bytes]) -> list[AnyRecord]:
    stream = str(uuid.UUID(int=RNG.getrandbits(128), version=4))
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
    head = ResponseHeaders(200, [("content-type", workload.content_type)], 0)
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


def _assemble(workload: Workload, bodies: list[list[bytes]], streams: int) -> float:
    entries = [
        pack([record], compress=False)
        for number in range(streams)
        for record in _records(workload, bodies[number % len(bodies)])
    ]
    per_batch = len(entries) // streams * STREAMS_PER_BATCH
    assembler = Assembler()
    measured = 0
    gc.collect()
    gc.freeze()
    start_s = time.process_time()
    for at in range(0, len(entries), per_batch):
        for offset in range(at, min(at + per_batch, len(entries))):
            assembler.feed("p", offset, unpack(entries[offset])[0])
        measured += len(measure(assembler.take_finished())["streams"])
    took_s = time.process_time() - start_s
    if measured != streams:
        raise ValueError("not every stream was measured")
    return took_s
