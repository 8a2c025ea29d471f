"""One group shares a topic, with a real broker: what `ingest.record_log.kafka_group_reader` adds to the reader. Several processes and what
they store: `tests/analytics/test_group.py`.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator

import pytest

from ingest.record_log.kafka_client import ensure_topic
from ingest.record_log.kafka_group_reader import KafkaGroupReader

PARTITIONS = 4
ANSWERS = 10
"""More than enough: one that is alone has its partitions by the first."""
DEADLINE_S = 60.0


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


def until_answered(reader: KafkaGroupReader) -> bool:
    """Be busy elsewhere until the group's answer is here; False when there is none, or it is that one has to ask again."""
    asked = reader._consumer._coordinator._join_task
    if asked is None:
        return False
    answered = threading.Event()
    asked.add_both(lambda _: answered.set())
    assert answered.wait(DEADLINE_S)
    return bool(asked.succeeded())


def test_a_member_joins_although_it_never_waits_for_the_join_response(
    reader: KafkaGroupReader,
) -> None:
    until_s = time.monotonic() + DEADLINE_S
    answers = 0
    while len(reader.partitions()) < PARTITIONS:
        assert time.monotonic() < until_s, "the group did not answer"
        assert answers < ANSWERS, "each answer of the group was thrown away, and it was asked again"
        reader.poll(0.0)
        if until_answered(reader):
            answers += 1
        else:
            time.sleep(0.01)  # the broker looks for the group's coordinator
