"""Check the options of a tap before anything starts: `tap`, `up` and `config check` call the same function."""

from __future__ import annotations

from streamgauge.ingest.listening import same_address
from streamgauge.ingest.tap.connections.tls import client_context, upstream_context
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.tap.relay.choice import uses_native_code


def check_options(options: TapOptions) -> None:
    """Raise ValueError, with one line, if a tap with these options cannot start. Reads the certificates; opens no socket."""
    if not options.upstreams:
        raise ValueError("no upstream is configured. Pass one, for example --upstream http://localhost:4000.")
    client_context(options)
    upstream_context(options)  # even if no upstream uses https
    uses_native_code(options.relay)
    if same_address(options.listen, options.admin):
        raise ValueError(
            f"--listen {options.listen} and --admin {options.admin} are the same address. Give them different ports."
        )
