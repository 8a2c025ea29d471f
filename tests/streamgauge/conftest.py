"""A data folder that several files read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from streamgauge.analytics.query import query_pool
from streamgauge.analytics.query.reader import Reader
from streamgauge.analytics.storage.location import StoreLocation
from tests.streamgauge.stored import analyse, write_streams


@pytest.fixture(scope="session")
def three_streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder named `streamgauge-data` with three streams of ten chunks. Tests only read it."""
    data = tmp_path_factory.mktemp("stored") / "streamgauge-data"
    write_streams(data, range(3))
    analyse(data)
    return data


@pytest.fixture
def reads_in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """`status` and `sql` read the store without a process of their own, which takes three times as long to start."""

    def reader(location: StoreLocation, *, untrusted: bool, others: Sequence[StoreLocation]) -> Reader:
        assert not untrusted
        return Reader(location, others=others)

    monkeypatch.setattr(query_pool, "QueryPool", reader)
