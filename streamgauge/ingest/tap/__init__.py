"""The tap: a reverse proxy that forwards every byte unchanged and records what passed."""

from __future__ import annotations

from importlib.machinery import ExtensionFileLoader


def is_compiled() -> bool:
    """Whether this process runs the compiled modules."""
    from streamgauge.ingest.http1 import heads

    return heads.__spec__ is not None and isinstance(heads.__spec__.loader, ExtensionFileLoader)
