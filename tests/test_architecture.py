"""Rules of the source tree that import-linter (`make lint`) cannot express."""

import ast
import subprocess
import sys
from pathlib import Path

import streamgauge

ROOT = Path(__file__).resolve().parent.parent


def test_settings_and_their_imports_need_no_duckdb() -> None:
    """The image of the tap has no DuckDB, and its commands read the settings."""
    code = (
        "import sys; sys.modules['duckdb'] = None; sys.modules['polars'] = None\n"
        "import streamgauge.settings.model, streamgauge.cli, streamgauge.settings.process_options, streamgauge.analytics.storage.location\n"
        "from streamgauge.settings.model import Settings; Settings(store='postgres:host=db')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "import" not in (ROOT / "analytics" / "storage" / "__init__.py").read_text()


def test_no_installed_package_shadows_ours() -> None:
    assert Path(str(streamgauge.__file__)).parent == ROOT / "streamgauge"


def test_the_folders_are_imported_under_one_name() -> None:
    """A module under two names would be two modules, with two sets of classes."""
    for name in ("ingest", "analytics", "dashboard"):
        assert (ROOT / name).readlink() == Path("streamgauge", name)


def test_no_dashboard_file_shadows_an_importable_module() -> None:
    # Streamlit puts the script's folder first on sys.path.
    taken = set(sys.stdlib_module_names) | {"streamgauge", "tests", "bench"}
    for path in (ROOT / "dashboard").glob("*"):
        assert path.stem not in taken, path


def test_every_source_file_has_a_docstring() -> None:
    for path in sorted((ROOT / "streamgauge").rglob("*.py")):
        assert ast.get_docstring(ast.parse(path.read_text())), path.relative_to(ROOT)


def test_no_child_process_imports_from_the_current_folder() -> None:
    """With `python -m`, a folder named `ingest` in the current folder would be run, unless there is a `-P`."""
    found = []
    for path in (ROOT / "streamgauge").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            arguments = node.args if isinstance(node, ast.Call) else getattr(node, "elts", [])
            match [ast.unparse(a) for a in arguments[:2]]:
                case ["sys.executable", option]:
                    found.append((path.name, option))
    assert len(found) >= 4
    assert [f for f in found if f[1] not in ("'-P'", "'-I'")] == []


THREADS_WITHOUT_GUARD = {
    "streamgauge/ingest/guards.py",  # guarded_thread itself
    "streamgauge/ingest/processes.py",  # ends the process
    "streamgauge/analytics/query/child_process.py",  # ends with its child process, which is then replaced
    "streamgauge/analytics/query/query_socket.py",  # one per query, under the guard `queries`, and one that ends after the warm-up
    "streamgauge/analytics/query/reader.py",  # one per query
}
TASKS_WITHOUT_GUARD = {
    "streamgauge/ingest/tap/connections/upstream_connection.py",  # one per connection
    "streamgauge/commands/demo_run.py",  # ends the demo
    "streamgauge/simulator/connection.py",
    "streamgauge/simulator/live_sessions.py",
    "streamgauge/simulator/socket_sessions.py",
    "streamgauge/simulator/traffic.py",
}


def test_threads_and_endless_tasks_have_guards() -> None:
    """A thread without a guard ends silently at its first exception: use `streamgauge.ingest.guards`."""
    threads, tasks = set(), set()
    for path in (ROOT / "streamgauge").rglob("*.py"):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if ast.unparse(node.func) == "threading.Thread":
                    threads.add(name)
                elif node.func.attr in ("create_task", "ensure_future") and not ast.unparse(
                    node.args[0]
                ).startswith("guarded_task("):
                    tasks.add(name)
    assert threads == THREADS_WITHOUT_GUARD
    assert tasks == TASKS_WITHOUT_GUARD
