"""The aggregates of `queries.cells` as arrays: cells of dimension values × buckets of time. No I/O.

The last value of each dimension stands for all values that are not looked at alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from streamgauge.analytics.diagnosis.queries import CUBE, SINGLE
from streamgauge.analytics.diagnosis.scope import BUCKETS, EARLIER_BUCKETS

Array = npt.NDArray[np.float64]

ALL_BUCKETS = EARLIER_BUCKETS + BUCKETS


@dataclass(frozen=True)
class Table:
    """Columns over cells: one axis per dimension, then the buckets."""

    dimensions: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    """Of each dimension, without the last, which has no name."""
    columns: Mapping[str, Array]


def read(frame: pl.DataFrame, columns: Iterable[str]) -> dict[str, Table]:
    """The tables `cube`, `tap` and `server` of the result of `queries.cells`."""
    columns = list(columns)
    parts = {"cube": CUBE} | {d: (d,) for d in SINGLE}
    return {
        part: _table(frame.filter(pl.col("part") == part), dimensions, columns)
        for part, dimensions in parts.items()
    }


def _table(frame: pl.DataFrame, dimensions: tuple[str, ...], columns: list[str]) -> Table:
    values = tuple(tuple(sorted(frame[d].drop_nulls().unique().to_list())) for d in dimensions)
    shape = (*(len(v) + 1 for v in values), ALL_BUCKETS)
    where: list[Any] = [slice(None)]
    for d, names in zip(dimensions, values, strict=True):
        numbers = {name: i for i, name in enumerate(names)}
        where.append(np.array([numbers.get(v, len(names)) for v in frame[d].to_list()], dtype=np.intp))
    where.append(frame["bucket"].fill_null(0).to_numpy().astype(np.intp))
    found = np.zeros((len(columns), *shape))
    if not frame.is_empty():
        # `queries.cells` has one row per cell and bucket.
        found[tuple(where)] = frame.select(pl.col(columns).cast(pl.Float64).fill_null(0.0)).to_numpy().T
    return Table(dimensions, values, dict(zip(columns, found, strict=True)))


def with_totals(cells: Array) -> Array:
    """The array with one more value on each axis but the last: the sum over the axis."""
    found: Array = np.empty((*(size + 1 for size in cells.shape[:-1]), cells.shape[-1]))
    found[tuple(slice(size) for size in cells.shape[:-1])] = cells
    for axis in range(cells.ndim - 1):
        filled = tuple(slice(None) if a < axis else slice(size) for a, size in enumerate(cells.shape[:-1]))
        part = found[filled]
        total = (*filled[:axis], cells.shape[axis], *filled[axis + 1 :])
        part.sum(axis=axis, out=found[total])
    return found
