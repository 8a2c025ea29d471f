"""The tap: a reverse proxy that forwards every byte unchanged and records what passed.

The modules with a `.pxd` file beside their `.py` file can be compiled (`deploy/setup/native.py`). Python then prefers the compiled
ones. With STREAMGAUGE_INTERPRETED=1 it finds only the `.py` files, so there is no native relay either.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import PathEntryFinder
from importlib.machinery import SOURCE_SUFFIXES, ExtensionFileLoader, FileFinder, SourceFileLoader

_find_sources = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))


def _find_own_sources(folder: str) -> PathEntryFinder:
    if not folder.startswith(__path__[0]):
        raise ImportError  # the next hook finds its modules
    return _find_sources(folder)


if os.environ.get("STREAMGAUGE_INTERPRETED") == "1":
    sys.path_hooks.insert(0, _find_own_sources)


def is_compiled() -> bool:
    """Whether this process runs the compiled modules."""
    from streamgauge.ingest.tap.http import heads

    return heads.__spec__ is not None and isinstance(heads.__spec__.loader, ExtensionFileLoader)
