"""`import streamgauge`: what it offers, what it imports, and the examples in its docstrings."""

from __future__ import annotations

import doctest
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import streamgauge as sg

HEAVY = {"duckdb", "polars", "pyarrow", "pydantic", "click", "msgspec", "streamlit"}
DOCUMENTED = (
    "streamgauge.python_api.recorded_response",
    "streamgauge.python_api.sql_connection",
    "streamgauge.python_api.stream_measures",
)


def test_the_import_loads_no_library() -> None:
    code = "import sys, streamgauge; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_every_name_can_be_imported_and_is_documented() -> None:
    for name in sg.__all__:
        assert getattr(sg, name).__doc__, name
    assert dir(sg) == sorted(("__version__", *sg.__all__))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = sg.conect


def test_a_missing_package_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("duckdb", "streamgauge.python_api.sql_connection"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delitem(sg.__dict__, "connect", raising=False)
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ImportError, match=r"streamgauge\.connect: the package 'duckdb' .* pip install"):
        _ = sg.connect


@pytest.mark.parametrize("module", DOCUMENTED)
def test_examples_of_docstrings(module: str, three_streams: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(three_streams.parent)
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted > 0
    assert found.failed == 0
