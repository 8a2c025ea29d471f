"""Compiled and interpreted code: which one a process runs, and what it reports."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from streamgauge.ingest.tap import is_compiled

LOADED = """
import json, sys
from streamgauge.ingest.tap.process import worker
print(json.dumps({
    name: module.__spec__.origin
    for name, module in sys.modules.items() if name.startswith("streamgauge.ingest.")
}))
"""


def run(*arguments: str, interpreted: bool) -> str:
    environment = {**os.environ, "STREAMGAUGE_INTERPRETED": "1" if interpreted else "0"}
    command = [sys.executable, "-P", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def compiled_modules(*, interpreted: bool) -> set[str]:
    loaded = json.loads(run("-c", LOADED, interpreted=interpreted))
    return {name for name, file in loaded.items() if file.endswith(".so")}


def test_interpreted_process_loads_no_compiled_module() -> None:
    assert compiled_modules(interpreted=True) == set()


@pytest.mark.skipif(not is_compiled(), reason="the process runs interpreted")
def test_compiled_process_loads_the_compiled_modules() -> None:
    assert compiled_modules(interpreted=False) >= {
        "streamgauge.ingest.http1.heads",
        "streamgauge.ingest.tap.relay.native_relay",
    }


def test_version_reports_relay_and_code() -> None:
    expected = {True: ("python", "interpreted")} | ({False: ("native", "compiled")} if is_compiled() else {})
    for interpreted, reported in expected.items():
        found = json.loads(run("-m", "streamgauge", "version", "--format", "json", interpreted=interpreted))
        assert (found["relay"], found["code"]) == reported
