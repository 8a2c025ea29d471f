"""Plugins are found by entry points. Broken ones are one line and are left out."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from streamgauge.ingest.keyed_ids import parse_session_headers
from streamgauge.ingest.plugins import SESSION_HEADERS, function, load_plugins


def add_package(folder: Path, name: str, entry_points: str, module: str = "") -> None:
    """An installed package without an installer."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    (folder / f"{name}.py").write_text(module)


def test_plugins_of_a_group_are_loaded_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add_package(
        tmp_path,
        "plug_b",
        "[streamgauge.a]\nb = plug_b:run\n[streamgauge.other]\nx = nowhere\n",
        "def run(): return 2",
    )
    add_package(tmp_path, "plug_a", "[streamgauge.a]\na = plug_a:run\n", "def run(): return 1")
    monkeypatch.syspath_prepend(tmp_path)
    found = load_plugins("streamgauge.a", function)
    assert [(name, run()) for name, run in found.items()] == [("a", 1), ("b", 2)]


@pytest.mark.parametrize(
    ("target", "module", "why"),
    [
        ("broken:x", "", "AttributeError: module 'broken' has no attribute 'x'"),
        (
            "broken.gone:x",
            "",
            "ModuleNotFoundError: No module named 'broken.gone'; 'broken' is not a package",
        ),
        ("broken:x", "x = 3", "TypeError: 3 is not a function"),
        ("broken:x", "raise SystemError('two\\nlines')", "SystemError: two lines"),
        ("broken:x", "x = (", "SyntaxError: '(' was never closed (broken.py, line 1)"),
    ],
)
def test_broken_plugin_is_one_line_and_the_others_are_loaded(
    target: str,
    module: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    add_package(tmp_path, "broken", f"[streamgauge.a]\nbad = {target}\n", module)
    add_package(tmp_path, "plug_good", "[streamgauge.a]\ngood = plug_good:run\n", "def run(): pass")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(__import__("sys").modules, "broken", raising=False)
    with caplog.at_level(logging.WARNING):
        assert list(load_plugins("streamgauge.a", function)) == ["good"]
    assert caplog.messages == [
        f"cannot load the plugin bad (streamgauge.a) of broken: {why}. Correct or uninstall the package"
    ]


def test_session_headers_are_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    lines = ["[streamgauge.session_headers]"] + [
        f"{name} = plug_headers:{name}" for name in ("one", "two", "none", "secret")
    ]
    module = "one = 'x-one'\ntwo = ['x-two:plain', 'x-three']\nnone = {}\nsecret = 'authorization'\n"
    add_package(tmp_path, "plug_headers", "\n".join(lines), module)
    monkeypatch.syspath_prepend(tmp_path)
    with caplog.at_level(logging.WARNING):
        found = load_plugins(SESSION_HEADERS, parse_session_headers)
    assert found == {"one": ("x-one",), "two": ("x-two:plain", "x-three")}
    assert len(caplog.messages) == 2
    assert "which is never recorded" in caplog.messages[1]
