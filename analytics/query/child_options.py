"""Options of a child process, as the parent sends them in the first message."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from analytics.query.limits import Limits
from analytics.storage.location import StoreLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildOptions:
    """Settings of one child."""

    location: StoreLocation
    limits: Limits
    untrusted: bool
    folder: Path
    """Private folder of the parent: spill files and the copy of the catalog."""
    catalog_copy: Path | None = None
    exact_types: bool = False
    """Arrow answers keep DuckDB's types. Otherwise UUIDs become text, and HUGEINT becomes DECIMAL."""
    parent: int = 0
    """Process id of the parent. The child ends if it has another one."""

    def to_json(self) -> dict[str, Any]:
        """The inverse of `from_json`."""
        location = self.location
        return {
            "catalog": str(location.catalog) if location.catalog else None,
            "dsn": location.dsn,
            "tables": location.tables,
            "limits": asdict(self.limits),
            "untrusted": self.untrusted,
            "folder": str(self.folder),
            "catalog_copy": str(self.catalog_copy) if self.catalog_copy else None,
            "exact_types": self.exact_types,
            "parent": self.parent,
        }

    @classmethod
    def from_json(cls, given: dict[str, Any]) -> ChildOptions:
        """The inverse of `to_json`."""
        catalog, copy = given["catalog"], given["catalog_copy"]
        return cls(
            location=StoreLocation(
                catalog=Path(catalog) if catalog else None, dsn=given["dsn"], tables=given["tables"]
            ),
            limits=Limits(**given["limits"]),
            untrusted=given["untrusted"],
            folder=Path(given["folder"]),
            catalog_copy=Path(copy) if copy else None,
            exact_types=given["exact_types"],
            parent=given["parent"],
        )
