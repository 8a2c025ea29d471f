"""A change as people read it."""

from __future__ import annotations

import pytest

from dashboard.metric_cards import change


@pytest.mark.parametrize(
    ("now", "before", "points", "said"),
    [
        (110, 100, False, "+10.0%"), (90, 100, False, "-10.0%"), (100.01, 100, False, 0), (2000, 100, False, "×20"),
        (0.07, 0.05, True, "+2.0 points"), (0.05, 0.07, True, "-2.0 points"), (0.05, 0.0, True, "+5.0 points"),
        (0.0501, 0.05, True, 0), (None, 1, False, None), (1, None, True, None), (1, 0, False, None),
    ],
)  # fmt: skip
def test_a_change_has_its_sign_and_unit(
    now: float | None, before: float | None, points: bool, said: object
) -> None:
    assert change(now, before, points=points) == said
