"""Random choices of one statement, with the catalog that they refer to."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import duckdb

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Function:
    """One overload of a DuckDB function."""

    name: str
    kind: str
    """`scalar`, `aggregate`, `macro`, `table`, `table_macro` or `pragma`."""
    parameters: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Catalog:
    """What statements can name."""

    tables: dict[str, dict[str, str]]
    """Public table or view → column → type."""
    functions: tuple[Function, ...]

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return asdict(self)

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> Catalog:
        """The inverse of `to_json`."""
        return cls(
            given["tables"],
            tuple(Function(f["name"], f["kind"], tuple(f["parameters"])) for f in given["functions"]),
        )


COLUMNS = (
    "SELECT table_name, column_name, data_type FROM duckdb_columns() "
    "WHERE schema_name = 'main' AND NOT internal ORDER BY table_name, column_index"
)
"""Run it on the store to get the rows that `catalog` takes."""


def catalog(columns: Sequence[Sequence[Any]]) -> Catalog:
    """The catalog of a store with these columns and of this version of DuckDB."""
    tables: dict[str, dict[str, str]] = {}
    for table, column, kind in columns:
        tables.setdefault(table, {})[column] = kind
    with duckdb.connect() as connection:
        rows = connection.execute(
            "SELECT DISTINCT function_name, function_type, "
            "list_transform(coalesce(parameter_types, []), lambda t: coalesce(t, 'ANY')) AS types "
            "FROM duckdb_functions() WHERE NOT starts_with(function_name, 'icu_collate_') ORDER BY ALL"
        ).fetchall()
    return Catalog(tables, tuple(Function(name, kind, tuple(types)) for name, kind, types in rows))


class Draw:
    """Seeded choices. The same seed, number and catalog give the same statement."""

    def __init__(self, catalog: Catalog, seed: str, number: int) -> None:
        self.catalog = catalog
        self.random = random.Random(f"{seed} {number}")

    def one(self, choices: Sequence[T]) -> T:
        """One of the choices."""
        return self.random.choice(choices)

    def some(self, choices: Sequence[T], most: int) -> list[T]:
        """One to `most` of the choices, with repetition."""
        return [self.one(choices) for _ in range(self.random.randint(1, most))]

    def chance(self, share: float) -> bool:
        """True in this share of cases."""
        return self.random.random() < share

    def size(self, most: int) -> int:
        """A number from 1 to `most`; each order of magnitude is equally likely."""
        return round(most ** self.random.random())

    def table(self) -> str:
        """A public table or view."""
        return self.one(list(self.catalog.tables))

    def column(self, table: str) -> str:
        """A column of the table."""
        return self.one(list(self.catalog.tables[table]))

    def column_of(self, table: str, kind: str) -> str | None:
        """A column of a type like this one, None if the table has none. ANY and templates fit every column."""
        family = _family(kind)
        found = [name for name, has in self.catalog.tables[table].items() if family in ("", _family(has))]
        return self.one(found) if found else None

    def function(self, *kinds: str) -> Function:
        """A function of these kinds. Each name is equally likely, but few are internal."""
        internal = self.chance(0.02)
        found = [
            function
            for function in self.catalog.functions
            if function.kind in kinds and function.name.startswith("__internal") <= internal
        ]
        name = self.one(sorted({function.name for function in found}))
        return self.one([function for function in found if function.name == name])


def _family(kind: str) -> str:
    """A word for types that convert to each other, empty for templates."""
    if "[" in kind or kind in ("ANY", "T", "K", "V"):
        return "" if kind in ("ANY", "T", "K", "V") else "list"
    if any(word in kind for word in ("INT", "DOUBLE", "FLOAT", "DECIMAL", "BIGNUM")):
        return "number"
    return "time" if kind.startswith(("TIME", "DATE")) else kind
