"""Several taps on several hosts write to one topic: each row has the name and the clock of its tap."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.ingest.records import AnyRecord, Opened
from tests.analytics.stream_records import (
    SECOND_NS,
    START_NS,
    alive,
    interleave,
    rows_of,
    stream_id,
    whole_stream,
)

HOSTS = {
    "tokyo": (START_NS, 17),
    "oslo": (START_NS - 86_400 * SECOND_NS, 10**17),
    "lima": (START_NS + 3 * 86_400 * SECOND_NS, 1),
}
"""Wall clock and monotonic clock of each tap, days and years apart."""


def written_by(tap: str, numbers: range) -> list[list[AnyRecord]]:
    """Streams of one host, with the times of its clocks."""
    wall_ns, mono_ns = HOSTS[tap]
    streams = []
    for number in numbers:
        opened, *rest = whole_stream(
            stream_id(number, wall_ns), outputs=3 + number % 5, wall_ns=wall_ns + number, incarnation=tap
        )
        assert isinstance(opened, Opened)
        streams.append([msgspec.structs.replace(opened, tap=tap, mono_ns=mono_ns + number), *rest])
    return streams


def signs(tap: str) -> list[AnyRecord]:
    _, mono_ns = HOSTS[tap]
    return [alive(mono_ns / SECOND_NS + second, tap=tap, incarnation=tap) for second in range(0, 300, 5)]


def rows(records: list[AnyRecord]) -> dict[str, dict[str, Any]]:
    assembler = Assembler()
    for offset, record in enumerate(records):
        assembler.feed("0", offset, [record])
    return {row["stream_id"]: row for row in rows_of(assembler)}


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_several_taps_have_the_name_and_clock_of_their_tap(seed: int) -> None:
    sequences: list[list[AnyRecord]] = []
    alone: dict[str, dict[str, Any]] = {}
    for place, tap in enumerate(HOSTS):
        streams = written_by(tap, range(place * 20, place * 20 + 20))
        sequences += [*streams, signs(tap)]
        alone |= rows([record for stream in streams for record in stream])
    rng = random.Random(seed)
    rng.shuffle(sequences)
    together = rows(interleave(rng, sequences, width=12))
    assert together == alone
    assert {row["tap"] for row in together.values()} == set(HOSTS)
    assert {row["outcome"] for row in together.values()} == {"ok"}
    for row in together.values():
        wall_s = HOSTS[row["tap"]][0] / SECOND_NS
        assert abs(row["started_at"].timestamp() - wall_s) < 1  # the wall clock of its host
        assert 0 < row["ttft_ns"] < SECOND_NS  # the monotonic clock of its host
