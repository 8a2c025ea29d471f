"""Data folders with and without generated streams."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboard.generated_store import filled


@pytest.fixture(scope="session")
def streams_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with 400 streams of the last two hours."""
    return filled(tmp_path_factory.mktemp("streams"), streams=400)


@pytest.fixture(scope="session")
def empty_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with empty tables."""
    return filled(tmp_path_factory.mktemp("empty"))
