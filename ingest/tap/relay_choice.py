"""Selection of the implementation: native code (`ingest/tap/native_*`) or Python code.

The native code is built if a C compiler is present, see `deploy/setup/native.py`.
"""

from __future__ import annotations

from typing import Literal

try:
    from streamgauge.ingest.tap import native_relay as native_relay
except ImportError:
    native_relay = None  # type: ignore[assignment]

Relay = Literal["auto", "native", "python"]


def uses_native_code(relay: Relay) -> bool:
    """Whether this choice selects the native code. Raises ValueError if `native` is required but not installed."""
    if relay == "native" and native_relay is None:
        raise ValueError(
            "cannot use --relay native: the native code is not installed. Install a wheel for this platform, run `make setup` "
            "with a C compiler, or pass --relay auto."
        )
    return relay != "python" and native_relay is not None
