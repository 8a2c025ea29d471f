"""Random walks of an exchange between two peers, torn after each event (`exchange_walks`)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from tests.ingest.tap.exchange_walks import walks


async def test_walks_torn_at_any_point_end_once_with_one_cause_and_lose_no_byte():
    found = Counter[str]()
    for seed in range(1, 41):
        found += await walks(str(seed), every=5)
    assert found["walks"] == 480
    assert {
        "complete",
        "client_left",
        "upstream_reset",
        "tap_stopped",
        "bad_request",
        "connect_error",
    } <= found.keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_walks_for_ten_minutes():
    until_s, seed = time.monotonic() + 600, 1000
    while time.monotonic() < until_s:
        asyncio.run(walks(str(seed)))
        seed += 1
