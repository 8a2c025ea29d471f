"""Read a share of the topic's partitions, as the members of one consumer group divide them among themselves.

Rules, beside those of `ingest.record_log.kafka_reader`
 1. The group decides who reads what, and nothing else: positions are the caller's, fenced where they are stored. Assignment is
    cooperative: a partition that stays is read on while others move.
 2. A partition that comes is silent until the caller has sent the reader to its position (`seek`).
 3. Before a partition goes, `leaving` is called, while this member still owns it: what is committed by then need not be done
    again by the next one. It is called too when the partition is lost already; then a commit finds that somebody else has it.
    What it raises is raised by `poll`.
 4. Nothing that was fetched of a partition is returned after it has left.
 5. An answer of the group counts whenever it comes (`_keep_answers`): a busy member is seldom waiting when it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from ingest.record_log.interface import Entry
from ingest.record_log.kafka_reader import KafkaReader

log = logging.getLogger(__name__)

SESSION_MS, HEARTBEAT_MS = 15_000, 3_000
"""A member that is killed is missed after 15 s; the client's own thread sends the heartbeats, whatever the caller does."""
MAX_POLL_INTERVAL_MS = 300_000
"""A restart may read for as long (`range` gives up after a minute each)."""
_ANSWERED_MS = 1000
"""Enough to take an answer that is here."""


class KafkaGroupReader(KafkaReader):
    """A `LogReader` of the partitions that its group gives it. Not thread-safe: one owner."""

    def __init__(self, brokers: str, topic: str, options: Mapping[str, Any], group: str) -> None:
        super().__init__(brokers, topic, options)
        self.leaving: Callable[[Collection[str]], None] = lambda partitions: None
        self._group = group
        self._subscribed: Any = None
        """The client that has joined."""
        self._left: set[str] = set()
        """Partitions that have gone since the last entries were returned."""
        self._failure: Exception | None = None

    def seek(self, partition: str, offset: int) -> None:
        """Read it from there on; 0 is the oldest message there is. Nothing for a partition that is not ours any more."""
        if int(partition) in self._positions:
            super().seek(partition, offset)
            if self._consumer is not None:
                self._consumer.resume(TopicPartition(self._topic, int(partition)))

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        """Raises LogChanged, and what `leaving` raised."""
        entries = super().poll(timeout_s, max_bytes)
        self._raise_failure()
        if self._left:
            entries = [entry for entry in entries if entry.partition not in self._left]
            self._left.clear()
        return entries

    def close(self) -> None:
        super().close()
        self._raise_failure()

    # Membership

    def _connect(self) -> None:
        self._positions.clear()
        super()._connect()

    def _new_member(self) -> Any:
        member = self._new_consumer(
            group_id=self._group,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=MAX_POLL_INTERVAL_MS,
            partition_assignment_strategy=(CooperativeStickyAssignor,),
        )
        _keep_answers(member._coordinator)
        return member

    def _drop(self) -> None:
        super()._drop()
        self._go([TopicPartition(self._topic, number) for number in self._positions])

    def _assign(self, there: set[int]) -> None:
        if self._subscribed is not self._consumer:
            self._subscribed = self._consumer
            self._consumer.subscribe([self._topic], listener=_Listener(self))

    def _come(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self._consumer.pause(at)
            # It is sent to its position later; but a member without one could not be polled.
            self._consumer.seek(at, 0)
            self._positions[at.partition] = None

    def _go(self, partitions: Collection[TopicPartition]) -> None:
        names = {str(at.partition) for at in partitions if at.partition in self._positions}
        try:
            if names and self._failure is None:
                self.leaving(sorted(names))
        except Exception as error:  # the client would wrap it, and say it at length
            self._failure = error
        finally:
            self._left |= names
            for name in names:
                self._positions.pop(int(name), None)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _keep_answers(coordinator: Any) -> None:
    """Let an answer to a join that comes between two polls count at the next one.

    kafka-python 3.0 leaves a join under way when `poll` returns before the answer; but one that is answered when `poll` comes
    again it throws away, and asks anew. Asked by its leader, the whole group begins again. So a member that works more than it
    waits, as one with a backlog does, could ask again and again, and held up all others.
    """
    join = coordinator.join_group_async

    async def join_group_async(timeout_ms: float | None = None) -> bool:
        asked = coordinator._join_task
        if asked is not None and asked.succeeded():

            async def answer() -> Any:
                return asked.value

            coordinator._join_task = coordinator._manager.call_soon(answer)
            timeout_ms = _ANSWERED_MS
        joined: bool = await join(timeout_ms)
        return joined

    coordinator.join_group_async = join_group_async


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Called by the client within `poll` and `close`."""

    def __init__(self, reader: KafkaGroupReader) -> None:
        self._reader = reader

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._reader._come(assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._reader._go(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._reader._go(lost)
