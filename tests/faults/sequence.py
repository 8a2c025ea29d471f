"""Fail the n-th call, for n = 1, 2, … until a run has no failure left."""

from __future__ import annotations

from collections.abc import Callable

from tests.faults.calls import Page

RUNS_PER_CHECK = 16
CLEAN_RUNS = 3
"""Runs without a failure that end a sequence: the number of calls depends on the times."""


def until_clean(
    page: Page, run: Callable[[int], None], check: Callable[[], None], *, first: int = 1, step: int = 1
) -> int:
    """Call `run` with n = `first`, `first` + `step`, …, which fails the n-th call, until nothing fails. Returns the number of runs
    with a failure.

    The runs share a data folder. `check` is called after several of them and after the last.
    """
    number, clean, failed = first, 0, list[str]()
    points = unchecked = 0
    try:
        while clean < CLEAN_RUNS:
            page.clear()
            run(number)
            unchecked += 1
            if page.failed:
                failed.append(f"{number}: {page.first}")
            clean, points = (0, points + 1) if page.failed else (clean + 1, points)
            if unchecked == RUNS_PER_CHECK or clean == CLEAN_RUNS:
                page.clear()
                check()
                unchecked, failed = 0, []
            number += step
    except BaseException as error:
        error.add_note(f"call {number}: {page.first}\nsince the last check: {failed}")
        raise
    return points
