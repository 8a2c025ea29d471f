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
from typing import Annotated

from pydantic import Field

from streamgauge.analytics.schema.outcomes import NOT_ERRORS, OK
from streamgauge.analytics.schema.setting_rows import Glob, Severity, Text, changed, name_of

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
    """Objectives from the settings, replaced when analytics starts with other ones. A stream has the first that matches."""

    name: Text = ""
    """Name, as in streams.objective."""  # by default the globs
    model: Glob = "*"
    """Glob of the model: requested, else in the response."""
    gateway: Glob = "*"
    """Glob of the gateway."""
    client: Glob = "*"
    """Glob of client_id."""
    ttft_ns: int | None = None
    """Limit of the time to first token in ns. NULL: no limit, also below."""
    itl_ns: int | None = None
    """Limit of the inter-token latency in ns."""
    error_rate: Annotated[
        float | None, Field(ge=0, le=1, allow_inf_nan=False, description="a share from 0 to 1")
    ] = None
    """Highest share of failed streams: the error budget of the errors."""
    goodput: Annotated[
        float | None, Field(ge=0, lt=1, allow_inf_nan=False, description="a share from 0 to less than 1")
    ] = None
    """Lowest share of streams that meet the objective. 1 - goodput is the error budget of the misses."""
    severity: Severity = "page"
    """Highest severity of alerts about missing it: page, ticket or none."""
    label: Glob = "*"
    """Glob of one of the labels as NAME=VALUE."""  # `*` also matches streams without labels

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", name_of({key: getattr(self, key) for key in GLOBS}))

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
        return {
            # Durations are texts with their unit.
            key.removesuffix("_ns"): f"{value / 1e6:.6f}".rstrip("0").rstrip(".") + "ms"
            if key.endswith("_ns")
            else value
            for key, value in changed(self).items()
        }


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
