"""`make release`: the same bytes from two folders, complete archives, one version everywhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from sysconfig import get_config_var, get_platform

import pytest
import yaml

from streamgauge import __version__
from tests.deploy.manifests import DEPLOY, ROOT, documents

PYTHON = f"cp{sys.version_info.major}{sys.version_info.minor}"
WHEEL = f"streamgauge-{__version__}-py3-none-any.whl"
NATIVE = f"streamgauge-{__version__}-{PYTHON}-{PYTHON}-{get_platform().replace('-', '_')}.whl"
SDIST = f"streamgauge-{__version__}.tar.gz"
CHART = f"streamgauge-{__version__}.tgz"
MONITORING = f"streamgauge-monitoring-{__version__}.tar.gz"


def git(*words: str, cwd: Path) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.com")
    return subprocess.run(
        ["git", *identity, *words], cwd=cwd, check=True, capture_output=True, text=True
    ).stdout


def repository(folder: Path) -> Path:
    """A repository with the tracked and the new files of this one, in one commit."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    listed = git("ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT).splitlines()
    for name in listed:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, folder / name, follow_symlinks=False)
    git("init", "--quiet", cwd=folder)
    git("add", "--all", cwd=folder)
    git("commit", "--quiet", "--message", "all", cwd=folder)
    return folder


def release(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, folder / "deploy" / "setup" / "release.py", *words]
    quick = {**os.environ, "CFLAGS": "-O0"}
    return subprocess.run(command, cwd=folder.parent, env=quick, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module")
def dist(checkout: Path) -> Path:
    """The release of a folder that also has files that git ignores."""
    (checkout / "streamgauge" / "ingest" / "__pycache__").mkdir()
    (checkout / "ingest" / "__pycache__" / "x.pyc").touch()
    (checkout / "dist").mkdir()
    (checkout / "dist" / "streamgauge-0.0.1.tgz").touch()
    done = release(checkout, __version__, "--no-images")
    assert done.returncode == 0, done.stderr
    return checkout / "dist"


@pytest.mark.slow  # compiles the tap once more
def test_release_from_another_folder_has_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    other = repository(tmp_path / "a folder")
    done = release(other, "--no-images")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in dist.iterdir()} == {
        WHEEL, NATIVE, SDIST, CHART, MONITORING, "streamgauge.cdx.json", "RELEASE_NOTES.md", "SHA256SUMS",
    }  # fmt: skip
    assert (dist / "SHA256SUMS").read_text() == (other / "dist" / "SHA256SUMS").read_text()


def test_checksums_are_those_of_all_files(dist: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "--check", "--strict", "SHA256SUMS"], cwd=dist, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == len([*dist.iterdir()]) - 1


def test_sdist_has_all_files_of_the_commit_and_builds_the_same_wheel(
    checkout: Path, dist: Path, tmp_path: Path
) -> None:
    with tarfile.open(dist / SDIST) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
        archive.extractall(tmp_path, filter="data")
        assert {(m.uid, m.gid, m.uname, m.gname) for m in archive.getmembers()} == {(0, 0, "", "")}
    links = {"ingest", "analytics", "dashboard"}
    assert names == set(git("ls-files", cwd=checkout).splitlines()) - links | {"PKG-INFO"}
    source = tmp_path / SDIST.removesuffix(".tar.gz")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheel"],
        cwd=source, env={"SOURCE_DATE_EPOCH": "315532800", "PATH": ""}, capture_output=True, check=True,
    )  # fmt: skip
    assert (tmp_path / "wheel" / WHEEL).read_bytes() == (dist / WHEEL).read_bytes()


def test_wheel_has_the_product_and_its_man_pages(dist: Path) -> None:
    names = zipfile.ZipFile(dist / WHEEL).namelist()
    assert "streamgauge/analytics/schema/schema.sql" in names
    assert f"streamgauge-{__version__}.data/data/share/man/man1/streamgauge-up.1" in names
    assert {name.partition("/")[0] for name in names} == {
        "streamgauge",
        f"streamgauge-{__version__}.data", f"streamgauge-{__version__}.dist-info",
    }  # fmt: skip


def test_native_wheel_has_the_same_files_and_the_native_relay(dist: Path, tmp_path: Path) -> None:
    def files(name: str) -> set[str]:
        return {n for n in zipfile.ZipFile(dist / name).namelist() if ".dist-info/" not in n}

    suffix = get_config_var("EXT_SUFFIX")
    relay = f"streamgauge/ingest/tap/relay/native_relay{suffix}"
    modules = files(NATIVE) - files(WHEEL)
    assert relay in modules
    assert all(name.endswith(suffix) for name in modules)
    assert files(WHEEL) <= files(NATIVE)
    zipfile.ZipFile(dist / NATIVE).extract(relay, tmp_path)
    load = "from native_relay import NativeRelay as r; relay = r(); relay.start(); relay.close(); print(relay.counts()[0])"
    command = [sys.executable, "-c", load]
    done = subprocess.run(
        command, cwd=tmp_path / "streamgauge/ingest/tap/relay", capture_output=True, text=True, check=False
    )
    assert done.stdout == "0\n", done.stderr


def test_chart_package_has_the_files_of_the_chart_without_links(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / CHART) as archive:
        assert all(member.isfile() for member in archive.getmembers())
        archive.extractall(tmp_path, filter="data")
    chart = DEPLOY / "helm" / "streamgauge"
    files = {path.relative_to(chart): path.read_bytes() for path in chart.rglob("*") if path.is_file()}
    packed = tmp_path / "streamgauge"
    assert {p.relative_to(packed): p.read_bytes() for p in packed.rglob("*") if p.is_file()} == files
    if helm := shutil.which("helm"):
        subprocess.run([helm, "lint", "--strict", dist / CHART], check=True, capture_output=True)


def test_monitoring_package_has_dashboard_and_rules(dist: Path, tmp_path: Path) -> None:
    with tarfile.open(dist / MONITORING) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / MONITORING.removesuffix(".tar.gz")
    assert json.loads((folder / "grafana.json").read_text())["title"] == "Streamgauge"
    (scrape,) = documents(folder / "prometheus.yaml")
    assert all((folder / name).exists() for name in scrape["rule_files"])
    assert yaml.safe_load((folder / "alerts.yaml").read_text())["groups"]
    listed = re.findall(r"^\| `(\S+)`", (folder / "README.md").read_text(), re.M)
    assert {*listed, "README.md", "LICENSE"} == {path.name for path in folder.iterdir()}


def test_bill_of_materials_has_the_locked_packages(dist: Path) -> None:
    components = json.loads((dist / "streamgauge.cdx.json").read_text())["components"]
    locked = re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.M)
    assert {component["name"] for component in components} == set(locked)


def test_release_notes_are_the_section_of_the_version(dist: Path) -> None:
    notes = (dist / "RELEASE_NOTES.md").read_text()
    assert notes.startswith(f"## [{__version__}]")
    assert notes.count("\n## ") == 0
    assert notes in (ROOT / "CHANGELOG.md").read_text()


@pytest.fixture
def unready(checkout: Path) -> Iterator[Path]:
    yield checkout
    git("reset", "--quiet", "--hard", cwd=checkout)


def test_changed_tree_is_refused_in_one_line(unready: Path) -> None:
    (unready / "README.md").write_text("changed")
    done = release(unready)
    assert (done.returncode, done.stderr) == (
        2, "release: 1 files differ from the commit. Commit or remove them.\n",
    )  # fmt: skip


def test_other_version_is_refused_in_one_line(checkout: Path) -> None:
    done = release(checkout, "9.9.9")
    assert (done.returncode, done.stderr) == (
        2, f"release: the version is {__version__}, not 9.9.9. Change streamgauge/__init__.py.\n",
    )  # fmt: skip


def test_version_without_section_in_the_changelog_is_refused_in_one_line(tmp_path: Path) -> None:
    for name in ("deploy/setup/release.py", "streamgauge/__init__.py", "CHANGELOG.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    changelog = tmp_path / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace(f"[{__version__}]", "[0.0.1]"))
    git("init", "--quiet", cwd=tmp_path)
    git("add", "--all", cwd=tmp_path)
    git("commit", "--quiet", "--message", "all", cwd=tmp_path)
    done = release(tmp_path)
    assert (done.returncode, done.stderr) == (
        2, f"release: CHANGELOG.md has no section [{__version__}]. Add one.\n",
    )  # fmt: skip


def test_every_other_place_has_the_version_of_the_code() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "streamgauge/__init__.py"}
    newest = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert newest is not None
    assert newest[1] == __version__
    (chart,) = documents(DEPLOY / "helm" / "streamgauge" / "Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
    tags = re.findall(r'newTag: "(.+?)"', (ROOT / "docs" / "how-to" / "kubernetes.md").read_text())
    assert set(tags) == {__version__}
