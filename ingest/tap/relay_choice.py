"""Which code forwards bodies, reads heads and records short exchanges: the compiled one (`native_*`), or the one in Python.

The compiled code is built where a C compiler is present, see `deploy/setup/native.py`.
"""

from __future__ import annotations

from typing import Literal

try:
    from ingest.tap import native_relay as native_relay
except ImportError:
    native_relay = None  # type: ignore[assignment]

Relay = Literal["auto", "native", "python"]


def is_native(relay: Relay) -> bool:
    """Whether the choice means the native relay here. Raises ValueError if it is demanded and not installed."""
    if relay == "native" and native_relay is None:
        raise ValueError(
            "the native relay is not installed. Install a wheel for this platform, or run `make setup` with a C compiler; "
            "--relay auto uses Python without it"
        )
    return relay != "python" and native_relay is not None
