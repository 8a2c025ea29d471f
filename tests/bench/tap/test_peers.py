"""Peers that cannot be installed are omitted from the bench."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.tap.peers import available, run_installer
from bench.tap.servers import Target


@contextlib.contextmanager
def present(folder: Path, upstream: int) -> Iterator[Target]:
    yield Target("present", upstream, [])


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["no-such-installer"], "no no-such-installer"),
        ([sys.executable, "-c", "raise SystemExit('reading\\nversion not available')"], "version not available"),
    ],
)  # fmt: skip
def test_peer_that_cannot_be_installed_is_omitted_with_one_line(
    argv: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    @contextlib.contextmanager
    def missing(folder: Path, upstream: int) -> Iterator[Target]:
        run_installer("Example", argv)
        yield Target("missing", upstream, [])

    with available((missing, present), tmp_path, 1) as found:
        assert [target.name for target in found] == ["present"]
    assert capsys.readouterr().err.splitlines()[-1] == f"bench tap: Example is omitted: {why}"
