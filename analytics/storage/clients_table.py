"""The table `clients`: the names of clients in the settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple

from streamgauge.analytics.schema.clients import COLUMNS, Client
from streamgauge.analytics.storage.replaced_table import replace_rows
from streamgauge.analytics.storage.store import Store

log = logging.getLogger(__name__)


def write_clients(store: Store, clients: Sequence[Client]) -> None:
    """Make the table equal to `clients`. Raises OSError."""
    if replace_rows(store, "clients", COLUMNS, [astuple(client) for client in sorted(clients)]):
        log.info("the store has the names of %d clients", len(clients))
