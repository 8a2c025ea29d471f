"""The licences of dependencies allow shipping, and the lock files have hashes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = re.compile(
    r"MIT|Apache|BSD|ISC|PSF|Python Software Foundation|MPL|Mozilla|Zlib|Unlicense|CC0|0BSD|HPND|Public Domain",
    re.I,
)
REVIEWED = {"crc32c": "LGPL-2.1-or-later: a library that we call, unchanged and replaceable"}
OTHER_PLATFORMS = {"colorama", "httpx2-jsfetch", "pywin32", "tzdata"}


@pytest.mark.parametrize(
    "lock",
    [
        "requirements.lock",
        "requirements-dev.lock",
        "deploy/tap.lock",
        "deploy/build.lock",
        "tests/e2e/litellm.lock",
        "bench/analytics/quix.lock",
        "bench/tap/peers.lock",
    ],
)
def test_every_locked_version_has_hashes_and_no_url(lock: str) -> None:
    text = (ROOT / lock).read_text()
    entries = re.split(r"\n(?=\S)", text.strip())
    assert entries
    for entry in entries:
        assert "--hash=sha256:" in entry, entry.splitlines()[0]
    assert "://" not in text


def test_every_shipped_package_is_listed_with_an_allowed_licence() -> None:
    rows = re.findall(
        r"^\| (\S+) +\| (\S+) +\| (.+?) +\|$", (ROOT / "docs" / "reference" / "licences.md").read_text(), re.M
    )[1:]
    listed = {name.lower().replace("_", "-"): (version, licence) for name, version, licence in rows}
    pinned: dict[str, set[str]] = {}  # a package may have one version per Python version
    for name, version in re.findall(
        r"^([a-z0-9._-]+)==([^ ;]+)", (ROOT / "requirements.lock").read_text(), re.M
    ):
        pinned.setdefault(name, set()).add(version)
    for name, (version, licence) in listed.items():
        assert version in pinned[name], f"{name}: make licences"
        assert name in REVIEWED or ALLOWED.search(licence), (name, licence)
    unlisted = pinned.keys() - listed.keys()
    assert unlisted <= OTHER_PLATFORMS, f"{unlisted}: make licences"
