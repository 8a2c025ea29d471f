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
    return tables, _COMMENT.sub("", views), comments + "".join(_COMMENT.findall(views))
