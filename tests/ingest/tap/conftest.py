"""Tests that replace methods need the interpreted code: those of compiled classes cannot be replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamgauge import ingest
from streamgauge.ingest import tap


def is_outdated(module: Path) -> bool:
    """Whether a module with this source has not been compiled since a change."""
    sources = module.parent.glob(f"{module.stem}.p*")
    compiled = [path.stat().st_mtime for path in module.parent.glob(f"{module.stem}.*.so")]
    return not compiled or max(path.stat().st_mtime for path in sources) > compiled[0]


modules = Path(ingest.__path__[0]).rglob("*.py*")
if tap.is_compiled() and any(
    is_outdated(path) for path in modules if path.suffix == ".pyx" or path.with_suffix(".pxd").exists()
):
    raise pytest.UsageError(
        "sources of compiled modules have changed. Run .venv/bin/python deploy/setup/native.py"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("interpreted") is not None and tap.is_compiled():
        pytest.skip("needs STREAMGAUGE_INTERPRETED=1")
