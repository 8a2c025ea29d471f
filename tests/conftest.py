"""Fixtures that several test folders share."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

import pytest

from tests.kafka import Broker, skip_without_java
from tests.litellm_proxy import LITELLM
from tests.postgres import Postgres

pytest_plugins = ["tests.reached"]
gc.disable()  # collection keeps nearly all that it allocates; without this it takes twice the time

MEMORY = "/dev/shm"
LEAST_BYTES = 4 * 2**30
"""A run of all tests needs a quarter of it."""


def has_room(folder: str) -> bool:
    """Whether temporary files and programs of the tests may be in this folder."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize >= LEAST_BYTES and not found.f_flag & os.ST_NOEXEC


# In memory no commit of a store or of a record log waits for a disk, which takes longer than the tests themselves.
if "TMPDIR" not in os.environ and has_room(MEMORY):
    os.environ["TMPDIR"] = tempfile.tempdir = MEMORY

LEFT_OUT = str(Path(__file__).with_name("left_out"))
sys.path.insert(0, LEFT_OUT)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (LEFT_OUT, os.environ.get("PYTHONPATH"))))


def pytest_collection_finish() -> None:
    """Tests run with the garbage collector, which skips what the collection has left."""
    gc.freeze()
    gc.enable()


WAITING = {"chaos", "dashboard", "deploy", "e2e", "record_log", "streamgauge"}
"""Folders with tests that start processes and wait for them."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order the files for parallel runs.

    Files that wait alternate with files that compute, so that the cores are busy. The many short ones are last, so that no
    worker is idle while another finishes a long file. The long ones of this folder itself are first.
    """
    here = Path(__file__).parent
    items.sort(key=lambda item: item.path.parent != here)
    files: tuple[dict[Path, list[pytest.Item]], ...] = ({}, {})
    for item in items:
        computes = WAITING.isdisjoint(item.path.relative_to(here).parts)
        files[computes].setdefault(item.path, []).append(item)
    pairs = zip_longest(*(found.values() for found in files), fillvalue=())
    items[:] = chain.from_iterable(chain.from_iterable(pairs))


@pytest.hookimpl(tryfirst=True)  # before fixtures
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("litellm") and not LITELLM.exists():
        pytest.skip("the LiteLLM proxy is not installed: make test-setup")


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
