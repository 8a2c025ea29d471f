"""The table `prices`: the rows of the price file."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple

from streamgauge.analytics.schema.prices import COLUMNS, Price
from streamgauge.analytics.storage.replaced_table import replace_rows
from streamgauge.analytics.storage.store import Store

log = logging.getLogger(__name__)


def write_prices(store: Store, prices: Sequence[Price]) -> None:
    """Make the table equal to `prices`. Raises OSError."""
    rows = [(number, *astuple(price)) for number, price in enumerate(prices)]
    if replace_rows(store, "prices", ("priority", *COLUMNS), rows):
        log.info("the store has %d prices", len(rows))
