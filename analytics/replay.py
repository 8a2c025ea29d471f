"""After a restart: read the records of open streams again, from checkpoints in the store and from the log.

A checkpoint or an entry that raises an exception becomes a dead letter, and the replay goes on with the next.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.assembly.log_position import LogPosition
from streamgauge.analytics.measures.dead_letters import DeadLetters
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.record_log.interface import Entry, LogReader
from streamgauge.ingest.records import unpack

log = logging.getLogger(__name__)

REPLAY_OFFSETS = 1024


def replay(
    reader: LogReader,
    store: Store,
    assembler: Assembler,
    dead_letters: DeadLetters,
    partition: str,
    stored: LogPosition,
) -> set[str]:
    """Restore only the open streams of a position from [low, high). Returns the ids of those with checkpoints."""
    assembler.resume(partition, stored.open_stream_ids)
    kept = store.kept_records(reader.log_id, partition)
    for stream_id, payloads in kept.items():
        try:
            assembler.restore(partition, stream_id, payloads)
        except Exception as e:
            dead_letters.add_failed("restore", partition, -1, b"".join(payloads), e)
    entries = 0
    for entry in _entries(reader, partition, stored.low, stored.high):
        try:
            assembler.feed(partition, entry.offset, unpack(entry.payload)[0])
        except Exception as e:
            dead_letters.add_failed("replay", partition, entry.offset, entry.payload, e)
        entries += 1
    assembler.end_replay(partition)
    log.info(
        "partition %s: resuming at %d (%d open streams, %d of them from checkpoints, %d entries replayed)",
        partition, stored.high, len(stored.open_stream_ids), len(kept), entries,
    )  # fmt: skip
    return set(kept)


def _entries(reader: LogReader, partition: str, low: int, high: int) -> Iterable[Entry]:
    """The entries in [low, high), read in small steps. The step doubles after each one without entries."""
    at, step = low, REPLAY_OFFSETS
    while at < high:
        entries: Sequence[Entry] = reader.range(partition, at, min(at + step, high))
        yield from entries
        at += step
        step = REPLAY_OFFSETS if entries else step * 2
