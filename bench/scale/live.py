"""Live traffic with a fixed number of concurrent streams, in messages as `ship` sends them: CPU of consumer, Kafka and
PostgreSQL, and delay of rows.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.scale.run import Run
from bench.scale.traffic import GAP_NS, INCARNATION, READS, closing, head, opening, stream_id
from streamgauge.ingest.record_log.kafka_writer import KafkaWriter
from streamgauge.ingest.records import Alive, AnyRecord, Frames, pack
from tests.kafka import Broker
from tests.postgres import Postgres

TICK_S = 0.1
TOKENS_S = 50.0
"""Events per second of one stream of a fast model."""


HEAD = (
    "concurrent streams", "events/s", "consumer, cores", "planned", "Kafka", "PostgreSQL", "delay of rows (median)",
)  # fmt: skip
EVENTS_PER_CPU_S = 100_000
"""Throughput of a consumer with a full topic, as in docs/how-to/plan-capacity.md."""


def live(broker: Broker, postgres: Postgres, level: int, seconds: float) -> list[str]:
    """Run `level` concurrent streams for `seconds` and print the cost. Returns the row of the table."""
    with tempfile.TemporaryDirectory() as folder, Run(broker, postgres, Path(folder), 1) as run:
        before, began_s = run.cpu_s(), time.monotonic()
        events, ages_s = _play(run, level, seconds)
        took_s = time.monotonic() - began_s
        spent = {name: so_far_s - before[name] for name, so_far_s in run.cpu_s().items()}
        stored = run.number("SELECT count(*) FROM events")
        size = sum(path.stat().st_size for path in (Path(folder) / "files").rglob("*.parquet"))
    cores = {name: spent_s / took_s for name, spent_s in spent.items()}
    seen_s = statistics.median(ages_s)
    print(
        f"{level} concurrent streams: {events / took_s:,.0f} events/s; cores: "
        f"{', '.join(f'{name} {share:.3f}' for name, share in cores.items())}; delay of rows {seen_s:.2f} s (median); "
        f"{stored:,.0f} rows of events, files {size / 2**20:.2f} MiB",
        flush=True,
    )
    planned = f"{events / took_s / EVENTS_PER_CPU_S:.2f} + idle"
    shares = [f"{cores[name]:.2f}" for name in ("consumer 1", "Kafka", "PostgreSQL")]
    return [f"{level:,}", f"{events / took_s:,.0f}", shares[0], planned, *shares[1:], f"{seen_s:.1f} s"]


@dataclass
class _Slot:
    """The current stream of one of the concurrent senders."""

    sid: str = ""
    seq: int = 0
    sent: int = len(READS)


def _play(run: Run, level: int, seconds: float) -> tuple[int, list[float]]:
    """Send live traffic. Returns the number of events and the ages in seconds of the newest stored streams."""
    writer = KafkaWriter(run.broker.address, run.topic, {})
    slots = [_Slot() for _ in range(level)]
    events, number, ages_s = 0, 0, []
    ended: dict[str, float] = {}
    began_s = queried_s = time.monotonic()
    ticks = 0
    while time.monotonic() - began_s < seconds:
        batch: list[AnyRecord] = []
        for index, slot in enumerate(slots):
            if slot.sent >= len(READS):
                number += 1
                ms = int(time.time() * 1000)
                # The first streams start at different positions, so they do not all end in the same tick.
                sent = 0 if ticks else index * 7 % len(READS)
                slot.sid, slot.seq, slot.sent = stream_id(number, ms), 2, sent
                batch += opening(slot.sid, ms)
            reads = READS[slot.sent : slot.sent + int(TOKENS_S * TICK_S)]
            frames = [(100_000_000 + (slot.sent + i) * GAP_NS, data) for i, data in enumerate(reads)]
            batch.append(Frames(slot.sid, slot.seq, frames, head() if slot.seq == 2 else None))
            events += len(reads)
            slot.seq, slot.sent = slot.seq + 1, slot.sent + len(reads)
            if slot.sent >= len(READS):
                batch.append(closing(slot.sid, slot.seq, frames[-1][0]))
                ended[slot.sid] = time.monotonic()
        if ticks % 20 == 0:
            mono_ns = time.monotonic_ns()
            batch.append(Alive("tap-1", 0, INCARNATION, time.time_ns(), mono_ns, mono_ns))
        writer.append([pack(batch, compress=True)])
        ticks += 1
        if time.monotonic() - queried_s > 0.5:
            queried_s = time.monotonic()
            newest = "SELECT stream_id::VARCHAR FROM streams ORDER BY started_at DESC LIMIT 500"
            ages_s += [
                time.monotonic() - ended.pop(str(sid)) for (sid,) in run.ask(newest) if str(sid) in ended
            ]
        time.sleep(max(0.0, began_s + ticks * TICK_S - time.monotonic()))
    time.sleep(2)
    writer.close()
    return events, ages_s or [float("nan")]
