"""Convert query results to CSV, Parquet and JSON files. Pure."""

from __future__ import annotations

import io
import json
import math
from datetime import date, datetime, time, timedelta
from decimal import Decimal
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


def as_json(result: pl.DataFrame) -> bytes:
    """A JSON array with an object for each row. Instants are ISO 8601 texts; NaN and infinities, which JSON lacks, are null."""
    rows = [{name: _json_value(value) for name, value in row.items()} for row in result.iter_rows(named=True)]
    return json.dumps(rows, ensure_ascii=False, allow_nan=False).encode(errors="replace")


def _json_value(value: Any) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return float(value) if value.is_finite() else None
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case dict():
            return {str(name): _json_value(one) for name, one in value.items()}
        case list() | tuple() | pl.Series():
            return [_json_value(one) for one in value]
    return str(value)


def _json_text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str, ensure_ascii=False)
