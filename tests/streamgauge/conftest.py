"""A data folder that several files read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streamgauge.stored import analyse, write_streams


@pytest.fixture(scope="session")
def three_streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder named `streamgauge-data` with three streams of ten chunks. Tests only read it."""
    data = tmp_path_factory.mktemp("stored") / "streamgauge-data"
    write_streams(data, range(3))
    analyse(data)
    return data
