"""Holds the direction of the imports, and that our package names are ours."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
OURS = ("ingest", "analytics", "dashboard", "streamgauge")

ALLOWED = {
    "ingest": ("ingest",),
    "analytics": (
        "analytics",
        "ingest.private_files",
        "ingest.ids",
        "ingest.records",
        "ingest.record_log",
        "ingest.redaction",
    ),
    "dashboard": (
        "dashboard",
        "ingest.private_files",
        "analytics.query.errors",
        "analytics.query.query_pool",
        "analytics.schema.histogram_buckets",
        "analytics.schema.outcomes",
        "analytics.schema.sql_quoting",
        "analytics.storage.location",
    ),
    "streamgauge": OURS,
}


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, `from a import b` as `a.b` too (b may be a module)."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found.add(node.module)
    return found


@pytest.mark.parametrize("package", OURS)
def test_imports_point_down_the_stream(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        for module in imports_of(path):
            if module.split(".")[0] in OURS:
                assert any(module == a or module.startswith(a + ".") for a in ALLOWED[package]), (
                    f"{path.relative_to(ROOT)} imports {module}"
                )


def test_readers_use_no_code_of_the_writer() -> None:
    """Readers run in other processes. Of the store they import its location, how it is attached, and the schema."""
    shared = (
        "analytics.storage.location",
        "analytics.storage.database",
        "analytics.schema",
        "ingest.private_files",
    )
    allowed = ("analytics.query", *shared)
    for path in sorted((ROOT / "analytics" / "query").rglob("*.py")):
        for module in imports_of(path):
            if module.split(".")[0] in OURS and module != "analytics":
                assert any(module == a or module.startswith(a + ".") for a in allowed), (
                    f"{path.relative_to(ROOT)} imports {module}"
                )


def test_the_schema_imports_nothing_else_of_the_product() -> None:
    for path in sorted((ROOT / "analytics" / "schema").rglob("*.py")):
        for module in imports_of(path):
            assert module.split(".")[0] not in OURS or module.startswith("analytics.schema"), path.name


def test_no_part_of_analytics_but_its_readers_uses_the_readers() -> None:
    for path in sorted((ROOT / "analytics").rglob("*.py")):
        if path.parent != ROOT / "analytics" / "query":
            used = [m for m in imports_of(path) if m == "analytics.query" or m.startswith("analytics.query.")]
            assert used == [], path.relative_to(ROOT)


def test_settings_and_their_imports_need_no_duckdb() -> None:
    """A tap's image has no DuckDB and shows settings too."""
    code = (
        "import sys; sys.modules['duckdb'] = None; sys.modules['polars'] = None\n"
        "import streamgauge.settings, streamgauge.cli, streamgauge.part_options, analytics.storage.location\n"
        "from streamgauge.settings import Settings; Settings(store='postgres:host=db')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert imports_of(ROOT / "analytics" / "storage" / "__init__.py") == set()


@pytest.mark.parametrize("package", OURS)
def test_package_name_is_ours(package: str) -> None:
    module = __import__(package)
    assert module.__file__ is not None
    assert Path(module.__file__).parent == ROOT / package


def test_no_dashboard_file_bears_the_name_of_a_module_that_others_import() -> None:
    # Streamlit puts the script's folder first on sys.path.
    taken = set(sys.stdlib_module_names) | {"analytics", "ingest", "streamgauge", "tests", "bench"}
    for path in (ROOT / "dashboard").glob("*"):
        assert path.stem not in taken, path


def test_every_source_file_says_what_it_is_for() -> None:
    for package in OURS:
        for path in sorted((ROOT / package).rglob("*.py")):
            assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(ROOT)
