"""Tests that replace methods need the interpreted code: those of compiled classes cannot be replaced."""

from __future__ import annotations

import pytest

from streamgauge.ingest.tap import is_compiled


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("interpreted") is not None and is_compiled():
        pytest.skip("needs STREAMGAUGE_INTERPRETED=1")
