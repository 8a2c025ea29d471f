"""Read the topic as a log: all partitions, assigned by hand, from positions that the caller keeps (in DuckDB).

Rules
 1. No consumer group: the offsets that count are committed with the rows. `release` has nothing to do. (Several readers of one
    topic share its partitions by `ingest.record_log.kafka_group_reader`.)
 2. While Kafka cannot be reached, `poll` returns nothing and it is said once; positions are kept, reading goes on by itself.
 3. The log's identity is cluster id and topic id. A topic made anew raises `LogChanged`: its offsets are another log's.
 4. Messages that retention took before they were read are reported by `take_unreadable`.
 5. A batch that cannot be read (damaged on the broker's disk, in a codec that is not here, a bomb) is left out and reported.
 6. Partitions that are added are found within seconds and read from their beginning.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import struct
import time
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import zstandard
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import CorruptRecordError, KafkaError, OffsetOutOfRangeError, UnsupportedCodecError

from ingest.record_log.interface import Entry, LogBroken, LogChanged, UnreadableRange
from ingest.record_log.kafka_client import OutageLog, check_options, connect, error_line, probe, split_brokers
from ingest.record_log.kafka_decompression import bound_codecs

log = logging.getLogger(__name__)

bound_codecs()

_AGAIN_S = 1.0
"""Between two attempts to connect."""
_CHECK_S = 2.0
"""How often partitions and the log's identity are compared with the client's metadata."""
_METADATA_MS = 10_000
_QUIET_S = 10.0
"""After this long without a message, see whether a broker is there at all."""
_RANGE_S = 60.0
_ASK_MS = 5000
_MAX_DAMAGE = 1000
_RECORDS = 100
"""Messages taken at once, so that `max_bytes` is overshot by 100 messages at most."""


class _TopicMissing(KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """The topic is not there."""

    def __str__(self) -> str:
        return str(self.args[0])


class KafkaReader:
    """A `LogReader` of a topic. Not thread-safe: one owner. Raises ValueError for options that cannot be."""

    def __init__(self, brokers: str, topic: str, options: Mapping[str, Any]) -> None:
        self._brokers, self._topic = split_brokers(brokers), topic
        self._options = check_options(options)
        self._consumer: Any = None
        self._replayer: Any = None
        """Kept from one `range` to the next, for a restart asks for many; let go by `poll`."""
        self._log_id = ""
        self._positions: dict[int, int | None] = {}
        """Next offset of each partition that is read; None: the oldest."""
        self._requested: dict[int, int] = {}
        """Positions given before the partition was known."""
        self._ends: dict[int, int] = {}
        self._damage: list[UnreadableRange] = []
        self._outage = OutageLog(f"Kafka at {brokers} answers again")
        self._tried_s = self._last_check_s = self._last_message_s = float("-inf")

    @property
    def log_id(self) -> str:
        """Identity of the log. Raises LogBroken while it has never been reached: then nothing can be read either."""
        if not self._log_id and not self._connected():
            raise LogBroken(
                f"Kafka at {','.join(self._brokers)} has not been reached yet: {self._outage.last_error}"
            )
        return self._log_id

    def partitions(self) -> Sequence[str]:
        """None while Kafka has not been reached."""
        self._connected()
        return [str(partition) for partition in sorted(self._positions)]

    def seek(self, partition: str, offset: int) -> None:
        number = int(partition)
        if number not in self._positions:
            self._requested[number] = offset
            return
        self._positions[number] = offset
        if self._consumer is not None:
            self._go_to(TopicPartition(self._topic, number), offset)

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        """Raises LogChanged."""
        self._drop_replayer()
        deadline_s = time.monotonic() + timeout_s
        entries: list[Entry] = []
        size = 0
        while True:
            left_s = max(0.0, deadline_s - time.monotonic())
            if not self._connected():
                time.sleep(min(left_s, _AGAIN_S / 2))
                if left_s <= 0:
                    return entries
                continue
            # What waits already is taken at once; only the first wait may be long.
            got = self._take(0.0 if entries else min(left_s, 1.0))
            entries += got
            size += sum(len(entry.payload) for entry in got)
            if (entries and not got) or size >= max_bytes or time.monotonic() >= deadline_s:
                return entries

    def range(self, partition: str, start: int, end: int) -> list[Entry]:
        """Raises LogBroken when Kafka does not give the entries within a minute."""
        if end <= start:
            return []
        at = TopicPartition(self._topic, int(partition))
        deadline_s = time.monotonic() + _RANGE_S
        while True:
            try:
                return self._range(at, start, end, deadline_s)
            except (KafkaError, OSError) as error:
                self._drop_replayer()
                self._outage.failed(self._explained(error))
                if time.monotonic() >= deadline_s:
                    raise LogBroken(
                        f"Kafka at {','.join(self._brokers)} did not give what a restart needs of {at.topic!r} "
                        f"within {_RANGE_S:.0f} s ({error})"
                    ) from error
                time.sleep(_AGAIN_S)

    def end(self, partition: str) -> int:
        number = int(partition)
        at = TopicPartition(self._topic, number)
        if self._consumer is not None and number in self._positions:
            seen = self._consumer.highwater(at)
            if seen is None and number not in self._ends:
                with contextlib.suppress(KafkaError):
                    seen = self._consumer.end_offsets([at], timeout_ms=2000).get(at)
            if seen is not None:
                self._ends[number] = max(seen, self._ends.get(number, 0))
        return max(self._ends.get(number, 0), self._positions.get(number) or 0)

    def release(self, partition: str, offset: int) -> None:
        """Nothing: the topic's retention decides what goes."""

    def take_unreadable(self) -> list[UnreadableRange]:
        taken, self._damage = self._damage, []
        return taken

    def close(self) -> None:
        self._drop_replayer()
        self._drop()

    # Connection

    def _connected(self) -> bool:
        if self._consumer is not None:
            self._check_topic()
            return True
        now_s = time.monotonic()
        if now_s - self._tried_s < _AGAIN_S:
            return False
        self._tried_s = now_s
        try:
            self._connect()
        except LogChanged:
            raise
        except (KafkaError, OSError) as error:
            self._outage.failed(self._explained(error))
            self._drop()
            return False
        self._outage.recovered()
        return True

    def _connect(self) -> None:
        consumer = self._new_member()
        self._consumer = consumer
        if not consumer.partitions_for_topic(self._topic):
            raise _TopicMissing(f"the topic {self._topic!r} is not there yet: `streamgauge ship` makes it")
        self._last_message_s = time.monotonic()
        self._check_topic(now=True)

    def _new_member(self) -> Any:
        return self._new_consumer(group_id=None)

    def _new_consumer(self, **membership: Any) -> Any:
        return connect(
            KafkaConsumer,
            self._brokers,
            self._options,
            client_id="streamgauge-analyze",
            **membership,
            enable_auto_commit=False,
            auto_offset_reset="none",
            # In pure Python the check runs at 4 MB/s; the brokers make it too, and entries are checked as records.
            check_crcs=importlib.util.find_spec("crc32c") is not None,
            metadata_max_age_ms=_METADATA_MS,
            max_partition_fetch_bytes=2 * 2**20,
            fetch_max_bytes=16 * 2**20,
            metrics_enabled=False,
        )

    def _check_topic(self, *, now: bool = False) -> None:
        """Compare what is read with the client's metadata."""
        now_s = time.monotonic()
        if not now and now_s - self._last_check_s < _CHECK_S:
            return
        self._last_check_s = now_s
        cluster = self._consumer._cluster
        topic_id = cluster.topic_id(self._topic)
        if topic_id is not None:
            log_id = f"{cluster.cluster_id}/{topic_id}"
            if self._log_id and log_id != self._log_id:
                self._drop()
                raise LogChanged(
                    f"the Kafka topic {self._topic!r} was made anew: reading begins again at its oldest message"
                )
            self._log_id = log_id
        there = cluster.partitions_for_topic(self._topic) or set()
        if now or not there <= self._positions.keys():
            self._assign(there)
        if now_s - self._last_message_s > _QUIET_S:
            self._last_message_s = now_s
            try:
                probe(self._brokers)
            except OSError as error:
                self._outage.failed(self._explained(error))
            else:
                self._outage.recovered()

    def _assign(self, there: set[int]) -> None:
        known = set(self._consumer.assignment())
        wanted = {TopicPartition(self._topic, number) for number in there | self._positions.keys()}
        self._consumer.assign(sorted(wanted))
        for at in wanted - known:
            position = self._positions.get(at.partition, self._requested.pop(at.partition, None))
            self._positions[at.partition] = position
            self._go_to(at, position)

    def _go_to(self, at: TopicPartition, position: int | None) -> None:
        """None and 0: the oldest message, for what retention took before anybody read was never missed."""
        if position:
            self._consumer.seek(at, position)
        else:
            self._consumer.seek_to_beginning(at)

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        _close(consumer)

    def _drop_replayer(self) -> None:
        consumer, self._replayer = self._replayer, None
        _close(consumer)

    def _explained(self, error: Exception) -> str:
        where = f"Kafka at {','.join(self._brokers)}"
        if isinstance(error, OSError):
            return f"{where} cannot be reached ({error.strerror or error}): reading goes on when it answers"
        return f"{where}: {error if isinstance(error, _TopicMissing) else error_line(error)}"

    # Reading

    def _take(self, timeout_s: float) -> list[Entry]:
        try:
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=_RECORDS)
        except OffsetOutOfRangeError as error:
            self._out_of_range(error)
            return []
        except Exception as error:
            if is_unreadable(error):
                self._pass_unreadable(error)
                return []
            if not isinstance(error, KafkaError):
                raise
            self._outage.failed(self._explained(error))
            self._drop()
            return []
        entries = []
        for at, records in polled.items():
            entries += [Entry(str(at.partition), record.offset, record.value or b"") for record in records]
            self._positions[at.partition] = records[-1].offset + 1
        if entries:
            self._last_message_s = time.monotonic()
            self._outage.recovered()
        return entries

    def _pass_unreadable(self, error: Exception) -> None:
        """Some batch cannot be read and never will be: find it, and go on behind it. What it held is told as damage."""
        try:
            for number, position in list(self._positions.items()):
                at = TopicPartition(self._topic, number)
                first = position or self._consumer.beginning_offsets([at], timeout_ms=_ASK_MS)[at]
                end = self._consumer.end_offsets([at], timeout_ms=_ASK_MS)[at]
                if self._can_read(at, first):
                    continue
                bad, good, step = first, min(first + 1, end), 1
                while good < end and not self._can_read(at, good):
                    bad, step = good, step * 2
                    good = min(good + step, end)
                while good - bad > 1:
                    middle = (bad + good) // 2
                    bad, good = (bad, middle) if self._can_read(at, middle) else (middle, good)
                log.error(
                    "messages %d to %d of partition %d of %r cannot be read (%s): left out",
                    first, good - 1, number, self._topic, error_line(error),
                )  # fmt: skip
                self._report(UnreadableRange(str(number), first, good, "unreadable"))
                self.seek(str(number), good)
        except (KafkaError, OSError) as failure:
            self._outage.failed(self._explained(failure))
            self._drop()
        finally:
            self._drop_replayer()

    def _can_read(self, at: TopicPartition, offset: int) -> bool:
        """Whether the batch that holds this offset can be read. Raises KafkaError for other trouble."""
        if self._replayer is None:
            self._replayer = self._new_consumer(group_id=None)
        self._replayer.assign([at])
        self._replayer.seek(at, offset)
        try:
            self._replayer.poll(timeout_ms=_ASK_MS, max_records=1)
        except Exception as error:
            self._drop_replayer()  # it would say the same of any offset
            if not is_unreadable(error):
                raise
            return False
        return True

    def _out_of_range(self, error: OffsetOutOfRangeError) -> None:
        """Retention took messages, or the topic was made anew (or cut), which `_look` will tell."""
        ranges = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        try:
            oldest = self._consumer.beginning_offsets(list(ranges), timeout_ms=_ASK_MS)
            newest = self._consumer.end_offsets(list(ranges), timeout_ms=_ASK_MS)
        except KafkaError as failure:
            self._outage.failed(self._explained(failure))
            self._drop()
            return
        for at, position in ranges.items():
            if position < oldest[at]:
                log.error(
                    "retention took messages %d to %d of partition %d of %r before they were read",
                    position,
                    oldest[at] - 1,
                    at.partition,
                    self._topic,
                )
                self._report(UnreadableRange(str(at.partition), position, oldest[at], "retention"))
                self.seek(str(at.partition), oldest[at])
            elif position > newest[at]:
                self._check_topic(now=True)  # raises LogChanged when it is another topic
                log.error(
                    "partition %d of %r was cut from %d to %d, after we had read it: what comes now is read",
                    at.partition,
                    self._topic,
                    position,
                    newest[at],
                )
                self.seek(str(at.partition), newest[at])

    def _range(self, at: TopicPartition, start: int, end: int, deadline_s: float) -> list[Entry]:
        if self._replayer is None:
            self._replayer = self._new_consumer(group_id=None)
        consumer = self._replayer
        oldest = consumer.beginning_offsets([at], timeout_ms=_ASK_MS)[at]
        newest = consumer.end_offsets([at], timeout_ms=_ASK_MS)[at]
        if start < oldest:
            self._report(UnreadableRange(str(at.partition), start, min(oldest, end), "retention"))
        position, end = max(start, oldest), min(end, newest)
        entries: list[Entry] = []
        if position >= end:
            return entries
        consumer.assign([at])
        consumer.seek(at, position)
        while position < end:
            for record in consumer.poll(timeout_ms=500, max_records=_RECORDS).get(at, ()):
                position = record.offset + 1
                if record.offset < end:
                    entries.append(Entry(str(at.partition), record.offset, record.value or b""))
            if time.monotonic() >= deadline_s:
                raise KafkaError(f"partition {at.partition} stopped at {position}, before {end}")
        return entries

    def _report(self, damage: UnreadableRange) -> None:
        if len(self._damage) < _MAX_DAMAGE:
            self._damage.append(damage)


def is_unreadable(error: Exception) -> bool:
    """Whether the bytes of a batch are what is wrong: asking again brings the same."""
    if isinstance(error, KafkaError):
        return isinstance(error, CorruptRecordError | UnsupportedCodecError)
    return isinstance(
        error, zstandard.ZstdError | zlib.error | struct.error | ValueError | IndexError | EOFError
    )


def _close(consumer: Any) -> None:
    if consumer is not None:
        with contextlib.suppress(Exception):
            consumer.close(autocommit=False, timeout_ms=500)
