"""Fixtures that several test folders share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kafka import Broker, skip_without_java
from tests.postgres import Postgres


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that use the broker get a longer timeout: the first one also waits for the broker to start."""
    for item in items:
        if "kafka_broker" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(300))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """HOST:PORT of a real broker, shared within one pytest process. Tests use their own topics and never stop it."""
    skip_without_java()
    broker = Broker(tmp_path_factory.mktemp("kafka"))
    try:
        yield broker.start()
    finally:
        broker.stop()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Starts brokers that a test may kill and restart. Takes the arguments of `deploy/kafka/broker start`."""
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
    """A real PostgreSQL server, shared within one pytest process. Tests use their own databases and never stop it."""
    cluster = Postgres()
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()
