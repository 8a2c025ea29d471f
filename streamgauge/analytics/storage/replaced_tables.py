"""The tables `alert_rules`, `budgets`, `clients`, `objectives` and `prices`: replaced as a whole when the settings differ from them."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple
from datetime import datetime
from typing import TYPE_CHECKING, Any

import duckdb

from streamgauge.analytics.schema.frames import frame_of_rows
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
    values = sorted(
        (number, *map(stored_value, astuple(row)))[not has_order :] for number, row in enumerate(given)
    )
    rows = frame_of_rows(table, values)
    cursor = store.cursor()
    cursor.register("given_rows", rows)
    try:
        if cursor.execute(f"SELECT {', '.join(columns)} FROM {table.name} ORDER BY 1").pl().equals(rows):
            return
        with store.catalog.exclusive(), transaction(cursor, store.data_path + store.layouts[table.name].path):
            cursor.execute(f"DELETE FROM {table.name}")
            cursor.execute(f"INSERT INTO {table.name} BY NAME FROM given_rows")
    except duckdb.Error as e:
        raise OSError(f"cannot write the {table.name} to the store: {message(e, store.location)}") from None
    finally:
        cursor.unregister("given_rows")
        cursor.close()
    log.info("the store has %d %s from the settings", len(rows), table.name)


def stored_value(value: Any) -> Any:
    """Instants as data frames of a table have them."""
    return round(value.timestamp() * 1e6) if isinstance(value, datetime) else value
