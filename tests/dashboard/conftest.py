"""Data folders with and without generated streams, and a dashboard over the streams."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest

from tests.dashboard.generated_incident import with_incident
from tests.dashboard.generated_store import filled, filling, insert
from tests.dashboard.generated_traces import insert_traces
from tests.dashboard.running_dashboard import Dashboard, running


@pytest.fixture(scope="session")
def streams_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with 400 streams of the last two hours, and traces of other services."""
    data = filled(tmp_path_factory.mktemp("streams"), streams=400)
    with filling(data) as connection:
        insert_traces(connection, datetime.now(UTC) - timedelta(minutes=30))
    return data


@pytest.fixture(scope="session")
def empty_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with empty tables."""
    return filled(tmp_path_factory.mktemp("empty"))


@pytest.fixture(scope="session")
def one_stream(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with one stream: no events, hops, session or spans."""
    data = tmp_path_factory.mktemp("one-stream")
    row = {"stream_id": UUID(int=1), "started_at": datetime.now(UTC), "outcome": "ok"}
    with filling(data) as connection:
        insert(connection, "streams", [row])
    return data


@pytest.fixture(scope="session")
def no_tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder without tables. Tests write nothing there, so they share the processes that query it."""
    return tmp_path_factory.mktemp("no-tables")


@pytest.fixture(scope="session")
def dashboard(streams_data: Path) -> Iterator[Dashboard]:
    """A running dashboard over `streams_data`."""
    with running(streams_data) as found:
        yield found


@pytest.fixture(scope="session")
def incident(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, datetime]:
    """A data folder with an incident, and its onset."""
    return with_incident(tmp_path_factory.mktemp("incident"))
