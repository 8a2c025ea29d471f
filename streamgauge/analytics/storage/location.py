"""Location of the store, from `--store`, `--lake-path` and the data folder.

The store is a DuckLake. Its catalog is a SQLite file in the data folder (one machine) or a PostgreSQL database (several
machines). Its rows are Parquet files in a folder or in S3. This module does not require DuckDB, which the tap's image
lacks.

A PostgreSQL DSN may contain a password. `repr` and `label` hide it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from streamgauge.analytics.schema.sql_quoting import literal

SQLITE = "sqlite"
"""The default of `--store`: the catalog is `DATA/catalog.sqlite`, the rows are in `DATA/tables/`."""
POSTGRES = "postgres:"
CATALOG_FILE = "catalog.sqlite"
TABLES_FOLDER = "tables"
HIDDEN = "…"
"""Replaces a password in messages."""
ALIAS = "lake"
"""Name of the attached store in every process."""


@dataclass(frozen=True, slots=True)
class StoreLocation:
    """One store. Exactly one of `catalog` and `dsn` is set."""

    catalog: Path | None = None
    """The SQLite file, absolute."""
    dsn: str | None = field(default=None, repr=False)
    """In libpq's format: `host=… dbname=…` or `postgresql://…`."""
    tables: str | None = None
    """Absolute folder or `s3://BUCKET/PREFIX` of the Parquet files. None: the one in the catalog."""

    @property
    def uri(self) -> str:
        """For DuckDB's ATTACH. Contains the DSN."""
        return f"ducklake:sqlite:{self.catalog}" if self.catalog else f"ducklake:postgres:{self.dsn}"

    @property
    def backup(self) -> Path:
        """File with the backup of a SQLite catalog."""
        assert self.catalog is not None
        return self.catalog.with_suffix(".backup.sqlite")

    @property
    def before_upgrade(self) -> Path:
        """File with the SQLite catalog as it was before the last upgrade."""
        assert self.catalog is not None
        return self.catalog.with_suffix(".before-upgrade.sqlite")

    @property
    def is_catalog_lost(self) -> bool:
        """Whether a SQLite catalog is missing although there are Parquet files."""
        return (
            self.catalog is not None
            and not self.catalog.exists()
            and next(Path(str(self.tables)).glob("main/*/*.parquet"), None) is not None
        )

    @property
    def label(self) -> str:
        """For messages, without a password."""
        return str(self.catalog) if self.catalog else POSTGRES + without_password(self.dsn or "")

    @property
    def attach_statement(self) -> str:
        """Statement that attaches the store read-only in a DuckDB client, without a password."""
        uri = f"ducklake:sqlite:{self.catalog}" if self.catalog else f"ducklake:{self.label}"
        return f"ATTACH {literal(uri)} AS {ALIAS} (READ_ONLY)"


def locate(store: str, data: Path, lake_path: str | None = None) -> StoreLocation:
    """The store of `--store` and `--lake-path`. Raises ValueError."""
    if store == SQLITE:
        if lake_path:
            raise ValueError(
                "--lake-path requires --store postgres:DSN; with SQLite the tables are in DATA/tables"
            )
        data = data.absolute()
        return StoreLocation(catalog=data / CATALOG_FILE, tables=str(data / TABLES_FOLDER))
    dsn = store.removeprefix(POSTGRES)
    if dsn == store or not dsn.strip():
        raise ValueError(
            "--store must be sqlite or postgres:DSN, for example 'postgres:host=db dbname=streamgauge'"
        )
    if lake_path and "://" not in lake_path:
        lake_path = str(Path(lake_path).absolute())
    elif lake_path and not lake_path.startswith("s3://"):
        raise ValueError("--lake-path must be a folder or s3://BUCKET/PREFIX")
    return StoreLocation(dsn=dsn, tables=lake_path.rstrip("/") if lake_path else None)


def lost_catalog(location: StoreLocation) -> tuple[str, str]:
    """Why a store with a lost catalog cannot be used, and what to do."""
    return (
        f"the catalog {location.catalog} is missing, but {location.tables} has Parquet files",
        "Restore it with `streamgauge rebuild`, or move the folder away to start with empty tables",
    )


def without_password(text: str) -> str:
    """A DSN, or a text with one, with `HIDDEN` instead of the password."""
    text = re.sub(r"(?i)(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)", r"\1" + HIDDEN, text)
    return re.sub(r"(://[^:/@\s]*:)[^\s/]*@", rf"\1{HIDDEN}@", text)
