"""Budgets of spend, as the table `budgets` has them and the view `budget_spend` compares them with the view `spend`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from streamgauge.analytics.schema.setting_rows import (
    Glob,
    LabelGlob,
    Severity,
    Text,
    TimeZone,
    changed,
    name_of,
)

MAX_BUDGETS = 100
RULE = "budget"
"""The rule of alerts about them."""
HISTORY_DAYS = 28
"""Whole weeks, because weekends differ."""
LEAST_DAYS = 3
"""Days with data from which there is a forecast."""
SPEND_WINDOWS = ("5m", "30m", "1h", "6h")
"""Windows of the burn rates."""
SPENT_DAYS = HISTORY_DAYS + 4
"""Days of spend that the view reads: the history, and the longest period with its time zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Budgets from the settings, replaced when analytics starts with other ones. A request counts in each budget that matches it."""

    name: Text = ""
    """Name. Unique."""  # by default the globs and the period
    model: Glob = "*"
    """Glob of the model: requested, else in the response."""
    gateway: Glob = "*"
    """Glob of the gateway."""
    client: Glob = "*"
    """Glob of the client's name or id."""
    label: LabelGlob = None
    """NAME=GLOB of a label's value. NULL: all requests."""
    period: Annotated[Literal["day", "week", "month"], Field(description="day, week or month")]
    """day, week (from Monday) or month."""
    amount: Annotated[float, Field(gt=0, allow_inf_nan=False, description="a number above 0")]
    """Amount per period."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", description="a currency code such as USD")]
    """Currency of the amount. Requests with a price in another one do not count."""
    time_zone: TimeZone = "UTC"
    """Time zone in which the periods begin."""
    severity: Severity = "page"
    """Highest severity of its alerts: page, ticket or none."""

    def __post_init__(self) -> None:
        if not self.name:
            globs = {"model": self.model, "gateway": self.gateway, "client": self.client}
            if self.label is not None:
                label, _, globs[label] = self.label.partition("=")
            object.__setattr__(self, "name", f"{name_of(globs)} per {self.period}")

    def __str__(self) -> str:
        """As JSON, as the setting `budgets` accepts it."""
        return json.dumps(self.table(), ensure_ascii=False)

    def table(self) -> dict[str, str | float]:
        """The keys and values of the budget's table in the configuration file."""
        return changed(self)
