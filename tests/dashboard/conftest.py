"""One data folder with generated streams, and one without any, each served by the real read side."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.river import served


@pytest.fixture(scope="session")
def river(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A served data folder with 400 streams of the last two hours."""
    data = tmp_path_factory.mktemp("river")
    with served(data, streams=400):
        yield data


@pytest.fixture(scope="session")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A served data folder whose tables are empty."""
    data = tmp_path_factory.mktemp("dry")
    with served(data):
        yield data
