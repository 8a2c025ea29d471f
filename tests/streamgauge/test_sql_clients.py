"""Run the recipes of docs/how-to/sql-clients.md and the notebooks of examples/ against one running SQL server."""

from __future__ import annotations

import configparser
import copy
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from streamgauge.ingest.ready_file import read_ready_file
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import ROOT
from tests.e2e.test_recipes import HOW_TO, follow, steps
from tests.ports import free_port

EXAMPLES = ROOT / "examples"
NOTEBOOKS = [EXAMPLES / "find_a_slow_model.ipynb", EXAMPLES / "compare_two_gateways.ipynb"]
PAGE = (HOW_TO / "sql-clients.md").read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S))


@dataclass
class Place:
    """A folder with the data folder `streamgauge-data`, whose SQL server listens on `port`."""

    folder: Path
    port: int

    def follow(self, title: str) -> None:
        """Follow a recipe, without installing packages and without the terminal program."""
        text = re.sub(r"^\$ (pip install|harlequin) .*\n", "", self.at_port(SECTIONS[title]), flags=re.M)
        follow(text, self.folder, deadline_s=30, **self.environment)

    def at_port(self, text: str) -> str:
        return text.replace("9494", str(self.port))

    @property
    def environment(self) -> dict[str, str]:
        return {"HOME": str(self.folder), "TZ": "America/New_York"}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    found = Place(tmp_path_factory.mktemp("clients"), free_port())
    data = found.folder / "streamgauge-data"
    runpy.run_path(str(EXAMPLES / "make_data.py"))["make"](data, datetime(2026, 9, 21, 15, tzinfo=UTC))
    ((command, _),) = steps(found.at_port(PAGE.partition("## ")[0]))
    assert command.startswith("streamgauge serve ")
    with (found.folder / "serve.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", *command.removesuffix(" &").split()],
            cwd=found.folder, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until(lambda: read_ready_file(data / "run" / "serve.json"), "the SQL server")
        yield found
    finally:
        server.terminate()
        server.wait(DEADLINE_S)


def test_python_pandas_and_polars(place: Place) -> None:
    place.follow("Python, pandas and polars")


def test_a_cell_of_a_notebook_shows_a_relation_as_a_table(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python title=\"cell.py\"\n(.*?)```", SECTIONS["Jupyter and marimo"], re.S)
    *statements, shown = code.strip().splitlines()
    monkeypatch.chdir(place.folder)
    names: dict[str, Any] = {}
    exec("\n".join(statements), names)
    with names["con"] as con:
        assert con.source == f"quack:localhost:{place.port}"
        assert {"minute", "2026-09-21", "│"} <= set(repr(eval(shown, names)).split())


def test_duckdb_without_streamgauge(place: Place) -> None:
    place.follow("DuckDB without Streamgauge")


def test_harlequin(place: Place) -> None:
    if shutil.which("hsql") is None:
        pytest.skip("Harlequin is not installed")
    place.follow("Harlequin")


def test_adbc(place: Place) -> None:
    if not (place.folder / "gauge.sql").exists():
        place.follow("DuckDB without Streamgauge")
    place.follow("BI tools")


def test_parquet_on_a_schedule(place: Place) -> None:
    title = "Parquet on a schedule"
    place.follow(title)
    (line,) = re.findall(r"```cron\n(.*?)\n```", SECTIONS[title])
    *fields, command = line.split(maxsplit=5)
    assert all(re.fullmatch(r"[\d*]+", field) for field in fields)
    assert "%" not in command  # cron ends the command there
    assert (place.folder / command.rpartition("./")[2]).exists()
    assert subprocess.run(["/bin/sh", "-n", "-c", command]).returncode == 0


def test_units_of_the_schedule_are_valid(place: Place, tmp_path: Path) -> None:
    units = dict(re.findall(r"```ini title=\"(.+?)\"\n(.*?)```", SECTIONS["Parquet on a schedule"], re.S))
    assert {Path(name).suffix for name in units} == {".service", ".timer"}
    for name, text in units.items():
        parsed = configparser.ConfigParser(strict=False, interpolation=None)
        parsed.read_string(text)
        if name.endswith(".service"):
            assert Path(parsed["Service"]["ExecStart"]).name in re.findall(r"title=\"(.+?)\"", PAGE)
            text = text.replace(parsed["Service"]["ExecStart"], "/bin/true")
        (tmp_path / name).write_text(text)
    if shutil.which("systemd-analyze") is None:
        return
    done = subprocess.run(
        ["systemd-analyze", "verify", *(str(tmp_path / name) for name in units)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert not [line for line in done.stderr.splitlines() if str(tmp_path) in line], done.stderr


def test_notebooks_run_and_print_what_they_contain(place: Place) -> None:
    """Both run in one kernel, which takes seconds to start."""
    slow, gateways = (nbformat.read(file, as_version=4) for file in NOTEBOOKS)
    executed = copy.deepcopy(slow)
    executed.cells += copy.deepcopy(gateways.cells)
    for number, cell in enumerate(executed.cells):
        cell.id = f"cell-{number}"
    NotebookClient(
        executed, timeout=DEADLINE_S, resources={"metadata": {"path": str(place.folder)}}
    ).execute()
    found = printed(executed)
    assert found == printed(slow) + printed(gateways)
    assert found[0] == "large-chat: 2.8 times the time to first token of before\n"
    assert found[-1].startswith("west adds 91 ms to the time to first token")


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_is_executed_and_shows_no_paths_of_a_machine(file: Path) -> None:
    notebook = nbformat.read(file, as_version=4)
    assert all(cell.outputs for cell in notebook.cells if cell.cell_type == "code")
    assert not re.search(r"/(tmp|root|home|work)/|https?://|Traceback", file.read_text())


def printed(notebook: nbformat.NotebookNode) -> list[str]:
    """The texts that the cells print, tables not included."""
    return [output.text for cell in notebook.cells for output in cell.get("outputs", ()) if "text" in output]
