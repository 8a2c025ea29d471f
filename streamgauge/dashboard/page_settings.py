"""Settings of the pages: the data folder, the store and the limit of stalls.

Streamlit runs the pages as scripts, so `launch` passes the settings in environment variables.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.storage.location import SQLITE
from streamgauge.ingest.guards import Guards, fault_lines
from streamgauge.ingest.private_files import write_private
from streamgauge.ingest.ready_file import part_of_up, read_ready_file, silence, written_faults

VIEWS_FILE = "saved-views.json"
MAX_VIEWS, MAX_NAME_CHARS, MAX_ADDRESS_CHARS = 50, 60, 8000
_VIEWS_LOCK = threading.Lock()
GUARDS = Guards()
"""The threads of the dashboard's process."""
ENV_DATA = "STREAMGAUGE_DATA"
ENV_STORE = "STREAMGAUGE_STORE"
ENV_STALL_FLOOR = "STREAMGAUGE_STALL_FLOOR"
ENV_STALL_FACTOR = "STREAMGAUGE_STALL_FACTOR"
ENV_SAVED_VIEWS = "STREAMGAUGE_SAVED_VIEWS"
ENV_OIDC = "STREAMGAUGE_DASHBOARD_OIDC"


def data_dir() -> Path:
    """The data folder."""
    return Path(os.environ.get(ENV_DATA, "streamgauge-data"))


def store() -> str:
    """The catalog of the tables: `sqlite`, or `postgres:DSN`."""
    return os.environ.get(ENV_STORE, SQLITE)


def stall_limit() -> StallLimit:
    """The limit of stalls. It holds for streams that analytics measures with the same settings."""
    default = StallLimit()
    return StallLimit(
        round(float(os.environ.get(ENV_STALL_FLOOR, default.floor_ns / 1e9)) * 1e9),
        float(os.environ.get(ENV_STALL_FACTOR, default.factor)),
    )


def saved_views() -> list[tuple[str, str]]:
    """Names and addresses of saved views: those of the settings, then those that readers saved."""
    return list((json.loads(os.environ.get(ENV_SAVED_VIEWS) or "{}") | own_views()).items())


def own_views() -> dict[str, str]:
    """Name → address of the views that readers saved. A file that cannot be read has none."""
    try:
        found = json.loads((data_dir() / VIEWS_FILE).read_text())
        return {str(name): str(address) for name, address in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def change_view(name: str, address: str | None) -> None:
    """Save a view for all readers, or remove it without an address. Raises OSError and ValueError with one line."""
    name = name.strip()
    if not 0 < len(name) <= MAX_NAME_CHARS or not name.isprintable():
        raise ValueError(f"a name has 1 to {MAX_NAME_CHARS} characters.")
    with _VIEWS_LOCK:
        views = {other: at for other, at in own_views().items() if other != name}
        if address is not None:
            views[name] = address
        if len(views) > MAX_VIEWS or len(address or "") > MAX_ADDRESS_CHARS:
            raise ValueError(f"at most {MAX_VIEWS} views of {MAX_ADDRESS_CHARS:,} characters are kept.")
        write_private(data_dir() / VIEWS_FILE, json.dumps(views, indent=1).encode())


def waits_for() -> str | None:
    """What the pages wait for, if analytics is starting or does not respond."""
    started = part_of_up(data_dir(), "analyze")
    ready = read_ready_file(data_dir() / "run" / "analyze.json")
    if started is not None and (ready is None or ready["pid"] != started["pid"]):
        return "Analytics is starting: it opens the store and continues in the record log."
    return silence(data_dir(), "analyze")


def tap_address() -> str | None:
    """The address of the tap that runs on the data folder, or None."""
    address = (read_ready_file(data_dir() / "run" / "tap.json") or {}).get("listen")
    return address if isinstance(address, str) else None


def faults() -> list[str]:
    """A line for each thread or loop at fault, of the parts that use this data folder."""
    return [
        f"{part}: {line}"
        for part in ("tap", "ship", "analyze", "serve", "dashboard")
        for line in fault_lines(written_faults(data_dir(), part))
    ]
