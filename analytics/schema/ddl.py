"""The SQL statements that create the tables, the views and their comments."""

from __future__ import annotations

import re
from importlib import resources
from string import Template

from streamgauge.analytics.schema import (
    dimensions,
    histogram_buckets,
    objectives,
    outcomes,
    server_timing_names,
)
from streamgauge.analytics.schema.tables import TABLES

_COMMENT = re.compile(r"^COMMENT ON .*?;\n", flags=re.DOTALL | re.MULTILINE)


def statements() -> tuple[str, str, str]:
    """SQL of the tables, of the views, and of all comments. Run each in a separate transaction, in this order."""
    here = resources.files("streamgauge.analytics.schema")
    modules = (dimensions, outcomes, histogram_buckets, objectives, server_timing_names)
    constants = {name: value for module in modules for name, value in vars(module).items()}
    tables, views, comments = (
        Template((here / f"{name}.sql").read_text()).substitute(constants)
        for name in ("schema", "views", "comments")
    )
    comments += "".join(_COMMENT.findall(views)) + _shared_comments(comments)
    return tables, _COMMENT.sub("", views), comments


def _shared_comments(comments: str) -> str:
    """Comments of the columns without one: that of the same column of the nearest table before. Raises KeyError."""
    found = dict(re.findall(r"^COMMENT ON COLUMN (\S+) IS ('.*');$", comments, re.MULTILINE))
    nearest: dict[str, str] = {}
    shared = ""
    for table in TABLES:
        for column in table.types:
            name = f"{table.name}.{column}"
            if name in found:
                nearest[column] = found[name]
            else:
                shared += f"COMMENT ON COLUMN {name} IS {nearest[column]};\n"
    return shared
