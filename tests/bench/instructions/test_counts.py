"""Instructions of the quick cases, and the page that shows the committed ones."""

from __future__ import annotations

import pytest

from bench.analytics.page import PAGE
from bench.instructions import callgrind, table
from bench.instructions.measured import QUICK, measured

ATTEMPTS = 3
"""A background thread of a library may run during a count, so a change has to appear in each."""


@pytest.mark.skipif(bool(callgrind.missing()), reason=callgrind.missing())
@pytest.mark.timeout(1800)
def test_quick_cases_take_the_committed_instructions() -> None:
    known = table.committed()
    assert known is not None
    if other := known.other_key():
        pytest.skip(f"instructions are not compared: {'; '.join(other)}")
    changed = QUICK
    for _ in range(ATTEMPTS):
        lines, changed = table.changes(known.figures, measured(changed)[0])
        if not changed:
            return
    hint = "Find out why, then write the new figures: python -m bench instructions --accept REASON"
    pytest.fail("\n".join([*lines, hint]))


def test_page_shows_the_committed_figures() -> None:
    known = table.committed()
    assert known is not None
    assert table.section(known) in PAGE.read_text()
