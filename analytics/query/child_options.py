"""Options of a child process, as the parent sends them in the first message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from streamgauge.analytics.query.limits import Limits
from streamgauge.analytics.storage.location import StoreLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """Settings of one child."""

    location: StoreLocation
    others: Sequence[StoreLocation] = ()
    """Further stores, queried together with the first."""
    limits: Limits
    untrusted: bool
    low_priority: bool = False
    """An untrusted child always has a low priority."""
    folder: Path
    """Private folder of the parent: spill files and the copy of the catalog."""
    catalog_copy: Path | None = None
    exact_types: bool = False
    """Arrow answers keep DuckDB's types. Otherwise UUIDs become text, and HUGEINT becomes DECIMAL."""
    parent: int = 0
    """Process id of the parent. The child ends if it has another one."""

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        return {
            "stores": [_store_to_json(store) for store in (self.location, *self.others)],
            "limits": asdict(self.limits),
            "untrusted": self.untrusted,
            "low_priority": self.low_priority,
            "folder": str(self.folder),
            "catalog_copy": str(self.catalog_copy) if self.catalog_copy else None,
            "exact_types": self.exact_types,
            "parent": self.parent,
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> ChildOptions:
        """The inverse of `to_json`."""
        copy = given["catalog_copy"]
        location, *others = map(_store_from_json, given["stores"])
        return cls(
            location=location,
            others=others,
            limits=Limits(**given["limits"]),
            untrusted=given["untrusted"],
            low_priority=given["low_priority"],
            folder=Path(given["folder"]),
            catalog_copy=Path(copy) if copy else None,
            exact_types=given["exact_types"],
            parent=given["parent"],
        )


def _store_to_json(store: StoreLocation) -> dict[str, Any]:
    return {
        "catalog": str(store.catalog) if store.catalog else None,
        "dsn": store.dsn,
        "tables": store.tables,
    }


def _store_from_json(given: dict[str, Any]) -> StoreLocation:
    catalog = given["catalog"]
    return StoreLocation(catalog=Path(catalog) if catalog else None, dsn=given["dsn"], tables=given["tables"])
