"""`streamgauge compact`: it makes the file small, unless somebody owns it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from analytics.storage.folder import own
from analytics.storage.store import FILE
from streamgauge.compact import compact_command
from tests.analytics.storage.test_compact import mostly_free


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    former = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


def test_it_makes_the_file_small(tmp_path: Path) -> None:
    path = mostly_free(tmp_path / FILE, 400_000, rows_in_all=False)
    size = path.stat().st_size
    found = CliRunner().invoke(compact_command, ["--data", str(tmp_path)], standalone_mode=False)
    assert found.return_value == 0, found.output
    assert path.stat().st_size < size / 2


def test_it_leaves_tables_alone_that_are_in_use_or_not_there(tmp_path: Path) -> None:
    assert CliRunner().invoke(compact_command, ["--data", str(tmp_path)]).exit_code == 1
    path = mostly_free(tmp_path / FILE, 1000, rows_in_all=False)
    before = path.read_bytes()
    with own(tmp_path):
        found = CliRunner().invoke(compact_command, ["--data", str(tmp_path)])
    assert "owns the data folder" in str(found.exception)
    assert path.read_bytes() == before
