"""Files are read in pieces without their compression, up to the first fault or the limit."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path

import pytest
import zstandard

from streamgauge.ingest import input_file
from streamgauge.ingest.input_file import InputFile

CONTENT = os.urandom(200_000) + b"x" * 300_000
CODINGS = {
    "plain": lambda data: data,
    "gzip": gzip.compress,
    "zstd": zstandard.compress,
    "two members": lambda data: gzip.compress(data[:70_000]) + gzip.compress(data[70_000:]),
    "two frames": lambda data: zstandard.compress(data[:70_000]) + zstandard.compress(data[70_000:]),
}


def read(path: Path, content: bytes) -> tuple[bytes, str | None, list[tuple[int, int]]]:
    path.write_bytes(content)
    steps: list[tuple[int, int]] = []
    with InputFile(path, lambda *step: steps.append(step)) as source:
        pieces = iter(lambda: source.read(1 << 18), b"")
        return b"".join(piece for piece in pieces if piece), source.problem, steps


@pytest.mark.parametrize("name", CODINGS)
def test_whole_file_is_read_and_progress_ends_at_its_size(tmp_path: Path, name: str) -> None:
    content = CODINGS[name](CONTENT)
    found, problem, steps = read(tmp_path / "file", content)
    assert (found == CONTENT, problem) == (True, None)
    assert steps[-1] == (len(content), len(content))
    assert steps == sorted(steps)
    with InputFile(tmp_path / "file") as source, io.BufferedReader(source) as reader:
        assert (reader.peek(4)[:4], reader.read(9), reader.read()) == (CONTENT[:4], CONTENT[:9], CONTENT[9:])


@pytest.mark.parametrize("name", ["gzip", "zstd", "two members", "two frames"])
def test_damage_is_named_and_what_is_before_it_is_read(tmp_path: Path, name: str) -> None:
    content = CODINGS[name](CONTENT)
    found, problem, _ = read(tmp_path / "file", content[:-9])
    assert CONTENT.startswith(found)
    assert "data is damaged: " in str(problem)
    changed = content[:-5000] + bytes(reversed(content[-5000:]))
    assert "data is damaged: " in str(read(tmp_path / "file", changed)[1])


@pytest.mark.parametrize("name", ["gzip", "zstd"])
def test_compressed_file_is_read_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(input_file, "EXPANDED_BYTES", 2**20)
    content = CODINGS[name](bytes(50 * 2**20))
    found, problem, _ = read(tmp_path / "file", content)
    assert len(found) == max(2**20, 200 * len(content))
    assert "expands to more than" in str(problem)
    monkeypatch.setattr(input_file, "MAX_RATIO", 1_000_000)
    assert read(tmp_path / "file", content)[1] is None
