"""Convert query results to CSV and Parquet files. Pure."""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl


def as_csv(result: pl.DataFrame) -> bytes:
    """CSV. Nested and binary values become JSON text."""
    nested = [c for c, kind in result.schema.items() if kind.is_nested() or kind == pl.Binary]
    flat = result.with_columns(
        pl.Series(c, [_json_text(v) for v in result[c].to_list()], pl.String) for c in nested
    )
    return flat.write_csv().encode()


def as_parquet(result: pl.DataFrame) -> bytes:
    """Parquet with the types of the result. Columns that contain only NULL become text."""
    untyped = [c for c, kind in result.schema.items() if kind == pl.Null]
    buffer = io.BytesIO()
    result.with_columns(pl.col(c).cast(pl.String) for c in untyped).write_parquet(buffer)
    return buffer.getvalue()


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str, ensure_ascii=False)
