"""An answer as a file. Pure."""

from __future__ import annotations

import io
import json
from typing import Any

import polars as pl


def as_csv(answer: pl.DataFrame) -> bytes:
    """CSV; nested values as JSON text, which CSV has no other form for."""
    nested = [c for c, kind in answer.schema.items() if kind.is_nested() or kind == pl.Binary]
    flat = answer.with_columns(
        pl.Series(c, [_text(v) for v in answer[c].to_list()], pl.String) for c in nested
    )
    return flat.write_csv().encode()


def as_parquet(answer: pl.DataFrame) -> bytes:
    """Parquet with the types of the answer; what has no type there (a column of NULL alone) is text."""
    typeless = [c for c, kind in answer.schema.items() if kind == pl.Null]
    buffer = io.BytesIO()
    answer.with_columns(pl.col(c).cast(pl.String) for c in typeless).write_parquet(buffer)
    return buffer.getvalue()


def _text(value: Any) -> str | None:
    return None if value is None else json.dumps(value, default=str, ensure_ascii=False)
