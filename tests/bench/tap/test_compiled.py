"""The bench takes a compiled wheel only where it is of the source that is measured beside it."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from bench.tap import servers


def test_a_wheel_of_this_source_is_unpacked_and_one_of_other_source_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servers, "ROOT", tmp_path)
    for name in ("dist", "ingest/tap", "run"):
        (tmp_path / name).mkdir(parents=True)
    source = tmp_path / "ingest" / "tap" / "exchange.py"
    source.write_text("now = 1\n")
    assert servers.compiled(tmp_path / "run") is None
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    with zipfile.ZipFile(tmp_path / "dist" / f"streamgauge-1-{tag}-{tag}-linux_any.whl", "w") as wheel:
        wheel.write(source, "ingest/tap/exchange.py")
        wheel.writestr("ingest/tap/exchange.so", b"")
    found = servers.compiled(tmp_path / "run")
    assert found is not None
    assert (found / "ingest" / "tap" / "exchange.so").exists()
    source.write_text("now = 2\n")
    assert servers.compiled(tmp_path / "run") is None
