"""The aggregates of a diagnosis (`aggregates.cells`) as arrays. No I/O.

The last value of each dimension stands for all values that are not looked at alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from streamgauge.analytics.diagnosis.aggregates import ALL_BUCKETS, CUBE, SINGLE, STRATA, Metric, same_n
from streamgauge.analytics.schema.dimensions import LABEL

Array = npt.NDArray[np.float64 | np.float32]


@dataclass(frozen=True)
class CellTable:
    """Columns over cells: one axis per dimension, then the buckets."""

    dimensions: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    """Of each dimension, without the last, which has no name."""
    columns: Mapping[str, Array]
    """In the cube, those of a metric with `Metric.by_input` have one more axis, the first: the strata."""

    def whole(self, column: str) -> Array:
        """A column with its strata added up."""
        found = self.columns[column]
        return found.sum(0) if self.has_strata(column) else found

    def has_strata(self, column: str) -> bool:
        return self.columns[column].ndim > len(self.dimensions) + 1


def read(frame: pl.DataFrame, compared: Collection[Metric]) -> dict[str, CellTable]:
    """The tables `cube`, of `SINGLE` and, if it has labels, `label` of the result of `cells`."""
    found = {}
    singles = (*SINGLE, LABEL) if LABEL in frame.columns else SINGLE
    for part, dimensions in ({"cube": CUBE} | {d: (d,) for d in singles}).items():
        columns = {f"{c}_{m.name}": m.by_input and part == "cube" for m in compared for c in ("n", "x", "xx")}
        least = {f"l_{m.family}" for m in compared if m.least_change_of_stream}
        columns |= dict.fromkeys((*least, "requests", "n_input", "x_input"), False)
        table = _table(frame.filter(pl.col("part") == part), dimensions, columns)
        same = {f"n_{m.name}": table.columns[f"n_{same_n(compared, m)}"] for m in compared}
        found[part] = replace(table, columns={**table.columns, **same})
    return found


def _table(frame: pl.DataFrame, dimensions: tuple[str, ...], columns: Mapping[str, bool]) -> CellTable:
    """`columns`: whether they have strata. Those that the frame does not have are left out."""
    values = tuple(tuple(sorted(frame[d].drop_nulls().unique().to_list())) for d in dimensions)
    numbers = [
        pl.col(d).replace_strict(names, range(len(names)), default=len(names), return_dtype=pl.Int64)
        for d, names in zip(dimensions, values, strict=True)
    ]
    where = tuple(frame.select(*numbers, pl.col("bucket").fill_null(0).cast(pl.Int64)).to_numpy().T)
    shape = (*(len(v) + 1 for v in values), ALL_BUCKETS)
    parts = {
        c: [f"{c}_{k}" for k in range(STRATA)] if has_strata else [c] for c, has_strata in columns.items()
    }
    parts = {column: names for column, names in parts.items() if names[0] in frame.columns}
    sums = iter(
        frame.select(pl.col(itertools.chain(*parts.values())).cast(pl.Float64).fill_null(0.0)).to_numpy().T
    )
    found = {}
    for column, names in parts.items():
        arrays = np.zeros((len(names), *shape))
        for array in arrays:
            array[where] = next(sums)  # `cells` has one row per cell and bucket
        found[column] = arrays if columns[column] else arrays[0]
    return CellTable(dimensions, values, found)


def with_totals(cells: Array) -> Array:
    """The array with one more value on each axis but the last: the sum over the axis."""
    found: Array = np.empty((*(size + 1 for size in cells.shape[:-1]), cells.shape[-1]), cells.dtype)
    found[tuple(slice(size) for size in cells.shape[:-1])] = cells
    for axis in range(cells.ndim - 1):
        filled = tuple(slice(None) if a < axis else slice(size) for a, size in enumerate(cells.shape[:-1]))
        part = found[filled]
        total = (*filled[:axis], cells.shape[axis], *filled[axis + 1 :])
        part.sum(axis=axis, out=found[total])
    return found
