"""Streamgauge: query, decode and measure streams of LLM gateways. Also the `streamgauge` command.

    import streamgauge as sg

    con = sg.connect()                       # the tables, read-only
    con.sql("FROM errors_by_minute").pl()    # a DuckDB relation: .pl(), .df(), .fetchall(), …
    sg.read("body.sse").text                 # decode a recorded response
    sg.measure(con.sql("FROM events WHERE stream_id = '…'"))

The import loads nothing else. Each name is imported when it is used first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from streamgauge.analytics.query.query_errors import (
        QueryError,
        QueryRejected,
        QueryTimeout,
        StoreUnavailable,
    )
    from streamgauge.python_api.recorded_response import Response, UnreadableResponse, read
    from streamgauge.python_api.sql_connection import Connection, connect
    from streamgauge.python_api.stream_measures import Event, Measures, UnmeasurableEvents, measure

__version__ = "0.1.0"

__all__ = [
    "Connection",
    "Event",
    "Measures",
    "QueryError",
    "QueryRejected",
    "QueryTimeout",
    "Response",
    "StoreUnavailable",
    "UnmeasurableEvents",
    "UnreadableResponse",
    "connect",
    "measure",
    "read",
]

_MODULES = {
    "streamgauge.analytics.query.query_errors": (
        "QueryError",
        "QueryRejected",
        "QueryTimeout",
        "StoreUnavailable",
    ),
    "streamgauge.python_api.recorded_response": ("Response", "UnreadableResponse", "read"),
    "streamgauge.python_api.sql_connection": ("Connection", "connect"),
    "streamgauge.python_api.stream_measures": ("Event", "Measures", "UnmeasurableEvents", "measure"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'streamgauge' has no attribute {name!r}")
    try:
        found = globals()[name] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as e:
        from streamgauge.analytics.extras import extra_of, missing_package

        if extra_of(e.name) is None:
            raise
        raise ImportError(f"cannot use streamgauge.{name}: {missing_package(e.name)}", name=e.name) from e
    return found


def __dir__() -> list[str]:
    return sorted(("__version__", *__all__))
