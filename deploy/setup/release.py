"""Build the files of a release into dist/, from the commit and without network: `make release`, `make release VERSION=0.1.0`.

The version is `__version__` of streamgauge/__init__.py. Two builds of one commit have the same bytes, in any folder; images
have the same packages. Exits with 2 and one line if the tree, the version or CHANGELOG.md is not ready for a release.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EPOCH_S = 315532800
"""Time of all files in the archives: the oldest that a zip file can hold."""
MONITORING = ("README.md", "grafana.json", "alerts.yaml", "prometheus.yaml")
"""Files of deploy/otel for Prometheus and Grafana."""
NO_BUILDER = 69
"""Exit code of deploy/setup/image without docker, podman or buildah."""


def main() -> int:
    parser = argparse.ArgumentParser(description="Build the files of a release into dist/.")
    parser.add_argument("version", nargs="?", help="expected version; by default the one of the code")
    parser.add_argument("--no-images", action="store_true", help="do not build images")
    given = parser.parse_args()
    version = version_of(ROOT)
    if given.version not in (None, version):
        return fail(f"the version is {version}, not {given.version}. Change streamgauge/__init__.py")
    if changed := output("git", "status", "--porcelain"):
        return fail(f"{len(changed.splitlines())} files differ from the commit. Commit or remove them")
    notes = changelog_section((ROOT / "CHANGELOG.md").read_text(), version)
    if notes is None:
        return fail(f"CHANGELOG.md has no section [{version}]. Add one")
    with tempfile.TemporaryDirectory() as folder:
        tree, built = Path(folder) / "tree", Path(folder) / "dist"
        export_commit(tree)
        built.mkdir()
        build(tree, built, version)
        (built / "RELEASE_NOTES.md").write_text(notes)
        (built / "SHA256SUMS").write_text(checksums(built))
        shutil.rmtree(ROOT / "dist", ignore_errors=True)
        shutil.copytree(built, ROOT / "dist")
    for path in sorted((ROOT / "dist").iterdir()):
        print(f"dist/{path.name}  {path.stat().st_size} bytes")
    if not given.no_images:
        code = subprocess.run([ROOT / "deploy" / "setup" / "image"], cwd=ROOT, check=False).returncode
        return 0 if code == NO_BUILDER else code
    return 0


def version_of(root: Path) -> str:
    """The version of the code, without importing it."""
    found = re.search(r'^__version__ = "(.+)"$', (root / "streamgauge" / "__init__.py").read_text(), re.M)
    assert found is not None
    return found[1]


def changelog_section(text: str, version: str) -> str | None:
    """The section of a version with its heading; None if there is none."""
    found = re.search(rf"^## \[{re.escape(version)}\].*?(?=^## |\Z)", text, re.M | re.S)
    return found[0].rstrip() + "\n" if found else None


def export_commit(folder: Path) -> None:
    """Write the files of the commit."""
    packed = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")


def build(tree: Path, out: Path, version: str) -> None:
    """Build wheels, sdist, bill of materials, chart and monitoring package of a source tree."""
    environment = {**os.environ, "SOURCE_DATE_EPOCH": str(EPOCH_S)}
    backend = [sys.executable, "-m", "hatchling", "build", "-d", out]
    # Validation takes five seconds and changes no byte.
    bill = [
        Path(sys.executable).with_name("cyclonedx-py"),
        "requirements",
        "--no-validate",
        "--output-reproducible",
    ]
    for command, relay in (
        ([*backend, "-t", "sdist", "-t", "wheel"], "python"),
        ([*backend, "-t", "wheel"], "native"),
        ([*bill, "-o", out / "streamgauge.cdx.json", "requirements.lock"], ""),
    ):
        settings = {**environment, "RELAY": relay}
        done = subprocess.run(command, cwd=tree, env=settings, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
    chart = tree / "deploy" / "helm" / "streamgauge"
    pack(
        out / f"streamgauge-{version}.tgz",
        {f"streamgauge/{path.relative_to(chart)}": path for path in chart.rglob("*") if path.is_file()},
    )
    name = f"streamgauge-monitoring-{version}"
    files = {f"{name}/{file}": tree / "deploy" / "otel" / file for file in MONITORING}
    pack(out / f"{name}.tar.gz", {f"{name}/LICENSE": tree / "LICENSE", **files})


def pack(path: Path, files: Mapping[str, Path]) -> None:
    """Write a tar.gz whose bytes depend only on names and contents. Links are replaced by their files."""
    with (
        path.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=EPOCH_S) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as archive,
    ):
        for name, file in sorted(files.items()):
            content = file.read_bytes()
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(content), EPOCH_S
            archive.addfile(member, io.BytesIO(content))


def checksums(folder: Path) -> str:
    """The files in the format of sha256sum."""
    paths = sorted(folder.iterdir())
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in paths)


def output(*command: str) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def fail(message: str) -> int:
    print(f"release: {message}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
