"""Rows as text or Parquet, for `streamgauge sql`, reports and the downloads of the SQL page."""

from __future__ import annotations

import datetime as dt
import decimal
import io
import json
import math
from typing import Any

import polars as pl

MAX_CELL_CHARS = 60
_PLAN = ["explain_key", "explain_value"]
"""Columns of the answer to EXPLAIN."""


def render(rows: pl.DataFrame, form: str, *, max_cell_chars: int = MAX_CELL_CHARS) -> bytes:
    """The rows as `table`, `json`, `csv` or `parquet`."""
    if form == "parquet":
        sink = io.BytesIO()
        untyped = [name for name, kind in rows.schema.items() if kind == pl.Null]
        # A column of NULLs has no type, which not every reader of Parquet accepts.
        rows.with_columns(pl.col(name).cast(pl.String) for name in untyped).write_parquet(sink)
        return sink.getvalue()
    if form == "json":
        lines = (
            json.dumps(json_value(row), ensure_ascii=False, allow_nan=False)
            for row in rows.iter_rows(named=True)
        )
        # Text of clients may have halves of surrogate pairs, which UTF-8 cannot contain.
        return ("[" + ",\n ".join(lines) + "]\n").encode(errors="replace")
    if form == "csv":
        return _csv(rows)
    return _table(rows, max_cell_chars).encode()


def plan_of(rows: pl.DataFrame) -> str | None:
    """The drawing in the answer to EXPLAIN, None for another answer."""
    return "\n".join(rows["explain_value"]) if rows.columns == _PLAN else None


def json_value(value: Any) -> Any:
    """Convert to JSON types: times as ISO 8601, other types as text, NaN and infinities as null."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(k): json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple | pl.Series):
        return [json_value(v) for v in value]
    if isinstance(value, dt.datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, dt.timedelta):
        return f"PT{f'{value.total_seconds():.6f}'.rstrip('0').rstrip('.')}S"
    return str(value)


def _csv(rows: pl.DataFrame) -> bytes:
    columns = [
        pl.Series(name, [_cell(v) for v in rows[name]], pl.String) if _needs_text(kind) else rows[name]
        for name, kind in rows.schema.items()
    ]
    return pl.DataFrame(columns).write_csv().encode() if columns else b""


def _needs_text(kind: pl.DataType) -> bool:
    return kind.is_nested() or kind.is_temporal() or isinstance(kind, pl.Binary | pl.Decimal)


def _cell(value: Any) -> str | None:
    found = json_value(value)
    if found is None or isinstance(found, str):
        return found
    return json.dumps(found, ensure_ascii=False)


def _table(rows: pl.DataFrame, max_cell_chars: int) -> str:
    """Aligned columns: numbers right-aligned, NULL empty. A plan is shown as it is."""
    if (plan := plan_of(rows)) is not None:
        return plan
    if not rows.width:
        return "(no columns)\n"
    cells = []
    for name, kind in rows.schema.items():
        shown = [_short("" if (text := _cell(v)) is None else text, max_cell_chars) for v in rows[name]]
        width = max([len(name), *(len(text) for text in shown)])
        pad = str.rjust if kind.is_numeric() else str.ljust
        cells.append([pad(text, width) for text in (name, *shown)] + ["─" * width])
    lines = ["  ".join(column[i] for column in cells).rstrip() for i in range(rows.height + 1)]
    lines.insert(1, "  ".join(column[-1] for column in cells))
    return "\n".join(lines) + f"\n({rows.height} row{'' if rows.height == 1 else 's'})\n"


def _short(text: str, max_chars: int) -> str:
    text = " ".join(text.splitlines())
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"
