"""Metric cards: a number with its change from the previous period.

Colours mean states. A tile with an objective has the colour of the objective's state. A change is grey unless it is outside the
noise: beyond 1.96 standard errors of the difference (95 %), with enough streams in both periods.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Literal

import streamlit as st

from streamgauge.analytics.reports import formatting

Summary = Mapping[str, float | None]
Worse = Literal["up", "down", "none"]
"""The direction of a worsening change. "none": neither direction is worse."""
NORMAL_95 = 1.96
"""Standard errors that a change exceeds by chance in 5 % of the cases."""
MIN_COUNTED = 30
MIN_BEYOND = 10
"""Least streams of a rate, and least streams beyond a quantile, for which a change is judged."""
MIN_CHANGE = 0.0005
"""Smaller changes are shown as no change."""
FACTOR_FROM = 10.0
"""Larger relative changes are shown as a factor."""


def card(
    label: str,
    value: str,
    *,
    help_text: str,
    now: float | None = None,
    before: float | None = None,
    before_text: str | None = None,
    is_share: bool = False,
    worse: Worse = "up",
    outside_noise: bool = False,
    border: bool = True,
) -> None:
    """Draw a card.

    `now` and `before` give the change; the change of a share is in percentage points. A change outside the noise is orange if it
    is `worse`, else blue.
    """
    rose = (now or 0) > (before or 0)
    is_worse = worse != "none" and (worse == "up") == rose
    st.metric(
        label,
        value,
        delta=change_text(now, before, is_share=is_share),
        delta_color=("orange" if is_worse else "blue") if outside_noise else "off",
        help=help_text if before_text is None else f"{help_text} Previous period: {before_text}.",
        border=border,
        height="stretch" if border else "content",
    )


@contextmanager
def tile(key: str, state: str) -> Iterator[None]:
    """A box with the colour of a state of `health`: met, missed or unknown. `key` is unique on the page."""
    with st.container(border=True, height="stretch", gap="xxsmall", key=f"objective-{state}-{key}"):
        yield


def rate_outside_noise(now: Summary, before: Summary, events: str, counted: str) -> bool:
    """Whether the share `events` / `counted` of two summaries differs by more than chance."""
    k, n, k2, n2 = (float(s.get(c) or 0) for s in (now, before) for c in (events, counted))
    if min(n, n2) < MIN_COUNTED:
        return False
    pooled = (k + k2) / (n + n2)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / n2))
    return error > 0 and abs(k / n - k2 / n2) > NORMAL_95 * error


def p95_outside_noise(now: Summary, before: Summary, metric: str) -> bool:
    """Whether a 95th percentile of two summaries differs by more than chance.

    The standard error of a quantile is sqrt(q (1 - q) / n) / density. The density comes from the 90th and the 98th percentile:
    columns `<metric>_n, <metric>_p90_ns, <metric>_p95_ns, <metric>_p98_ns`.
    """
    variance, values = 0.0, []
    for summary in (now, before):
        n = summary.get(f"{metric}_n") or 0
        p90, p95, p98 = (summary.get(f"{metric}_{q}_ns") for q in ("p90", "p95", "p98"))
        if n * 0.05 < MIN_BEYOND or p90 is None or p95 is None or p98 is None:
            return False
        variance += 0.95 * 0.05 / n * ((p98 - p90) / 0.08) ** 2
        values.append(p95)
    return abs(values[0] - values[1]) > NORMAL_95 * math.sqrt(variance)


def change_text(now: float | None, before: float | None, *, is_share: bool = False) -> str | int | None:
    """The change for `st.metric`: a text that begins with its sign, 0 for no change, None for unknown."""
    if is_share and now is not None and before is not None:
        return 0 if abs(now - before) < MIN_CHANGE else f"{(now - before) * 100:+.1f} points"
    relative = formatting.change(now, before)
    if relative is None:
        return None
    if abs(relative) < MIN_CHANGE:
        return 0
    return f"{relative:+.1%}" if relative < FACTOR_FROM else f"×{relative + 1:,.0f}"
