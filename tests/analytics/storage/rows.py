"""Rows and commits of the storage tests."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import polars as pl

from streamgauge.analytics.assembly.partition import LogPosition
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from tests.analytics.stores import ask

STARTED_US = 1_790_000_000_000_000


def new_ids(count: int) -> list[str]:
    return [str(uuid.uuid4()) for _ in range(count)]


def streams(*ids: str, **columns: Any) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stream_id": ids,
            "started_at": [STARTED_US] * len(ids),
            "outcome": ["ok"] * len(ids),
            **{name: [value] * len(ids) for name, value in columns.items()},
        },
        schema_overrides={
            "stream_id": pl.String,
            "outcome": pl.String,
            **({"labels": pl.Map(pl.String, pl.String)} if "labels" in columns else {}),
        },
    ).with_columns(pl.col("started_at").cast(pl.Datetime("us", "UTC")))


def events(ids: Sequence[str], each: int) -> pl.DataFrame:
    return pl.DataFrame({"stream_id": [i for i in ids for _ in range(each)]}).select(
        "stream_id",
        seq=pl.int_range(pl.len(), dtype=pl.Int32) % each,
        read_seq=pl.int_range(pl.len(), dtype=pl.Int32) % each,
        at_ns=pl.int_range(pl.len(), dtype=pl.Int64) * 7919 % 1_000_003,
        kind=pl.lit("text"),
    )


def commit_of(
    log_id: str, partition: str, high: int, ids: Sequence[str], *, each: int = 0, open_ids: Sequence[str] = ()
) -> Commit:
    """Commit of streams with `each` events, and of the position after them."""
    tables = {"streams": streams(*ids, labels={"team": "it's {a=1, b}"})}
    if each:
        tables["events"] = events(ids, each)
    return Commit(
        log_id,
        positions={partition: LogPosition(high, max(0, high - 1), tuple(open_ids))},
        tables=tables,
        totals={"records": len(ids)},
    )


def count(store: Store, table: str = "streams") -> int:
    return int(ask(store, f"SELECT count(*) FROM {table}")[0][0])


def count_of(store: Store, ids: Iterable[str], table: str = "streams") -> int:
    """Rows of these streams."""
    found = ask(
        store, f"SELECT count(*) FROM {table} WHERE stream_id IN (SELECT unnest(?::UUID[]))", [[*ids]]
    )
    return int(found[0][0])


def files(store: Store, table: str = "*") -> set[str]:
    """Parquet files in the tables folder."""
    return {
        str(path) for path in Path(store.data_path).rglob("*.parquet") if path.match(f"{table}/*.parquet")
    }
