"""The documentation builds as a site without warnings, and every page is in the navigation."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_site_builds_without_warnings(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path / "site"],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    for page in (ROOT / "docs").rglob("*.md"):
        assert f"{page.relative_to(ROOT / 'docs')}" in (ROOT / "mkdocs.yml").read_text(), (
            f"{page.name} is not in the navigation"
        )
        twin = tmp_path / "site" / page.relative_to(ROOT / "docs")
        assert twin.read_text() == page.read_text()
    listed = (tmp_path / "site" / "llms.txt").read_text()
    assert listed.startswith("# Streamgauge\n\n> ")
    assert (
        "- [Query with SQL](how-to/query.md): Query the tables and views with `streamgauge sql`, on the dashboard's SQL page, or from "
        "any DuckDB client.\n" in listed
    )
    pages = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): \S.*", listed, re.M)
    assert sorted(pages) == sorted(str(p.relative_to(ROOT / "docs")) for p in (ROOT / "docs").rglob("*.md"))
    assert (tmp_path / "site" / "how-to" / "own-gateway" / "index.html").exists()
    assert "https://fonts" not in (tmp_path / "site" / "index.html").read_text()
