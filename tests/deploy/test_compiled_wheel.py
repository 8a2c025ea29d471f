"""The compiled wheel (`make wheel COMPILED=1`), in a separate environment, behaves like the source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.deploy.manifests import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("cc") is None, reason="no C compiler; on Debian: apt-get install gcc libc6-dev"
    ),
    pytest.mark.timeout(900),
]
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHONPATH"))}
LIST_COMPILED = """
import importlib, pkgutil, ingest.tap
modules = [importlib.import_module(f"ingest.tap.{found.name}") for found in pkgutil.iter_modules(ingest.tap.__path__)]
print(*sorted(module.__name__ for module in modules if module.__file__.endswith(".so")))
"""
TEST_FILES = (
    "test_exchange_states", "test_exchanges", "test_fairness", "test_forwarding", "test_header_rewrite", "test_http_body",
    "test_http_head", "test_disconnects", "test_limits", "test_main", "test_refusals", "test_stream_recorder", "test_timeouts", "test_tls",
    "test_trace_context", "test_tunnel", "test_websocket_close",
)  # fmt: skip


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built like `make wheel`."""
    folder = tmp_path_factory.mktemp("wheel")
    before = set(ROOT.glob("**/*.so"))
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "SOURCE_DATE_EPOCH": "315532800", "COMPILED": "1"}
    subprocess.run([*pip, "-w", folder, ROOT], check=True, env=environment, cwd=folder)
    assert set(ROOT.glob("**/*.so")) == before, "building must not write into the source tree"
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with the wheel and the dependencies of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False, symlinks=True)
    program = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", program, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, wheel], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return program


def test_wheel_is_specific_to_this_python_and_has_compiled_modules(
    wheel: Path, python: Path, tmp_path: Path
) -> None:
    assert "-none-any" not in wheel.name
    command = [python, "-c", LIST_COMPILED]
    listed = subprocess.run(
        command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    assert {
        "ingest.tap.exchange",
        "ingest.tap.http_head",
        "ingest.tap.record_buffer",
        "ingest.tap.stream_recorder",
    } <= set(listed.stdout.split())


def test_tests_of_the_tap_pass_with_the_compiled_wheel(python: Path, tmp_path: Path) -> None:
    """Includes requests through taps with one and two workers, and random exchanges compared with direct ones."""
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    files = [f"tests/ingest/tap/{name}.py" for name in TEST_FILES]
    command = [python, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
