"""The dialects, one module per wire format, and the parts that they share."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from streamgauge.analytics.dialects.dialect import Dialect


@cache
def all_dialects() -> tuple[Dialect, ...]:
    """Every `Dialect` at the top level of a module of this package, and those of plugins, sorted by name."""
    from streamgauge.analytics.dialects.plugin_dialects import plugin_dialects

    modules = [importlib.import_module(f"{__name__}.{info.name}") for info in pkgutil.iter_modules(__path__)]
    dialects = [value for module in modules for value in vars(module).values() if isinstance(value, Dialect)]
    dialects += plugin_dialects([dialect.name for dialect in dialects])
    return tuple(sorted(dialects, key=lambda dialect: dialect.name))
