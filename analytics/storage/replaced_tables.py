"""The tables `alert_rules`, `clients`, `objectives` and `prices`: replaced as a whole when the settings differ from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING

import duckdb

from streamgauge.analytics.schema.tables import Table
from streamgauge.analytics.storage.database import message, transaction
from streamgauge.analytics.storage.store import Store

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

log = logging.getLogger(__name__)


def replace_rows(store: Store, table: Table, given: Sequence[DataclassInstance]) -> None:
    """Make the table equal to `given`. A first column `priority` is their order. Raises OSError.

    Processes that share a store need the same settings.
    """
    columns = [*table.types]
    has_order = columns[0] == "priority"
    rows = sorted((number, *astuple(row))[not has_order :] for number, row in enumerate(given))
    cursor = store.cursor()
    try:
        if cursor.execute(f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY 1").fetchall() == rows:
            return
        with store.catalog.exclusive(), transaction(cursor, store.data_path + store.layouts[table.name].path):
            cursor.execute(f"DELETE FROM {table.name}")
            for row in rows:
                cursor.execute(f"INSERT INTO {table.name} VALUES ({', '.join('?' * len(columns))})", row)
    except duckdb.Error as e:
        raise OSError(f"cannot write the {table.name} to the store: {message(e, store.location)}") from None
    finally:
        cursor.close()
    log.info("the store has %d %s from the settings", len(rows), table.name)
