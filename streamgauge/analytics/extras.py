"""The extra that installs each package outside the base install, and the sentence about a missing package.

The table has top-level modules, or longer names where a namespace package is split between extras. A test compares it with
pyproject.toml and with the imports. A module that the table lacks belongs to the base install. The confined query processes use
this file too, and in a clone they can read only `analytics`.
"""

from __future__ import annotations

from importlib.util import find_spec

MODULES = {
    "analytics": (
        "duckdb", "duckdb_extension_ducklake", "duckdb_extension_httpfs", "duckdb_extension_quack",
        "duckdb_extension_sqlite_scanner", "jinja2", "numpy", "opentelemetry", "polars", "prometheus_client", "pyarrow", "requests", "rich",
        "urllib3",
    ),
    "dashboard": ("altair", "starlette", "streamlit"),
    "lake": ("duckdb_extension_postgres_scanner",),
    "mcp": ("mcp", "mcp_types"),
    "oidc": ("authlib",),
    "otlp": ("google", "opentelemetry.exporter", "opentelemetry.proto", "uvicorn"),
}  # fmt: skip
"""Modules by the smallest extra that installs them."""
_EXTRA_OF = {module: extra for extra, modules in MODULES.items() for module in modules}


def extra_of(module: str | None) -> str | None:
    """The extra that installs the module. None: it is of the base install, or not ours."""
    while module:
        if module in _EXTRA_OF:
            return _EXTRA_OF[module]
        module = module.rpartition(".")[0]
    return None


def missing_package(module: str | None) -> str:
    """Why a module cannot be imported and how to install it. `module` is one that `extra_of` knows."""
    return f"the package {module!r} is not installed. Install the extra: pip install 'streamgauge[{extra_of(module)}]'"


def require(module: str) -> None:
    """Raise ModuleNotFoundError if a top-level module is not installed. Imports nothing.

    A command calls this first with a module of its extra, because its first import may be of a smaller one or late.
    """
    if find_spec(module) is None:
        raise ModuleNotFoundError(missing_package(module), name=module)
