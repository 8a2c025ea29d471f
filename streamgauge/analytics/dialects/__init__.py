"""The dialects, one module per wire format, and the parts that they share."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from types import ModuleType

from streamgauge.analytics.dialects.dialect import Dialect


def dialect_modules() -> list[ModuleType]:
    """The modules of this package, sorted by name."""
    return [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]


@cache
def all_dialects() -> tuple[Dialect, ...]:
    """Every `Dialect` at the top level of a module of this package, and those of plugins, sorted by name."""
    from streamgauge.analytics.dialects.plugin_dialects import plugin_dialects

    found = [value for of in dialect_modules() for value in vars(of).values() if isinstance(value, Dialect)]
    found += plugin_dialects([dialect.name for dialect in found])
    return tuple(sorted(found, key=lambda dialect: dialect.name))
