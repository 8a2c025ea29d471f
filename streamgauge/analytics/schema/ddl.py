"""The SQL statements that create the tables, the views and their comments."""

from __future__ import annotations

import hashlib
import re
from string import Template

from streamgauge.analytics.schema import (
    budgets,
    dimensions,
    histogram_buckets,
    model_names,
    objectives,
    outcomes,
    prices,
    prompt_sizes,
    server_timing_names,
    strict_clients,
)
from streamgauge.analytics.schema.sql_quoting import literal
from streamgauge.analytics.schema.stream_columns import Histogram, values_of
from streamgauge.analytics.schema.tables import schema_sql

TABLES_VERSION = 4
"""Version of the tables, stored in the catalog. Add 1 if an older version of the program must not use them any more, and a step if
rows or names change (`streamgauge.analytics.storage.upgrade_steps`). More tables, columns and views need neither."""
_DESCRIBED = re.compile(
    r"^-- (?P<text>[^\n]+)\nCREATE (?:OR REPLACE )?(?P<kind>TABLE|VIEW)(?: IF NOT EXISTS)? (?P<name>[\w.]+)(?P<body>.*?);$",
    re.DOTALL | re.MULTILINE,
)
_VIEW = re.compile(r"^CREATE OR REPLACE VIEW ([\w.]+)", re.MULTILINE)
_COLUMN = re.compile(r"(\w+) (?:MAP\([\w,]+\)|[\w\[\]]+)(?: NOT NULL)?,?(?: -- (.+))?")
_DESCRIPTION = re.compile(r" *--.*")


def statements() -> tuple[str, str, str]:
    """SQL of the tables, of the views, and of all comments. Run each in a separate transaction, in this order."""
    modules = (
        budgets, dimensions, outcomes, histogram_buckets, model_names, objectives, prices, prompt_sizes, server_timing_names,
        strict_clients,
    )  # fmt: skip
    constants = {name: value for module in modules for name, value in vars(module).items()}
    constants |= _quantiles()
    constants |= {"TABLES_VERSION": TABLES_VERSION, "SCHEMA_DIGEST": schema_digest()}
    tables, views = (Template(text).substitute(constants) for text in _texts())
    described = comments(tables + views)
    # Without the descriptions, because the text of the tables identifies the version of a store. Without NOT NULL, which says what this
    # version writes: rows of former versions have NULL in later columns.
    tables = _DESCRIPTION.sub("", tables).replace(" NOT NULL", "")
    return tables, _DESCRIPTION.sub("", views), described


def _quantiles() -> dict[str, str]:
    """SQL of the quantiles of `latency_by_minute`, those of all gaps last."""
    of = {
        name: histogram.quantiles for name, histogram in values_of(Histogram).items() if histogram.quantiles
    }
    of["icl_ns"] = "p50 p95 p99"
    columns = [
        f"max({q}) FILTER (metric = '{name}') AS {name.removesuffix('_ns')}_{q}{'_ns' * name.endswith('_ns')}"
        for name, quantiles in of.items()
        for q in quantiles.split()
    ]
    return {"QUANTILES": ",\n    ".join(columns), "QUANTILE_METRICS": ", ".join(map(literal, of))}


def schema_digest() -> str:
    """A digest of the declared tables and views, with their descriptions."""
    return hashlib.sha256("".join(_texts()).encode()).hexdigest()


def _texts() -> list[str]:
    return [schema_sql(name) for name in ("schema", "views")]


def view_names(views: str) -> list[str]:
    """The names of the views, with the schema unless it is `main`."""
    return _VIEW.findall(views)


def comments(sql: str) -> str:
    """The comments of the described tables and views, and of all columns of the tables. Raises KeyError."""
    found, nearest = "", dict[str, str]()
    for text, kind, name, body in _DESCRIBED.findall(sql):
        found += f"COMMENT ON {kind} {name} IS {literal(text)};\n"
        for column, described in _COLUMN.findall(body) if kind == "TABLE" else ():
            nearest[column] = described or nearest[column]
            found += f"COMMENT ON COLUMN {name}.{column} IS {literal(nearest[column])};\n"
    return found
