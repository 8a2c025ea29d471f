"""Tests with a running tap run with native code and with Python code."""

from __future__ import annotations

import pytest

from streamgauge.ingest.tap.http.bodies import native_relay
from tests.ingest import running_tap


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if getattr(metafunc.module, "running_tap", None) is running_tap.running_tap:
        metafunc.parametrize(
            "relay", ["python", "native"], indirect=True, ids=["relay_python", "relay_native"]
        )


@pytest.fixture(autouse=True)
def relay(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Selects the implementation of the tap: --relay."""
    name: str = getattr(request, "param", "auto")
    if name == "native" and native_relay is None:
        pytest.skip("the native relay is not built: no C compiler")
    monkeypatch.setattr(running_tap, "default_relay", name)
