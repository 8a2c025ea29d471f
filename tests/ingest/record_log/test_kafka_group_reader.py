"""`KafkaGroupReader` joins a consumer group of a real broker. `tests/analytics/test_group.py` has several processes."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from streamgauge.ingest.record_log.kafka_client import ensure_topic
from streamgauge.ingest.record_log.kafka_group_reader import KafkaGroupReader
from tests.deadline import DEADLINE_S

PARTITIONS = 4
MAX_RESPONSES = 10
"""A single member needs one: the first response assigns its partitions."""


@pytest.fixture
def topic(kafka_broker: str) -> str:
    name = f"group-{uuid.uuid4()}"
    ensure_topic(kafka_broker, name, {}, partitions=PARTITIONS)
    return name


@pytest.fixture
def reader(kafka_broker: str, topic: str) -> Iterator[KafkaGroupReader]:
    made = KafkaGroupReader(kafka_broker, topic, {}, group=topic)
    yield made
    made.close()


def wait_for_join_response(reader: KafkaGroupReader) -> bool:
    """Wait, without polling, for the join response. False: there is no join in flight, or it must be repeated."""
    join_task = reader._consumer._coordinator._join_task
    if join_task is None:
        return False
    responded = threading.Event()
    join_task.add_both(lambda _: responded.set())
    assert responded.wait(DEADLINE_S)
    return bool(join_task.succeeded())


def test_a_member_joins_although_it_never_waits_for_the_join_response(
    reader: KafkaGroupReader,
) -> None:
    until_s = time.monotonic() + DEADLINE_S
    responses = 0
    while len(reader.partitions()) < PARTITIONS:
        assert time.monotonic() < until_s, "the group did not respond"
        assert responses < MAX_RESPONSES, "every join response was discarded and the join repeated"
        reader.poll(0.0)
        if wait_for_join_response(reader):
            responses += 1
        else:
            time.sleep(0.01)  # the group's coordinator is not found yet
