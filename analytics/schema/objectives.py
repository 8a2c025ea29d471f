"""Objectives: which one a stream has, and whether the stream meets it. No I/O, no clock.

Rules
1. A stream has the first objective, in order, whose globs match its model, gateway, client id and one of its labels as NAME=VALUE. A
   glob has `*` and `?` and respects case. An unknown value is the empty text.
2. `meets` is True if the outcome is ok and every limit is known to be met, False if the stream failed or is known to miss a
   limit, else None. Goodput counts only True, so that an unknown metric is a miss.
3. An error budget is the share of counted streams that may fail (`error_rate`) or not meet the objective (1 - `goodput`). The
   burn rate is the share that did, divided by the budget.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from typing import Literal

from streamgauge.analytics.schema.outcomes import NOT_ERRORS, OK

MAX_OBJECTIVES = 100
_MAX_CACHED = 10_000
"""Combinations of model, gateway, client and matching globs of labels. Beyond it the cache is cleared."""

BURN_WINDOWS = {"5m": 5, "30m": 30, "1h": 60, "6h": 360, "3d": 4320}
"""Windows of the view `burn_rates`, in minutes."""
FAST_BURN, SLOW_BURN, STEADY_BURN = 14.4, 6, 1
"""Burn rates that spend 2 % of a budget of 30 days in 1 h, 5 % in 6 h, and 10 % in 3 days."""
LEAST_BAD = 5
"""Fewer bad streams in the longer window are no burn: with little traffic one error would be."""
BUDGET_DAYS = 30
BURN_SUMS = ",\n        ".join(
    f"sum({column}) FILTER (minute > now() - INTERVAL {minutes} MINUTE)::BIGINT AS {column}_{window}"
    for window, minutes in BURN_WINDOWS.items()
    for column in ("counted", "bad")
)
BURN_RATES = ", ".join(
    f"bad_{window} / nullif(counted_{window}, 0) / budget AS burn_{window}" for window in BURN_WINDOWS
)
BURN_COLUMNS = ", ".join(f"burn_{window}" for window in BURN_WINDOWS)
"""SQL of the view: counted and bad streams, burn rates, and their columns, by window."""


@dataclass(frozen=True, slots=True)
class Objective:
    """Limits for the streams that the globs match. None: no limit."""

    name: str
    model: str = "*"
    gateway: str = "*"
    client: str = "*"
    ttft_ns: int | None = None
    itl_ns: int | None = None
    error_rate: float | None = None
    """Highest share of failed streams."""
    goodput: float | None = None
    """Lowest share of streams that meet the objective."""
    severity: Literal["page", "ticket", "none"] = "page"
    """Highest severity of alerts about missing it."""
    label: str = "*"
    """`*` also matches streams without labels."""

    def matches(
        self, model: str | None, gateway: str | None, client: str | None, labels: Collection[str] = ()
    ) -> bool:
        """`labels`: the globs of labels that match the stream."""
        return (
            (self.label == "*" or self.label in labels)
            and fnmatchcase(model or "", self.model)
            and fnmatchcase(gateway or "", self.gateway)
            and fnmatchcase(client or "", self.client)
        )

    def meets(self, outcome: str, ttft_ns: float | None, itl_ns: float | None) -> bool | None:
        """Whether a stream meets the objective (rule 2)."""
        unknown = outcome != OK
        for limit, value in ((self.ttft_ns, ttft_ns), (self.itl_ns, itl_ns)):
            if limit is not None:
                if value is None:
                    unknown = True
                elif value > limit:
                    return False
        if outcome not in NOT_ERRORS:
            return False
        return None if unknown else True

    def __str__(self) -> str:
        """As JSON, as the setting `objectives` accepts it."""
        return json.dumps(self.table(), ensure_ascii=False)

    def table(self) -> dict[str, str | float]:
        """The keys and values of the objective's table in the configuration file."""
        found: dict[str, str | float] = {"name": self.name}
        found |= {key: glob for key in GLOBS if (glob := getattr(self, key)) != "*"}
        for key, limit_ns in (("ttft", self.ttft_ns), ("itl", self.itl_ns)):
            if limit_ns is not None:
                found[key] = f"{limit_ns / 1e6:.6f}".rstrip("0").rstrip(".") + "ms"
        found |= {
            key: share for key in ("error_rate", "goodput") if (share := getattr(self, key)) is not None
        }
        if self.severity != "page":
            found["severity"] = self.severity
        return found


GLOBS = ("model", "gateway", "client", "label")
COLUMNS = tuple(field.name for field in fields(Objective))
"""Columns of the table `objectives`, after `priority`."""
LIMITS = ("ttft_ns", "itl_ns", "error_rate", "goodput")
DEFAULT = Objective("default", ttft_ns=2_000_000_000, itl_ns=100_000_000, error_rate=0.05)
"""The objective of streams that match no other one."""


class Objectives:
    """Finds the objective of streams. Bounded cache, not thread-safe."""

    def __init__(self, objectives: Sequence[Objective] = (DEFAULT,)) -> None:
        self.rows = tuple(objectives)
        self._labels = frozenset(o.label for o in objectives) - {"*"}
        self._found: dict[tuple[str | None, str | None, str | None, frozenset[str]], Objective | None] = {}

    def of(
        self,
        model: str | None,
        gateway: str | None,
        client: str | None,
        labels: Mapping[str, str] | None = None,
    ) -> Objective | None:
        """The first objective that matches, None without one."""
        texts = [f"{name}={value}" for name, value in labels.items()] if labels and self._labels else ()
        matching = frozenset(glob for glob in self._labels if any(fnmatchcase(text, glob) for text in texts))
        key = (model, gateway, client, matching)
        if key not in self._found:
            if len(self._found) >= _MAX_CACHED:
                self._found.clear()
            self._found[key] = next((o for o in self.rows if o.matches(*key)), None)
        return self._found[key]
