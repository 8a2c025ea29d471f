"""Data folders with and without generated streams."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.dashboard.generated_store import filled, filling
from tests.dashboard.generated_traces import insert_traces


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
