"""The SQL statements that create the tables, the views and their comments."""

from __future__ import annotations

import re
from importlib import resources
from string import Template

from streamgauge.analytics.schema import (
    budgets,
    dimensions,
    histogram_buckets,
    objectives,
    outcomes,
    prices,
    server_timing_names,
    strict_clients,
)
from streamgauge.analytics.schema.sql_quoting import literal

_DESCRIBED = re.compile(
    r"^-- (?P<text>[^\n]+)\nCREATE (?:OR REPLACE )?(?P<kind>TABLE|VIEW)(?: IF NOT EXISTS)? (?P<name>[\w.]+)(?P<body>.*?);$",
    re.DOTALL | re.MULTILINE,
)
_COLUMN = re.compile(r"(\w+) (?:MAP\([\w,]+\)|[\w\[\]]+)(?: NOT NULL)?,?(?: -- (.+))?")
_DESCRIPTION = re.compile(r" *--.*")


def statements() -> tuple[str, str, str]:
    """SQL of the tables, of the views, and of all comments. Run each in a separate transaction, in this order."""
    here = resources.files("streamgauge.analytics.schema")
    modules = (
        budgets, dimensions, outcomes, histogram_buckets, objectives, prices, server_timing_names, strict_clients,
    )  # fmt: skip
    constants = {name: value for module in modules for name, value in vars(module).items()}
    tables, views = (
        Template((here / f"{name}.sql").read_text()).substitute(constants) for name in ("schema", "views")
    )
    # Without the descriptions, because the text of the tables identifies the version of a store.
    return _DESCRIPTION.sub("", tables), _DESCRIPTION.sub("", views), comments(tables + views)


def comments(sql: str) -> str:
    """The comments of the described tables and views, and of all columns of the tables. Raises KeyError."""
    found, nearest = "", dict[str, str]()
    for text, kind, name, body in _DESCRIBED.findall(sql):
        found += f"COMMENT ON {kind} {name} IS {literal(text)};\n"
        for column, described in _COLUMN.findall(body) if kind == "TABLE" else ():
            nearest[column] = described or nearest[column]
            found += f"COMMENT ON COLUMN {name}.{column} IS {literal(nearest[column])};\n"
    return found
