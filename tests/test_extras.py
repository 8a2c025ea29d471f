"""pyproject.toml and `streamgauge.analytics.extras` agree with the imports; a command without its packages names its extra."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest

from streamgauge.analytics.extras import MODULES, extra_of
from tests.deadline import DEADLINE_S, until
from tests.installed import OFFERED, ROOT, distributions, environment, normalized
from tests.ports import free_ports

FOLDERS = {
    "ingest": (),
    "analytics": ("analytics",),
    "analytics/decoding": (),  # ship decodes bodies to redact them
    "analytics/intake/connection_limits.py": ("otlp",),
    "analytics/intake/otlp_messages.py": ("otlp",),
    "analytics/intake/otlp_receiver.py": ("otlp",),
    "analytics/intake/received_events.py": ("otlp",),
    "analytics/intake/received_spans.py": ("otlp",),
    "analytics/telemetry/otlp_export.py": ("otlp",),
    "commands/telemetry_spool.py": ("otlp",),
    "dashboard": ("dashboard",),
    "": ("analytics",),
    "simulator": (),
    "mcp_server": ("mcp",),
}
"""The extras whose packages the files of a folder import. The longest matching path applies."""
PROVIDERS = packages_distributions()


def imports(file: Path) -> Iterator[str]:
    """Modules of other projects that a file imports at run time, also inside functions."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            top = name.partition(".")[0]
            if top not in sys.stdlib_module_names and not (ROOT / top).is_dir():
                yield name


@cache
def providers(module: str) -> frozenset[str]:
    """Distributions that have the module, or the one that has the deepest part of a namespace package."""
    found = set(PROVIDERS[module.partition(".")[0]])
    if len(found) > 1:
        path = module.replace(".", "/")
        while not (deep := {name for name in found if any(f.startswith(path) for f in files(name))}):
            path = path.rpartition("/")[0]
        found = deep
    return frozenset(normalized(name) for name in found)


@cache
def files(name: str) -> frozenset[str]:
    return frozenset(str(file) for file in distribution(name).files or ())


def test_each_module_of_the_table_is_installed_by_its_extra_and_not_without_it() -> None:
    assert MODULES.keys() == OFFERED.keys() - {"all"}
    for extra, modules in MODULES.items():
        smaller = distributions() if extra == "analytics" else distributions("analytics")
        for module in modules:
            assert providers(module) & distributions(extra), module
            if module != "opentelemetry":  # its parts are split between two extras
                assert not providers(module) & smaller, module
        assert distributions() < distributions(extra) < distributions("all")


def test_install_page_lists_every_extra() -> None:
    page = (ROOT / "docs" / "how-to" / "install.md").read_text()
    assert set(re.findall(r"^\| `streamgauge\[(\w+)\]` \|", page, re.M)) == OFFERED.keys()


def test_every_file_imports_only_packages_of_the_extra_of_its_folder() -> None:
    checked = 0
    for file in (ROOT / "streamgauge").rglob("*.py"):
        path = file.relative_to(ROOT / "streamgauge").as_posix()
        extras = FOLDERS[max((f for f in FOLDERS if f"{path}/".startswith(f"{f}/")), key=len, default="")]
        for module in imports(file):
            assert providers(module) & distributions(*extras), f"{path} imports {module}"
            if not providers(module) & distributions():
                assert extra_of(module) is not None, f"{path} imports {module}: add it to analytics/extras.py"
            checked += 1
    assert checked > 300  # imports of other packages


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("base") / "venv")


@pytest.fixture(scope="module")
def analytics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("analytics") / "venv", "analytics")


@contextmanager
def started(python: Path, folder: Path, *argv: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [python, "-P", "-m", "streamgauge", *argv],
        cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=DEADLINE_S)


def assert_names(python: Path, folder: Path, cases: dict[str, str], **variables: str) -> None:
    """Each command line prints one line that names this extra, and exits with 2. They run at once, because each takes a second."""
    processes = {
        line: subprocess.Popen(
            [python, "-P", "-m", "streamgauge", *line.split()],
            cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True,
        )
        for line in cases
    }  # fmt: skip
    for line, process in processes.items():
        out, err = process.communicate(timeout=DEADLINE_S)
        assert (process.returncode, out, err.count("\n")) == (2, "", 1), (line, err)
        assert err.startswith("streamgauge: cannot "), line
        assert err.endswith(
            f"is not installed. Install the extra: pip install 'streamgauge[{cases[line]}]'\n"
        ), line


def test_commands_of_the_base_install_name_the_missing_extra(base: Path, tmp_path: Path) -> None:
    (tmp_path / "body.sse").write_text("data: [DONE]\n\n")
    cases = {
        "demo": "dashboard",
        "demo --no-dashboard": "analytics",
        "analyze": "analytics",
        "dashboard": "dashboard",
        "serve": "analytics",
        "top": "analytics",
        "report": "analytics",
        "export --duckdb tables.duckdb": "analytics",
        "mcp": "mcp",
        "alerts": "analytics",
        "rebuild": "analytics",
        "forget --session a --dry-run": "analytics",
        "read body.sse": "analytics",
        "sql DESCRIBE": "analytics",
        "status": "analytics",
    }
    assert_names(base, tmp_path, cases)


def test_settings_name_the_missing_extra(analytics: Path, tmp_path: Path) -> None:
    cases = {
        "analyze --data one --otlp-listen 127.0.0.1:0 --metrics=": "otlp",
        "analyze --data two --store postgres:host=localhost --lake-path /tmp/x --metrics=": "lake",
        "mcp": "mcp",
    }
    assert_names(analytics, tmp_path, cases)
    exported = {"analyze --data three --metrics=": "otlp"}
    assert_names(analytics, tmp_path, exported, OTEL_EXPORTER_OTLP_ENDPOINT="http://localhost:1")


def test_up_of_the_base_install_runs_the_tap_and_names_the_extras_of_the_other_parts(
    base: Path, tmp_path: Path
) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    flags = ("--listen", address, "--admin", "127.0.0.1:0")
    with started(base, tmp_path, "up", "--upstream", "http://localhost:1", *flags) as up:
        assert up.stdout is not None
        not_ready: dict[str, str] = {}
        for line in up.stdout:
            if line.startswith("  not ready"):
                not_ready[line.split()[2]] = line
            if len(not_ready) == 2:
                break
        assert "streamgauge[analytics]" in not_ready["analyze:"]
        assert "streamgauge[dashboard]" in not_ready["dashboard:"]
        with pytest.raises(urllib.error.HTTPError, match="502"):
            urllib.request.urlopen(f"http://{address}/health", timeout=DEADLINE_S)


def test_the_base_install_runs_simulator_tap_and_ship(base: Path, tmp_path: Path) -> None:
    simulator, tap = (f"127.0.0.1:{port}" for port in free_ports(2))
    with (
        started(base, tmp_path, "simulate", "--listen", simulator),
        started(base, tmp_path, "tap", "--upstream", f"http://{simulator}", "--listen", tap, "--admin", "127.0.0.1:0"),
        started(base, tmp_path, "ship", "--kafka", "127.0.0.1:1") as ship,
    ):  # fmt: skip

        def forwarded() -> bool:
            try:
                with urllib.request.urlopen(f"http://{tap}/health", timeout=DEADLINE_S) as response:
                    return bool(response.status == 200)
            except OSError:
                return False

        until(forwarded, "a response through the tap")
        assert ship.stdout is not None
        assert "shipping streamgauge-data/log to the topic" in ship.stdout.readline()


@contextmanager
def running_analytics(python: Path, folder: Path) -> Iterator[None]:
    with started(python, folder, "analyze", "--metrics", "127.0.0.1:0") as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "analytics is ready" in line:
                break
        else:
            raise AssertionError("".join(lines))
        yield


def test_analytics_runs_with_its_extra_and_answers_sql_and_status_of_the_base_install(
    base: Path, analytics: Path, tmp_path: Path
) -> None:
    with running_analytics(analytics, tmp_path):
        for argv, printed in (
            (("sql", "SELECT count(*) AS n FROM streams", "--format", "csv"), "n\n0\n"),
            (("status",), "captured 0 streams"),
        ):
            done = subprocess.run(
                [base, "-P", "-m", "streamgauge", *argv], cwd=tmp_path, env={}, capture_output=True, text=True
            )
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(printed)


def test_an_import_of_the_python_api_names_the_missing_extra(base: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [base, "-c", "import streamgauge as sg; sg.connect"],
        cwd=tmp_path,
        env={},
        capture_output=True,
        text=True,
    )
    assert (
        "ImportError: cannot use streamgauge.connect: the package 'duckdb' is not installed." in done.stderr
    )
    assert "pip install 'streamgauge[analytics]'" in done.stderr
