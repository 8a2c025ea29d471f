"""Small tables from the settings: replaced as a whole when the settings differ from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb

from streamgauge.analytics.storage.database import message, transaction
from streamgauge.analytics.storage.store import Store


def replace_rows(store: Store, table: str, columns: Sequence[str], rows: list[tuple[Any, ...]]) -> bool:
    """Make the table equal to `rows`, sorted by their first column. Returns whether it was different.

    Processes that share a store need the same settings. Raises OSError.
    """
    names = ", ".join(columns)
    marks = ", ".join("?" * len(columns))
    cursor = store.cursor()
    try:
        if cursor.execute(f"SELECT {names} FROM {table} ORDER BY {columns[0]}").fetchall() == rows:
            return False
        with store.catalog.exclusive(), transaction(cursor, store.data_path + store.layouts[table].path):
            cursor.execute(f"DELETE FROM {table}")
            for row in rows:
                cursor.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", row)
        return True
    except duckdb.Error as e:
        raise OSError(f"cannot write the {table} to the store: {message(e, store.location)}") from None
    finally:
        cursor.close()
