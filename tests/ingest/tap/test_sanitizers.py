"""The native code under gcc's sanitizers: no invalid memory access and no data race in the tap's traffic tests."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.installed import ROOT

pytestmark = [
    pytest.mark.skipif(
        shutil.which("gcc") is None, reason="no gcc; on Debian: apt-get install gcc libc6-dev"
    ),
    pytest.mark.skipif(os.environ.get("STREAMGAUGE_INTERPRETED") == "1", reason="compiles the tap itself"),
    pytest.mark.timeout(1800),
]
SHORT = "body_relay exchanges forwarding http_body short_exchanges"
LONG = (
    f"{SHORT} disconnects draining exchange_walks fairness header_rewrite http_head limits record_buffer record_log_thread "
    "recorded_exchanges recorder states waits"
)
"""Files of this folder without `test_` and `.py`."""


@pytest.mark.parametrize(
    ("sanitizer", "flags", "names"),
    [
        pytest.param("address,undefined", "-O0 -g1", SHORT, id="short"),
        pytest.param("address,undefined", "-O1 -g", LONG, id="long", marks=pytest.mark.slow),
        pytest.param("thread", "-O1 -g", LONG, id="thread", marks=pytest.mark.slow),
    ],
)
def test_tests_of_the_tap_pass_under_a_sanitizer(
    sanitizer: str, flags: str, names: str, tmp_path: Path
) -> None:
    """Only the extensions are instrumented. Python frees all its memory lazily, so leaks are not reported."""
    for name in ("tests", "streamgauge"):
        shutil.copytree(
            ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__", "*.so"), symlinks=True
        )
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "deploy" / "setup").mkdir(parents=True)
    shutil.copy(ROOT / "deploy" / "setup" / "native.py", tmp_path / "deploy" / "setup")
    flags = f"{flags} -fno-omit-frame-pointer -fsanitize={sanitizer}"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "PYTHONPATH"))}
    build = [sys.executable, "deploy/setup/native.py"]
    subprocess.run(build, cwd=tmp_path, env={**environment, "CFLAGS": flags}, check=True)
    library = "libtsan.so" if sanitizer == "thread" else "libasan.so"
    preload = subprocess.run(
        ["gcc", f"-print-file-name={library}"], capture_output=True, text=True, check=True
    ).stdout.strip()
    reports = tmp_path / "report"
    options = f"log_path={reports}:detect_leaks=0:halt_on_error=0"
    files = [f"tests/ingest/tap/test_{name}.py" for name in names.split()]
    # Without randomised addresses: older versions of TSan cannot map their shadow memory otherwise.
    command = [
        "setarch",
        platform.machine(),
        "-R",
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-m",
        "not slow",
    ]
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *files],
        cwd=tmp_path,
        env={
            **environment, "LD_PRELOAD": preload, "ASAN_OPTIONS": options, "TSAN_OPTIONS": options, "UBSAN_OPTIONS": options,
            "PYTHONPATH": str(tmp_path), "PYTHONMALLOC": "malloc",
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    found = "".join(path.read_text() for path in tmp_path.glob("report.*"))
    assert not found, found[:4000]
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
