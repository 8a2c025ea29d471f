"""The bench measures a compiled wheel only if it was built from the present source."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

import pytest

from bench.tap import servers


def test_compiled_wheel_is_used_only_if_its_source_matches(
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
