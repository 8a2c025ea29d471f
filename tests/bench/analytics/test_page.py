"""Sections of docs/explanation/performance.md."""

from __future__ import annotations

from pathlib import Path

from bench.analytics.page import Section


def section(folder: Path) -> Section:
    return Section("store", folder / "results.json", folder / "page.md")


def test_saved_parts_are_written_between_the_markers_in_order(tmp_path: Path) -> None:
    one = section(tmp_path)
    one.page.write_text("before\n<!-- bench store: begin -->\nold\n<!-- bench store: end -->\nafter\n")
    one.keep("second", ["2"], "--rounds 5")
    one.keep("first", ["1"])
    assert one.write(["first", "second"])
    text = one.page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.index("1\n\n`python -m bench store first`") < text.index(
        "2\n\n`python -m bench store second --rounds 5`"
    )


def test_page_without_markers_is_not_changed(tmp_path: Path) -> None:
    one = section(tmp_path)
    one.page.write_text("nothing here\n")
    one.keep("first", ["1"])
    assert not one.write(["first"])
    assert one.page.read_text() == "nothing here\n"
