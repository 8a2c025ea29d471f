"""Build hook: compile modules of `ingest` with Cython to extension modules if a C compiler is present.

Compiled are the `.pyx` files and each `.py` file with a `.pxd` file beside it. The `.pxd` file has its types; without a compiler
the `.py` file runs as it is.

The variable RELAY selects the result. `native`: fail without a compiler. `python`: build a pure Python wheel. Unset: build native
code if possible. The modules serve the version of Python that runs this file; other versions use the pure wheel. (Modules for
Python's stable ABI would serve all versions, but need a fifth more CPU time per short request.) An editable install writes the
modules next to their sources. `python deploy/setup/native.py` does the same, with `CFLAGS` from the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("streamgauge/ingest")
SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
"""End of a module's file name, with the version of Python and the platform."""
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def compiler() -> str | None:
    """The C compiler: $CC, cc or gcc."""
    return shutil.which(os.environ.get("CC") or "cc") or shutil.which("gcc")


def sources(root: Path) -> list[Path]:
    """The files to compile, relative to the repository."""
    folder = root / PACKAGE
    typed = (path.with_suffix(".py") for path in folder.rglob("*.pxd"))
    found = [*folder.rglob("*.pyx"), *(path for path in typed if path.exists())]
    return sorted(path.relative_to(root) for path in found)


def module(source: Path) -> Path:
    """The extension module next to its source."""
    return source.with_name(source.stem + SUFFIX)


def build(root: Path, target: Path) -> str | None:
    """Compile the modules to `target`, which has the same folders as the repository, instead of those of an earlier build.
    Returns the reason in one line if that is impossible here."""
    for earlier in (target / PACKAGE).rglob("*.so"):  # if this build fails, the Python code is used
        earlier.unlink()
    if sys.platform != "linux":
        return "it is written for Linux"
    found = compiler()
    headers = sysconfig.get_path("include")
    if found is None:
        return "no C compiler is installed (on Debian: apt-get install gcc libc6-dev)"
    if not Path(headers, "Python.h").exists():
        return f"{headers} has no Python.h (on Debian: apt-get install python3-dev)"
    files = sources(root)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:

        def compile_module(source: Path, output: Path) -> bool:
            translated = output.with_suffix(".c")
            # Cython writes the paths of its arguments into the C file; a relative one gives the same bytes in every folder.
            # Types come from the `.pxd` alone: `int` in an annotation would be a Python object there.
            # An attribute of None raises as in Python. Without `nonecheck` it ends the process.
            cython = [
                sys.executable, "-m", "cython", "-3", "-X", "annotation_typing=False,auto_pickle=False,binding=False,nonecheck=True",
                "--module-name", ".".join(source.with_suffix("").parts), str(source), "-o", str(translated),
            ]  # fmt: skip
            subprocess.run(cython, cwd=root, check=True)
            flags = [
                "-O2", "-fPIC", "-shared", "-pthread", "-Wall", "-Wno-unused-function", "-Werror=incompatible-pointer-types", "-g0",
                f"-ffile-prefix-map={folder}=.", f"-I{headers}",
                *os.environ.get("CFLAGS", "").split(),
            ]  # fmt: skip
            command = [found, *flags, str(translated), "-o", str(output)]
            return subprocess.run(command, check=False).returncode == 0

        outputs = [Path(folder, f"{number}{SUFFIX}") for number in range(len(files))]
        for source, is_compiled in zip(files, pool.map(compile_module, files, outputs), strict=True):
            if not is_compiled:
                return f"{found} cannot compile {source.name} (on Debian: apt-get install gcc libc6-dev python3-dev)"
        for source, output in zip(files, outputs, strict=True):
            destination = target / module(source)
            destination.parent.mkdir(parents=True, exist_ok=True)
            shutil.move(output, destination)
    return None


class NativeModules(BuildHookInterface[Any]):
    """Hatchling build hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the modules and add them to the wheel."""
        wanted = os.environ.get("RELAY", "")
        if wanted == "python":
            return
        root = Path(self.root)
        self._folder = tempfile.TemporaryDirectory()
        target = root if version == "editable" else Path(self._folder.name)
        problem = build(root, target)
        if problem is not None:
            if wanted == "native":
                raise RuntimeError(f"cannot build the native code: {problem}")
            self.app.display_warning(
                f"cannot build the native code: {problem}. The tap uses its Python code, which needs more CPU time."
            )
        elif version != "editable":
            build_data["pure_python"] = False
            build_data["tag"] = f"{PYTHON_TAG}-{PYTHON_TAG}-{platform_tag()}"
            for path in map(module, sources(root)):
                build_data["force_include"][str(target / path)] = str(path)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary folder."""
        if hasattr(self, "_folder"):
            self._folder.cleanup()


def platform_tag() -> str:
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


if __name__ == "__main__":
    here = Path(__file__).resolve().parents[2]
    if (reason := build(here, here)) is not None:
        sys.exit(f"cannot build the native code: {reason}")
