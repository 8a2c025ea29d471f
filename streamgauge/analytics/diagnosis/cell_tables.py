"""The aggregates of a diagnosis (`aggregates.cells`, `aggregates.pairs`) as arrays. No I/O.

The last value of each dimension combines all values that are not compared by name.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import polars as pl

from streamgauge.analytics.diagnosis.aggregates import Pairs, same_n
from streamgauge.analytics.diagnosis.metrics import ALL_BUCKETS, CUBE, SIZE_NAMES, STRATA, Metric

Array = npt.NDArray[np.float64 | np.float32]


@dataclass(frozen=True)
class CellTable:
    """Columns over cells: one axis per dimension, then the buckets."""

    dimensions: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]
    """Names of the values of each dimension. The last value has none."""
    columns: Mapping[str, Array]
    """Columns of a metric with `Metric.by_input` have the strata as first axis, except if the dimension is `ALONE_AXIS`."""
    choices: tuple[int, ...] = ()
    """Of each dimension, the number of values that could have been named. Empty: as many as there are."""

    def whole(self, column: str) -> Array:
        """A column, summed over its strata."""
        found = self.columns[column]
        return found.sum(0) if self.has_strata(column) else found

    def has_strata(self, column: str) -> bool:
        return self.columns[column].ndim > len(self.dimensions) + 1


ALONE_AXIS = "alone"
"""The dimension of the table of all dimensions that are compared alone. Its values are texts DIMENSION=VALUE."""


def read(frame: pl.DataFrame, compared: Collection[Metric]) -> dict[str, CellTable]:
    """The tables `cube`, `ALONE_AXIS`, `pair` (all failures) and `age` (failures by their age at the end) of the result of `cells`."""
    cube = _read(frame.filter(pl.col("part") == "cube"), tuple(CUBE), compared)
    rows = frame.filter(pl.col("part") == ALONE_AXIS).drop_nulls(ALONE_AXIS)
    alone = _read(rows, (ALONE_AXIS,), compared, has_strata=False)
    cuts = _table(
        frame.filter(pl.col("part") == "age").with_columns(pl.col("age").cast(pl.String)),
        ("age",),
        {"x_cut": False},
    )
    pairs = _table(
        frame.filter(pl.col("part") == "pair"), ("pair",), {"n_rate_limited": False, "x_rate_limited": False}
    )
    counted = cube.columns["n_rate_limited"].sum((0, 1, 2))
    columns = {"n_cut": np.broadcast_to(counted, cuts.columns["x_cut"].shape), **cuts.columns}
    return {
        "cube": cube,
        ALONE_AXIS: _from_each_value_on(alone),
        "age": replace(cuts, columns=columns),
        "pair": pairs,
    }


def read_pairs(frame: pl.DataFrame, parts: Sequence[Pairs]) -> list[CellTable]:
    """The tables of the result of `pairs`."""
    found = []
    for number, part in enumerate(parts):
        rows = frame.filter(pl.col("part") == number)
        table = _read(rows, tuple(part.dimensions), part.metrics)
        found.append(replace(table, choices=tuple(part.dimensions.values())))
    return found


def _read(
    frame: pl.DataFrame, dimensions: tuple[str, ...], compared: Collection[Metric], *, has_strata: bool = True
) -> CellTable:
    columns = {f"{c}_{m.name}": m.by_input and has_strata for m in compared for c in ("n", "x", "xx")}
    least = {f"l_{m.family}" for m in compared if m.least_change_of_stream}
    columns |= dict.fromkeys((*least, "requests", "n_input", "x_input"), False)
    table = _table(frame, dimensions, columns)
    known = {f"n_{m.name}": f"n_{same_n(compared, m)}" for m in compared}
    same = {name: table.columns[of] for name, of in known.items() if of in table.columns}
    return replace(table, columns={**table.columns, **same})


def _from_each_value_on(table: CellTable) -> CellTable:
    """The table in which a value of an ordered dimension includes the streams of all larger ones, named by `SIZE_NAMES`."""
    names = list(table.values[0])
    numbers = {int(name.removeprefix("size=")): i for i, name in enumerate(names) if name.startswith("size=")}
    columns = {name: column.copy() for name, column in table.columns.items()}
    for column in columns.values():
        total = np.zeros(column.shape[-1])
        for number in sorted(numbers, reverse=True):
            total = total + column[numbers[number]]
            column[numbers[number]] = total if number else 0
    for number, i in numbers.items():
        names[i] = f"size={SIZE_NAMES[number - 1]}" if number else "size=all"
    return replace(table, values=(tuple(names),), columns=columns)


def _table(frame: pl.DataFrame, dimensions: tuple[str, ...], columns: Mapping[str, bool]) -> CellTable:
    """`columns`: name → whether it has strata. Columns that are not in the frame are omitted."""
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
