"""Comparison of counts with the committed ones."""

from __future__ import annotations

import shutil

import pytest

from bench.instructions import table
from bench.instructions.live import OF_LOOP, SHORT


@pytest.mark.parametrize(
    ("name", "gate"), [("decode: openai_chat", 0.02), (SHORT, 0.05), (SHORT + OF_LOOP, 0.05)]
)
@pytest.mark.parametrize("direction", [-1, 1])
def test_figure_outside_its_gate_is_a_change(name: str, gate: float, direction: int) -> None:
    for difference, expected in ((gate - 0.001, []), (gate + 0.001, [name])):
        lines, changed = table.changes({name: 1e5}, {name: 1e5 * (1 + direction * difference)})
        assert changed == expected
        assert ("above the gate" in lines[0]) == bool(expected)


def test_small_live_difference_is_noise() -> None:
    name = "chunk of a busy stream"
    assert table.changes({name: 100.0}, {name: 100.0 + table.LIVE_NOISE})[1] == []
    assert table.changes({name: 100.0}, {name: 101.0 + table.LIVE_NOISE})[1] == [name]


def test_figure_of_a_new_case_is_a_change() -> None:
    assert table.changes({}, {"new": 1.0}) == (["new: 0 → 1: above the gate of 2%"], ["new"])


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_other_version_of_a_library_is_another_key() -> None:
    known = table.Committed({**table.key(), "polars": "0"}, {}, {}, "")
    (line,) = known.other_key()
    assert line.startswith("polars: 0 when committed, ")
    assert not table.Committed(table.key(), {}, {}, "").other_key()
