"""Fixtures of the tap's tests."""

from __future__ import annotations

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    """Async tests run on uvloop, as the tap does."""
    return "asyncio", {"use_uvloop": True}
