"""`streamgauge compact`: write the tables' file anew without its free space, while analytics is stopped, however long it takes.

Analytics does it itself for what is quickly copied (`analytics.storage.compact`).
"""

from __future__ import annotations

import signal
import threading
from typing import Any

import click

from analytics.storage.compact import compact
from analytics.storage.folder import own
from analytics.storage.store import FILE
from streamgauge.logs import configure_logging
from streamgauge.options import load, settings_options


@click.command("compact")
@settings_options("data", "log_format")
def compact_command(**given: Any) -> int:
    """Make the tables' file as small as what it holds, while analytics is stopped. Exit code 1 if that was not possible."""
    settings = load(given)
    configure_logging(settings.log_format)
    path = settings.data / FILE
    if not path.exists():
        raise click.ClickException(f"there are no tables in {settings.data}")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with own(settings.data):
        return 0 if compact(path, stop=stop, limit_s=None, always=True) else 1
