"""Deliver entries to a Kafka topic: idempotent, acks=all, in order per stream. Retries without a time limit.

Messages (`group_by_stream`, `packing.messages_of`; no I/O): as few as possible, none larger than the broker accepts
 1. Records of one stream keep their order. A message is an entry with records of all streams of its partition, because each
    message costs its consumer as much as a few events.
 2. Messages are cut between records, so (stream, seq) stays unique. A record that is too large even when compressed is
    replaced by a `Lost` with the same (stream, seq).
 3. Of several `Alive` of one incarnation only the last is kept: its counters include the earlier ones.
 4. Data that is not a record is passed on, so analytics counts all dead letters in one place. It is cut to the size that the broker
    accepts, which leaves it invalid.

Delivery of a batch of entries
 1. The records are grouped by stream, and the streams by partition: the partition that Kafka's default partitioner chooses
    for the stream id as key. So a partition gets one message, or as few as size allows. Messages have no key, because they
    contain many streams.
 2. Each round sends the next message of every partition and waits for all acknowledgements. A message is sent only after the
    previous one was acknowledged, so a failure leaves no gap.
 3. `Alive` is sent to every partition after all streams. So no partition gets a newer incarnation before records of the older
    one.
 4. The records of failed messages are packed again and sent by a new producer. If only the acknowledgement was late, the topic
    has them twice, and analytics drops the duplicates by (stream, seq). Kafka itself drops duplicates of one producer.

Memory: one unpacked batch of entries and its messages. The caller bounds the batch.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from kafka import KafkaProducer, errors
from kafka.partitioner.default import murmur2

from streamgauge.ingest.record_log import kafka_client
from streamgauge.ingest.record_log.interface import LogBroken
from streamgauge.ingest.record_log.packing import TARGET_BYTES, Message, largest_value, messages_of
from streamgauge.ingest.records import PLAIN, Alive, AnyRecord, Damaged, unpack

_CHECK_S = 0.25
"""Interval at which a wait checks `give_up`."""
_PATIENCE_S = 5.0
"""After this long without an acknowledgement, log it."""
_STUCK_S = 20.0
"""After this long without an acknowledgement from a reachable broker, use a new producer."""
_PAUSE_FIRST_S, _PAUSE_LAST_S = 0.2, 5.0
_SMALLEST_LIMIT = 16 * 2**10
_DAY_MS = 24 * 3600 * 1000


@dataclass(slots=True)
class _PartitionQueue:
    """Messages to send to one partition, in order. None: to any partition."""

    partition: int | None
    messages: deque[Message]


@lru_cache(2**16)
def key_hash(stream: str) -> int:
    """Hash of Kafka's default partitioner for a stream id as key. The partition is this modulo the number of partitions."""
    return int(murmur2(stream.encode())) & 0x7FFFFFFF


class KafkaWriter:
    """A `LogWriter` into a topic. Not thread-safe: one owner.

    Raises ValueError for invalid options. While Kafka is unreachable, `append` waits and calls `give_up` and `progress`
    regularly. When `give_up` returns True, `append` raises LogBroken; unacknowledged entries must be appended again.
    """

    def __init__(
        self,
        brokers: str,
        topic: str,
        options: Mapping[str, Any],
        *,
        give_up: Callable[[], bool] = lambda: False,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self._brokers, self._topic = kafka_client.split_brokers(brokers), topic
        self._options = kafka_client.check_options(options)
        self._give_up, self._progress = give_up, progress
        self._producer: Any = None
        self._topic_info: kafka_client.Topic | None = None
        self._limit_bytes = 0
        self._outage = kafka_client.OutageLog(f"Kafka at {brokers} answers again")
        self._stats = dict.fromkeys(
            ("records", "messages", "bytes", "retries", "possible_duplicates", "too_large_records", "poison"),
            0,
        )

    @property
    def last_error(self) -> str | None:
        """The newest error, None if there was none."""
        return self._outage.last_error

    @property
    def failing(self) -> bool:
        """The last attempt to deliver records failed."""
        return self._outage.ongoing

    def stats(self) -> dict[str, int]:
        """Counters since the start. `bytes` are compressed values."""
        return dict(self._stats)

    def append(self, payloads: Sequence[bytes]) -> None:
        """Deliver entries. After the return the brokers have acknowledged all of them."""
        self.deliver(group_by_stream(payloads))

    def deliver(self, grouped: GroupedRecords) -> None:
        """Deliver grouped records. After the return the brokers have acknowledged all of them."""
        self._deliver([record for records in grouped.streams.values() for record in records], grouped.poison)
        if grouped.broadcast:
            self._deliver_everywhere(grouped.broadcast)
        self._stats["records"] += grouped.records
        self._stats["poison"] += len(grouped.poison)

    def close(self) -> None:
        """Close the connection. No message is in flight between two appends."""
        self._drop_producer()

    # Delivery

    def _deliver(self, records: Sequence[AnyRecord], poison: Sequence[bytes]) -> None:
        while records or poison:
            self._ensure_connected()
            largest = largest_value(self._limit_bytes)
            queues = [_PartitionQueue(None, deque([Message(value[:largest])])) for value in poison]
            queues += self._queues_of(records)
            try:
                while queues:
                    queues = self._round(queues)
            except (errors.MessageSizeTooLargeError, errors.RecordListTooLargeError) as error:
                self._lower_limit()
                self._failed(error)
            except (errors.KafkaError, OSError) as error:
                self._failed(error)
            poison = [m.value for queue in queues if queue.partition is None for m in queue.messages]
            records = [record for queue in queues for m in queue.messages for record in m.records]

    def _queues_of(self, records: Iterable[AnyRecord]) -> list[_PartitionQueue]:
        """One queue for each partition that receives any of the records."""
        assert self._topic_info is not None
        by_partition: dict[int, list[AnyRecord]] = {}
        for record in records:
            assert not isinstance(record, (Alive, Damaged))
            by_partition.setdefault(key_hash(record.stream) % self._topic_info.partitions, []).append(record)
        queues = []
        for partition, partition_records in by_partition.items():
            messages, lost = messages_of(partition_records, self._limit_bytes, time.time_ns())
            self._stats["too_large_records"] += lost
            queues.append(_PartitionQueue(partition, deque(messages)))
        return queues

    def _deliver_everywhere(self, broadcast: list[AnyRecord]) -> None:
        pending: set[int] | None = None
        """Partitions that have not acknowledged the records. None: all."""
        while pending is None or pending:
            self._ensure_connected()
            assert self._topic_info is not None
            partitions = range(self._topic_info.partitions)
            messages, _ = messages_of(broadcast, self._limit_bytes, 0)
            queues = [
                _PartitionQueue(partition, deque(messages))
                for partition in partitions
                if pending is None or partition in pending
            ]
            try:
                while queues:
                    queues = self._round(queues)
            except (errors.KafkaError, OSError) as error:
                self._failed(error)
            pending = {queue.partition for queue in queues if queue.partition is not None and queue.messages}

    def _round(self, queues: list[_PartitionQueue]) -> list[_PartitionQueue]:
        """Send the next message of each queue, await all, return the queues that are not empty. Raises the first failure."""
        producer = self._producer
        sent = []
        for queue in queues:
            try:
                future = producer.send(self._topic, value=queue.messages[0].value, partition=queue.partition)
            except ValueError as error:  # the topic has fewer partitions now
                raise errors.UnknownTopicOrPartitionError(str(error)) from error
            sent.append((queue, future))
        self._await(producer, [future for _, future in sent])
        failure: Exception | None = None
        for queue, future in sent:
            if future.succeeded():
                self._stats["messages"] += 1
                self._stats["bytes"] += len(queue.messages.popleft().value)
            else:
                failure = failure or future.exception
        if failure is not None:
            raise failure
        self._outage.recovered()
        return [queue for queue in queues if queue.messages]

    def _await(self, producer: Any, futures: Sequence[Any]) -> None:
        began_s = time.monotonic()
        while True:
            with contextlib.suppress(errors.KafkaTimeoutError):
                # In short steps, so `give_up` and `progress` are called while Kafka does not answer.
                producer.flush(timeout=_CHECK_S)
            if all(future.is_done for future in futures):
                return
            self._progress()
            self._raise_if_stopped()
            waited_s = time.monotonic() - began_s
            if waited_s > _PATIENCE_S:
                self._outage.failed(
                    f"Kafka at {','.join(self._brokers)} does not acknowledge records: they stay in the local log"
                )
            if waited_s > _STUCK_S and self._reachable():
                raise errors.KafkaTimeoutError(f"no acknowledgement for {waited_s:.0f} s")

    # Connection

    def _ensure_connected(self) -> None:
        """Connect if necessary, retrying until `give_up`."""
        pause_s = _PAUSE_FIRST_S
        while self._producer is None:
            self._raise_if_stopped()
            try:
                self._connect()
            except (errors.KafkaError, OSError, LogBroken) as error:
                self._outage.failed(_explained(self._brokers, error))
                self._pause(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_LAST_S)

    def _connect(self) -> None:
        topic = kafka_client.ensure_topic(",".join(self._brokers), self._topic, self._options)
        if self._topic_info != topic:
            self._topic_info, self._limit_bytes = topic, topic.max_message_bytes
        self._producer = kafka_client.connect(
            KafkaProducer,
            self._brokers,
            self._options,
            client_id="streamgauge-ship",
            acks="all",
            enable_idempotence=True,
            compression_type=None,  # entries are compressed already
            batch_size=min(TARGET_BYTES, max(_SMALLEST_LIMIT, self._limit_bytes // 2)),
            max_request_size=max(2 * self._limit_bytes, 2 * TARGET_BYTES),
            # We retry ourselves: a batch never expires while its producer exists.
            delivery_timeout_ms=_DAY_MS,
            max_block_ms=5000,
            metrics_enabled=False,
        )

    def _failed(self, error: Exception) -> None:
        self._stats["retries"] += 1
        self._outage.failed(_explained(self._brokers, error))
        self._drop_producer()
        self._pause(_PAUSE_FIRST_S)

    def _lower_limit(self) -> None:
        """The broker accepts less than its configuration says, or the configuration is unreadable."""
        self._limit_bytes = max(_SMALLEST_LIMIT, self._limit_bytes // 2)

    def _drop_producer(self) -> None:
        producer, self._producer = self._producer, None
        if producer is None:
            return
        with contextlib.suppress(Exception):
            producer.close(timeout=0)
        if not getattr(producer, "_closed", True):
            # close() gives up when a message is still in flight, and leaves the sender thread running.
            self._stats["possible_duplicates"] += 1
            with contextlib.suppress(Exception):
                producer._sender.force_close()

    def _reachable(self) -> bool:
        try:
            kafka_client.probe(self._brokers)
        except OSError:
            return False
        return True

    def _pause(self, seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while (remaining_s := until_s - time.monotonic()) > 0:
            self._raise_if_stopped()
            self._progress()
            time.sleep(min(_CHECK_S, remaining_s))

    def _raise_if_stopped(self) -> None:
        if self._give_up():
            self._drop_producer()
            raise LogBroken(
                "stopped before Kafka had acknowledged all records: the rest stays in the local log"
            )


def _explained(brokers: Sequence[str], error: Exception) -> str:
    if isinstance(error, LogBroken):
        return str(error)
    if isinstance(error, OSError):
        return f"Kafka at {','.join(brokers)} cannot be reached ({error.strerror or error}): records wait in the local log"
    return f"Kafka at {','.join(brokers)} did not accept records ({kafka_client.error_line(error)}): retrying"


_PREFIX = {"not_messagepack": PLAIN, "not_a_record": PLAIN + b"\x91"}
"""Prefix that turns poison from inside an entry into a separate entry: the format, and the header of a one-element array."""


@dataclass(slots=True)
class GroupedRecords:
    """Records of several entries, grouped."""

    streams: dict[str, list[AnyRecord]] = field(default_factory=dict)
    broadcast: list[AnyRecord] = field(default_factory=list)
    """`Alive` and `Damaged`, for every partition."""
    poison: list[bytes] = field(default_factory=list)
    records: int = 0


def group_by_stream(payloads: Iterable[bytes]) -> GroupedRecords:
    """Group the records of entries by stream."""
    grouped = GroupedRecords()
    alive: dict[tuple[str, int, str], AnyRecord] = {}
    for payload in payloads:
        records, poison = unpack(payload)
        for record in records:
            if isinstance(record, Alive):
                alive[record.tap, record.tap_worker, record.incarnation] = record
            elif isinstance(record, Damaged):
                grouped.broadcast.append(record)
            else:
                grouped.streams.setdefault(record.stream, []).append(record)
        grouped.records += len(records)
        for unreadable in poison:
            grouped.poison.append(_PREFIX.get(unreadable.reason, b"") + unreadable.payload)
    grouped.broadcast += alive.values()
    return grouped
