"""Identifiers and the time in a UUIDv7."""

from __future__ import annotations

import os
import uuid
from datetime import UTC, datetime

import pytest

from streamgauge.ingest import generated_ids
from streamgauge.ingest.generated_ids import random_hex, smallest_uuid7, uuid7, uuid7_wall_ns

MS = 1_000_000
WALL_NS = 1_790_000_000_123_456_789


def test_uuid7_has_the_version_the_variant_and_its_time_in_milliseconds():
    made = [uuid7(WALL_NS) for _ in range(1000)]
    assert len(set(made)) == len(made)
    assert {uuid.UUID(one).version for one in made} == {7}
    assert {uuid.UUID(one).variant for one in made} == {uuid.RFC_4122}
    assert {uuid7_wall_ns(one) for one in made} == {WALL_NS // MS * MS}


def test_ids_share_no_random_digits(monkeypatch: pytest.MonkeyPatch):
    """Each id takes the next 18 digits of the random source: here those of one number each."""
    random_hex(2 * generated_ids._BLOCK_BYTES)  # uses up the digits that are left
    monkeypatch.setattr(
        os, "urandom", lambda size: bytes.fromhex("".join(f"{n:018x}" for n in range(size)))[:size]
    )
    made = [uuid7(WALL_NS) for _ in range(400)]
    assert [int(one[15:18] + one[20:23] + one[24:], 16) for one in made] == list(range(400))


def test_smallest_uuid7_is_a_lower_bound_of_its_millisecond():
    at = datetime(2026, 1, 2, tzinfo=UTC).timestamp()
    assert smallest_uuid7(at) == "019b7c01-0400-0000-0000-000000000000"
    assert smallest_uuid7(at + 0.001) == "019b7c01-0401-0000-0000-000000000000"
    assert smallest_uuid7(-5) == "00000000-0000-0000-0000-000000000000"
    ms = int(at * 1000)
    assert uuid7((ms - 1) * MS) < smallest_uuid7(at) < uuid7(ms * MS)
