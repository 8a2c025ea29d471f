"""Fixtures that several test folders share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka import Broker, skip_without_java
from tests.postgres import Postgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The broker starts in the time of the first test that asks for it: on a busy machine that was 96 of its 120 s."""
    for item in items:
        if "kafka_broker" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a real broker, one for each pytest process. Use topics of your own; never stop it."""
    skip_without_java()
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        yield broker.start()
    finally:
        broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Makes brokers that a test may kill and restart; arguments as for `deploy/kafka/broker start`."""
    skip_without_java()
    made: list[Broker] = []

    def make(*arguments: str) -> Broker:
        broker = Broker(tmp_path / f"kafka-{len(made)}", arguments)
        made.append(broker)
        broker.start()
        return broker

    try:
        yield make
    finally:
        for broker in made:
            broker.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A real PostgreSQL, one for each pytest process. Use databases of your own; never stop it."""
    cluster = Postgres()
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
