"""Build hook of the wheel: with COMPILED=1 in the environment, mypyc compiles the tap's data path to machine code.

The wheel also contains the Python source of the compiled modules, for tracebacks. Compilation runs in a temporary
folder and writes nothing into the source tree. It needs a C compiler; the wheel then fits one Python version and one platform.
Without COMPILED=1, and for an editable install, the wheel is pure Python.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

MODULES = (
    "ids", "tap/body_capture", "tap/client_connection", "tap/client_identity", "tap/context", "tap/counters", "tap/exchange",
    "tap/exchange_states", "tap/header_allow_list", "tap/header_rewrite", "tap/http_body", "tap/http_head",
    "tap/http_header_fields", "tap/record_buffer", "tap/routing", "tap/stream_recorder", "tap/trace_context", "tap/tunnel",
    "tap/upstream_connection", "tap/waits",
)  # fmt: skip
"""Modules of `ingest` that run for each request and each read."""
_SETUP = """
import sys
from mypyc.build import mypycify
from setuptools import setup

options, files = ["--strict", "--ignore-missing-imports"], sys.argv[1:]
sys.argv[1:] = ["--quiet", "build_ext", "--inplace"]
setup(
    name="streamgauge",
    packages=[],
    py_modules=[],
    ext_modules=mypycify([*options, *files], group_name="streamgauge", debug_level="0"),
)
"""


class CompiledTap(BuildHookInterface[Any]):
    """Hatchling build hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules and add them to the wheel."""
        if version == "editable" or os.environ.get("COMPILED") != "1":
            return
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        pure = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(Path(self.root) / "ingest", folder / "ingest", ignore=pure)
        files = [f"ingest/{name}.py" for name in MODULES]
        subprocess.run([sys.executable, "-c", _SETUP, *files], cwd=folder, check=True)
        found = [*folder.glob("*.so"), *(folder / "ingest").rglob("*.so")]
        if len(found) != len(MODULES) + 1:
            raise RuntimeError(f"mypyc built {len(found)} extension modules, expected {len(MODULES) + 1}")
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for path in found:
            build_data["force_include"][str(path)] = str(path.relative_to(folder))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()
