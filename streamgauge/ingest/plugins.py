"""Plugins: objects of installed packages, found by entry points. docs/how-to/write-a-plugin.md lists the groups.

A plugin runs inside our processes with their rights. One that cannot be loaded is reported in one line and left out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import TypeVar

DIALECTS = "streamgauge.dialects"
SESSION_HEADERS = "streamgauge.session_headers"
ALERT_SINKS = "streamgauge.alert_sinks"
EXPORTERS = "streamgauge.exporters"

log = logging.getLogger(__name__)
T = TypeVar("T")


def load_plugins(group: str, check: Callable[[object], T]) -> dict[str, T]:
    """Name of the entry point → what `check` returns for its object, sorted by name.

    `check` raises for an object that is not a plugin of the group.
    """
    found: dict[str, T] = {}
    for point in sorted(entry_points(group=group), key=lambda point: (point.name, point.value)):
        try:
            if point.name in found:
                raise ValueError("another package has a plugin of this name")
            found[point.name] = check(point.load())
        except Exception as e:  # any code of any package
            why = " ".join(f"{type(e).__name__}: {e}".split())
            package = point.dist.name if point.dist is not None else point.value
            log.warning(
                "cannot load the plugin %s (%s) of %s: %s. Correct or uninstall the package",
                point.name, group, package, why[:300],
            )  # fmt: skip
    return found


def function(found: object) -> Callable[..., object]:
    """A check for plugins that are functions. Raises TypeError."""
    if not callable(found):
        raise TypeError(f"{found!r} is not a function")
    return found
