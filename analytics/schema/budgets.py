"""Budgets of spend, as the table `budgets` has them and the view `budget_spend` compares them with the view `spend`."""

from __future__ import annotations

import json
from dataclasses import MISSING, dataclass, fields
from typing import Literal

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
    """An amount for the requests that the globs match, in each period."""

    name: str
    model: str = "*"
    gateway: str = "*"
    client: str = "*"
    """Of the client's name or id."""
    label: str | None = None
    """`NAME=GLOB` of a label's value. None: all."""
    period: Literal["day", "week", "month"] = "month"
    amount: float
    currency: str
    time_zone: str = "UTC"
    """In which periods begin. Weeks begin on Monday."""
    severity: Literal["page", "ticket", "none"] = "page"
    """Highest severity of its alerts."""

    def __str__(self) -> str:
        """As JSON, as the setting `budgets` accepts it."""
        return json.dumps(self.table(), ensure_ascii=False)

    def table(self) -> dict[str, str | float]:
        """The keys and values of the budget's table in the configuration file."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        return {key: value for key, value in values.items() if key == "period" or defaults.get(key) != value}
