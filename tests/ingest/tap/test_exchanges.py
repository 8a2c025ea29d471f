"""Random exchanges through the tap give the same bytes as direct ones."""

from __future__ import annotations

import pytest

from streamgauge.ingest.tap.relay.choice import native_relay
from tests.ingest.exchanges import compare_many


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_exchanges_match_direct_responses(seed: int):
    seen = await compare_many(seed, 200)
    assert (seen["relayed"] > 20) == (native_relay is not None)
    kinds = (
        "length",
        "chunked",
        "close",
        "gzip",
        "br",
        "zstd",
        "fault reset",
        "fault truncated",
        "HEAD",
        "POST",
    )
    assert all(seen[kind] for kind in kinds), seen


@pytest.mark.slow
@pytest.mark.timeout(1800)
async def test_hundred_thousand_random_exchanges_match_direct_responses():
    for first in range(0, 100_000, 2000):
        await compare_many(1_000_000 + first, 2000)
