"""Load DuckDB extensions from the PyPI packages that carry them: nothing is downloaded, nothing is copied into a home.

The packages' own helper installs into the user's home folder first; loading by path works on a read-only file system
and never meets an extension of another version.
"""

from __future__ import annotations

from importlib import resources

import duckdb


def load(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """LOAD the named extensions (`httpfs`, `quack`, …), in this order.

    Raises OSError when a package is missing or made for another DuckDB.
    """
    for name in names:
        try:
            package = resources.files(f"duckdb_extension_{name}")
        except ModuleNotFoundError:
            raise OSError(
                f"the DuckDB extension {name!r} is not installed: pip install "
                f"duckdb-extension-{name.replace('_', '-')}=={duckdb.__version__}"
            ) from None
        path = package / "extensions" / f"v{duckdb.__version__}" / f"{name}.duckdb_extension"
        if not path.is_file():
            raise OSError(
                f"the package of the DuckDB extension {name!r} is not made for DuckDB {duckdb.__version__}"
            )
        connection.execute(f"LOAD '{str(path).replace(chr(39), chr(39) * 2)}'")
