"""Read all partitions of the topic as a log, from positions that the caller keeps.

Rules
 1. No consumer group: the caller stores the offsets with its rows, so `release` does nothing. (`kafka_group_reader` shares
    the partitions between several readers.)
 2. While Kafka is unreachable, `poll` returns nothing, logs the outage, keeps positions, and resumes automatically.
 3. The log's identity is cluster id and topic id. A topic that was deleted and created again raises `LogChanged`.
 4. Messages that retention or a new topic deleted before they were read are reported by `take_unreadable`.
 5. An unreadable batch (damaged on the broker's disk, unknown codec, too large when decompressed) is skipped and reported.
 6. New partitions are found within seconds and read from their beginning.
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

from streamgauge.ingest.record_log import kafka_client
from streamgauge.ingest.record_log.interface import (
    Entry,
    LogBroken,
    LogChanged,
    UnreadableRange,
    UnreadableRanges,
)

log = logging.getLogger(__name__)

kafka_client.limit_codecs()

_RETRY_S = 1.0
"""Pause between two attempts to connect."""
_CHECK_S = 2.0
"""Interval between comparisons of partitions and log identity with the client's metadata."""
_METADATA_MS = 10_000
_QUIET_S = 10.0
"""After this long without a message, check that a broker is reachable."""
_RANGE_S = 60.0
_REQUEST_MS = 5000
_RECORDS = 100
"""Messages per poll of the client: `max_bytes` is exceeded by at most this many."""


class _TopicMissing(KafkaError):  # type: ignore[misc]  # kafka-python has no types
    """The topic does not exist."""

    def __str__(self) -> str:
        return str(self.args[0])


class KafkaReader:
    """A `LogReader` of a topic. Not thread-safe: one owner. Raises ValueError for invalid options."""

    def __init__(self, brokers: str, topic: str, options: Mapping[str, Any]) -> None:
        self._brokers, self._topic = kafka_client.split_brokers(brokers), topic
        self._options = kafka_client.check_options(options)
        self._consumer: Any = None
        self._replayer: Any = None
        """Second client, for `range` and bisection. A restart calls `range` often, so it is kept until the next `poll`."""
        self._log_id = ""
        self._positions: dict[int, int | None] = {}
        """Next offset of each assigned partition. None: the oldest."""
        self._requested: dict[int, int] = {}
        """Positions set by `seek` before the partition was assigned."""
        self._ends: dict[int, int] = {}
        self._unreadable = UnreadableRanges()
        self._outage = kafka_client.OutageLog(f"Kafka at {brokers} answers again")
        self._tried_s = self._last_check_s = self._last_message_s = float("-inf")

    @property
    def log_id(self) -> str:
        """Identity of the log. Raises LogBroken if Kafka was never reached."""
        if not self._log_id and not self._connected():
            raise LogBroken(
                f"Kafka at {','.join(self._brokers)} has not been reached yet: {self._outage.last_error}"
            )
        return self._log_id

    def partitions(self) -> Sequence[str]:
        """Empty until Kafka was reached."""
        self._connected()
        return [str(partition) for partition in sorted(self._positions)]

    def seek(self, partition: str, offset: int) -> None:
        number = int(partition)
        if number not in self._positions:
            self._requested[number] = offset
            return
        self._positions[number] = offset
        if self._consumer is not None:
            self._seek(TopicPartition(self._topic, number), offset)

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        """Raises LogChanged."""
        self._drop_replayer()
        deadline_s = time.monotonic() + timeout_s
        entries: list[Entry] = []
        size = 0
        while True:
            remaining_s = max(0.0, deadline_s - time.monotonic())
            if not self._connected():
                time.sleep(min(remaining_s, _RETRY_S / 2))
                if remaining_s <= 0:
                    return entries
                continue
            # Only the first wait may be long. After it, take what has arrived.
            got = self._take(0.0 if entries else min(remaining_s, 1.0))
            entries += got
            size += sum(len(entry.payload) for entry in got)
            if (entries and not got) or size >= max_bytes or time.monotonic() >= deadline_s:
                return entries

    def range(self, partition: str, start: int, end: int) -> list[Entry]:
        """Raises LogBroken when Kafka does not return the entries within a minute."""
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
                        f"Kafka at {','.join(self._brokers)} did not return the entries of {at.topic!r} that a restart needs "
                        f"within {_RANGE_S:.0f} s ({error})"
                    ) from error
                time.sleep(_RETRY_S)

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
        """Does nothing: the topic's retention deletes entries."""

    def take_unreadable(self) -> list[UnreadableRange]:
        return self._unreadable.take()

    def close(self) -> None:
        self._drop_replayer()
        self._drop()

    # Connection

    def _connected(self) -> bool:
        if self._consumer is not None:
            self._check_topic()
            return True
        now_s = time.monotonic()
        if now_s - self._tried_s < _RETRY_S:
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
            raise _TopicMissing(
                f"the topic {self._topic!r} does not exist yet: start `streamgauge ship`, which creates it"
            )
        self._last_message_s = time.monotonic()
        self._check_topic(now=True)

    def _new_member(self) -> Any:
        return self._new_consumer(group_id=None)

    def _new_consumer(self, **membership: Any) -> Any:
        return kafka_client.connect(
            KafkaConsumer,
            self._brokers,
            self._options,
            client_id="streamgauge-analyze",
            **membership,
            enable_auto_commit=False,
            auto_offset_reset="none",
            # The check in pure Python runs at 4 MB/s. The brokers check too, and so does decoding the records.
            check_crcs=importlib.util.find_spec("crc32c") is not None,
            metadata_max_age_ms=_METADATA_MS,
            max_partition_fetch_bytes=2 * 2**20,
            fetch_max_bytes=16 * 2**20,
            metrics_enabled=False,
        )

    def _check_topic(self, *, now: bool = False) -> None:
        """Compare the assignment and the log identity with the client's metadata."""
        now_s = time.monotonic()
        if not now and now_s - self._last_check_s < _CHECK_S:
            return
        self._last_check_s = now_s
        cluster = self._consumer._cluster
        topic_id = cluster.topic_id(self._topic)
        if topic_id is not None:
            log_id = f"{cluster.cluster_id}/{topic_id}"
            if self._log_id and log_id != self._log_id:
                self._report_unread()
                self._drop()
                raise LogChanged(
                    f"the Kafka topic {self._topic!r} was deleted and created again, or its broker lost its data: "
                    "reading restarts at the oldest message"
                )
            # After the check: a topic with another id must not become ours by being read.
            self._log_id = log_id
        existing = cluster.partitions_for_topic(self._topic) or set()
        if now or not existing <= self._positions.keys():
            self._assign(existing)
        if now_s - self._last_message_s > _QUIET_S:
            self._last_message_s = now_s
            try:
                kafka_client.probe(self._brokers)
            except OSError as error:
                self._outage.failed(self._explained(error))
            else:
                self._outage.recovered()

    def _report_unread(self) -> None:
        """The messages of the replaced log after the positions, as far as their ends are known."""
        assigned = self._consumer.assignment()  # empty in a client that has just connected
        for number, position in self._positions.items():
            at = TopicPartition(self._topic, number)
            seen = self._consumer.highwater(at) if at in assigned else None
            end = max(seen or 0, self._ends.get(number, 0))
            if position and position < end:
                self._unreadable.add(str(number), position, end, "replaced")

    def _assign(self, existing: set[int]) -> None:
        assigned = set(self._consumer.assignment())
        partitions = {TopicPartition(self._topic, number) for number in existing | self._positions.keys()}
        self._consumer.assign(sorted(partitions))
        for at in partitions - assigned:
            position = self._positions.get(at.partition, self._requested.pop(at.partition, None))
            self._positions[at.partition] = position
            self._seek(at, position)

    def _seek(self, at: TopicPartition, position: int | None) -> None:
        """None and 0: the oldest message. Messages that retention deleted before the first read are not a loss."""
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
            return f"{where} cannot be reached ({error.strerror or error}): reading resumes when it answers"
        return f"{where}: {error if isinstance(error, _TopicMissing) else kafka_client.error_line(error)}"

    # Reading

    def _take(self, timeout_s: float) -> list[Entry]:
        try:
            polled = self._consumer.poll(timeout_ms=int(timeout_s * 1000), max_records=_RECORDS)
        except OffsetOutOfRangeError as error:
            self._out_of_range(error)
            return []
        except Exception as error:
            if is_unreadable(error):
                self._skip_unreadable(error)
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

    def _skip_unreadable(self, error: Exception) -> None:
        """A batch cannot be read: find it by bisection, report its range, and continue after it."""
        try:
            for number, position in list(self._positions.items()):
                at = TopicPartition(self._topic, number)
                first = position or self._consumer.beginning_offsets([at], timeout_ms=_REQUEST_MS)[at]
                end = self._consumer.end_offsets([at], timeout_ms=_REQUEST_MS)[at]
                if self._can_read(at, first):
                    continue
                # Steps double until a readable batch is found, then the gap is halved: a batch of 10,000 messages takes
                # about 25 requests instead of 10,000. The client does not say how long the bad batch is.
                bad, good, step = first, min(first + 1, end), 1
                while good < end and not self._can_read(at, good):
                    bad, step = good, step * 2
                    good = min(good + step, end)
                while good - bad > 1:
                    middle = (bad + good) // 2
                    bad, good = (bad, middle) if self._can_read(at, middle) else (middle, good)
                log.error(
                    "messages %d to %d of partition %d of %r cannot be read (%s): skipped",
                    first, good - 1, number, self._topic, kafka_client.error_line(error),
                )  # fmt: skip
                self._unreadable.add(str(number), first, good, "unreadable")
                self.seek(str(number), good)
        except (KafkaError, OSError) as failure:
            self._outage.failed(self._explained(failure))
            self._drop()
        finally:
            self._drop_replayer()

    def _can_read(self, at: TopicPartition, offset: int) -> bool:
        """Whether the batch with this offset can be read. Raises KafkaError for other errors."""
        if self._replayer is None:
            self._replayer = self._new_consumer(group_id=None)
        self._replayer.assign([at])
        self._replayer.seek(at, offset)
        try:
            self._replayer.poll(timeout_ms=_REQUEST_MS, max_records=1)
        except Exception as error:
            self._drop_replayer()  # after an error this client fails at every offset
            if not is_unreadable(error):
                raise
            return False
        return True

    def _out_of_range(self, error: OffsetOutOfRangeError) -> None:
        """Retention deleted messages, or the topic was recreated or truncated (`_check_topic` detects it)."""
        ranges = error.args[0] if error.args and isinstance(error.args[0], dict) else {}
        try:
            oldest = self._consumer.beginning_offsets(list(ranges), timeout_ms=_REQUEST_MS)
            newest = self._consumer.end_offsets(list(ranges), timeout_ms=_REQUEST_MS)
        except KafkaError as failure:
            self._outage.failed(self._explained(failure))
            self._drop()
            return
        for at, position in ranges.items():
            if position < oldest[at]:
                log.error(
                    "retention deleted messages %d to %d of partition %d of %r before they were read",
                    position, oldest[at] - 1, at.partition, self._topic,
                )  # fmt: skip
                self._unreadable.add(str(at.partition), position, oldest[at], "retention")
                self.seek(str(at.partition), oldest[at])
            elif position > newest[at]:
                self._check_topic(now=True)  # raises LogChanged when it is another topic
                log.error(
                    "partition %d of %r was truncated from %d to %d after it was read: reading continues there",
                    at.partition, self._topic, position, newest[at],
                )  # fmt: skip
                self.seek(str(at.partition), newest[at])

    def _range(self, at: TopicPartition, start: int, end: int, deadline_s: float) -> list[Entry]:
        if self._replayer is None:
            self._replayer = self._new_consumer(group_id=None)
        consumer = self._replayer
        oldest = consumer.beginning_offsets([at], timeout_ms=_REQUEST_MS)[at]
        newest = consumer.end_offsets([at], timeout_ms=_REQUEST_MS)[at]
        if start < oldest:
            self._unreadable.add(str(at.partition), start, min(oldest, end), "retention")
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


def is_unreadable(error: Exception) -> bool:
    """Whether the bytes of a batch are the cause, so a retry fails too."""
    if isinstance(error, KafkaError):
        return isinstance(error, CorruptRecordError | UnsupportedCodecError)
    return isinstance(
        error, zstandard.ZstdError | zlib.error | struct.error | ValueError | IndexError | EOFError
    )


def _close(consumer: Any) -> None:
    if consumer is not None:
        with contextlib.suppress(Exception):
            consumer.close(autocommit=False, timeout_ms=500)
