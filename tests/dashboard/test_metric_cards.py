"""The text of a change from the previous period."""

from __future__ import annotations

import pytest

from streamgauge.dashboard.panels import change_text


@pytest.mark.parametrize(
    ("now", "before", "is_share", "text"),
    [
        (110, 100, False, "+10.0%"), (90, 100, False, "-10.0%"), (100.01, 100, False, 0), (2000, 100, False, "×20"),
        (0.07, 0.05, True, "+2.0 points"), (0.05, 0.07, True, "-2.0 points"), (0.05, 0.0, True, "+5.0 points"),
        (0.0501, 0.05, True, 0), (None, 1, False, None), (1, None, True, None), (1, 0, False, None),
    ],
)  # fmt: skip
def test_change_has_sign_and_unit(
    now: float | None, before: float | None, is_share: bool, text: object
) -> None:
    assert change_text(now, before, is_share=is_share) == text
