"""The tap, the record log, and `ship`. This package forwards and records bytes; it does not interpret tokens.

`tap` forwards requests and writes `records` to the `record_log`: SQLite segments on this machine, or a Kafka topic.
`ship` moves the records of the segments to the topic, and `redaction` removes the text from them.

A module that has a `.pxd` file can be compiled (`deploy/setup/native.py`). Python then prefers the compiled one. With
STREAMGAUGE_INTERPRETED=1 it finds only the `.py` files, so there is no native relay either.
"""

from __future__ import annotations

import os
import sys
from importlib.abc import PathEntryFinder
from importlib.machinery import SOURCE_SUFFIXES, FileFinder, SourceFileLoader

_find_sources = FileFinder.path_hook((SourceFileLoader, SOURCE_SUFFIXES))


def _find_own_sources(folder: str) -> PathEntryFinder:
    if not folder.startswith(__path__[0]):
        raise ImportError  # the next hook finds its modules
    return _find_sources(folder)


if os.environ.get("STREAMGAUGE_INTERPRETED") == "1":
    sys.path_hooks.insert(0, _find_own_sources)
