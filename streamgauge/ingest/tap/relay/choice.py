"""Selection of the implementation: native code (`native_*`) or Python code.

The native code is built if a C compiler is present, see `deploy/setup/native.py`.
"""

from __future__ import annotations

from streamgauge.ingest.tap.options import Relay

try:
    from streamgauge.ingest.tap.relay import native_relay as native_relay  # type: ignore[attr-defined] # an extension module
except ImportError:
    native_relay = None


def uses_native_code(relay: Relay) -> bool:
    """Whether this choice selects the native code. Raises ValueError if `native` is required but not installed."""
    if relay == "native" and native_relay is None:
        raise ValueError(
            "cannot use --relay native: the native code is not installed. Install a wheel for this platform, run `make setup` "
            "with a C compiler, or pass --relay auto."
        )
    return relay != "python" and native_relay is not None
