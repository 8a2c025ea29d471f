"""Read the partitions of the topic that a consumer group assigns to this member.

Rules, in addition to those of `streamgauge.ingest.record_log.kafka_reader`
 1. The group decides the assignment and nothing else. The caller keeps the positions and fences them where they are stored.
    Assignment is cooperative: partitions that stay are read while others move.
 2. A new partition is paused until the caller seeks its position.
 3. `on_revoke` is called before a partition is revoked, while this member still owns it. The next owner does not repeat work
    that it commits. It is also called when the partition is already lost: then a commit is rejected. `poll` raises its
    exceptions.
 4. Messages of a revoked partition are not returned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from kafka import TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor

from streamgauge.ingest.record_log.interface import Entry
from streamgauge.ingest.record_log.kafka_reader import KafkaReader

SESSION_MS, HEARTBEAT_MS = 15_000, 3_000
"""A killed member is detected after 15 s. The client's own thread sends the heartbeats."""
MAX_POLL_INTERVAL_MS = 300_000
"""A restart may read this long without a poll (each `range` fails after a minute)."""
_RESPONSE_MS = 1000
"""Time limit for processing a join response that has arrived."""


class KafkaGroupReader(KafkaReader):
    """A `LogReader` of the partitions assigned to this group member. Not thread-safe: one owner."""

    def __init__(self, brokers: str, topic: str, options: Mapping[str, Any], group: str) -> None:
        super().__init__(brokers, topic, options)
        self.on_revoke: Callable[[Collection[str]], None] = lambda partitions: None
        self._group = group
        self._subscribed: Any = None
        """The client that has subscribed."""
        self._revoked: set[str] = set()
        """Partitions revoked since the last entries were returned."""
        self._failure: Exception | None = None

    def seek(self, partition: str, offset: int) -> None:
        """Read from this offset; 0 is the oldest message. Ignored for a partition that is not assigned."""
        if int(partition) in self._positions:
            super().seek(partition, offset)
            if self._consumer is not None:
                self._consumer.resume(TopicPartition(self._topic, int(partition)))

    def poll(self, timeout_s: float, max_bytes: int = 8 * 2**20) -> list[Entry]:
        """Raises LogChanged and exceptions of `on_revoke`."""
        entries = super().poll(timeout_s, max_bytes)
        self._raise_failure()
        # The client may revoke within `poll`, after it has fetched. The next owner reads these messages too, and both
        # would store them.
        if self._revoked:
            entries = [entry for entry in entries if entry.partition not in self._revoked]
            self._revoked.clear()
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
        _keep_join_response(member._coordinator)
        return member

    def _drop(self) -> None:
        super()._drop()
        self._revoke([TopicPartition(self._topic, number) for number in self._positions])

    def _assign(self, existing: set[int]) -> None:
        if self._subscribed is not self._consumer:
            self._subscribed = self._consumer
            self._consumer.subscribe([self._topic], listener=_Listener(self))

    def _add(self, partitions: Collection[TopicPartition]) -> None:
        for at in partitions:
            self._consumer.pause(at)
            # The caller seeks later, but the client cannot poll a partition without a position.
            self._consumer.seek(at, 0)
            self._positions[at.partition] = None

    def _revoke(self, partitions: Collection[TopicPartition]) -> None:
        names = {str(at.partition) for at in partitions if at.partition in self._positions}
        try:
            if names and self._failure is None:
                self.on_revoke(sorted(names))
        except Exception as error:  # the client would wrap it and log a long message
            self._failure = error
        finally:
            self._revoked |= names
            for name in names:
                self._positions.pop(int(name), None)

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def _keep_join_response(coordinator: Any) -> None:
    """Accept a join response that arrives between two polls.

    kafka-python 3.0 keeps a join in flight when `poll` returns before the response. But it discards a response that arrived
    before the next `poll`, and sends a new join. A join of the leader makes the whole group rejoin. So a member with a backlog,
    whose polls are short, could rejoin forever and block the group. The library has no option for this.
    """
    join = coordinator.join_group_async

    async def join_group_async(timeout_ms: float | None = None) -> bool:
        task = coordinator._join_task
        if task is not None and task.succeeded():

            async def response() -> Any:
                return task.value

            coordinator._join_task = coordinator._manager.call_soon(response)
            timeout_ms = _RESPONSE_MS
        joined: bool = await join(timeout_ms)
        return joined

    coordinator.join_group_async = join_group_async


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python has no types
    """Called by the client within `poll` and `close`."""

    def __init__(self, reader: KafkaGroupReader) -> None:
        self._reader = reader

    def on_partitions_assigned(self, assigned: Collection[TopicPartition]) -> None:
        self._reader._add(assigned)

    def on_partitions_revoked(self, revoked: Collection[TopicPartition]) -> None:
        self._reader._revoke(revoked)

    def on_partitions_lost(self, lost: Collection[TopicPartition]) -> None:
        self._reader._revoke(lost)
