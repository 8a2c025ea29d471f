"""`streamgauge report`: its range, its file, files that `open` reads, and errors."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from streamgauge.cli import cli
from tests.dashboard.generated_store import filled
from tests.dashboard.written_report import Written
from tests.ingest.files.hars import entry, har

END = datetime.now(UTC) - timedelta(days=20)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose newest requests are 20 days old. Analytics does not run."""
    return filled(tmp_path_factory.mktemp("report"), streams=40, until=END, hours=1)


@pytest.fixture(autouse=True)
def in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def report(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["report", *map(str, arguments)])


def test_stopped_store_is_reported_up_to_its_end_in_a_dated_file(stopped: Path, tmp_path: Path) -> None:
    done = report("--data", stopped, "--since", "7d")
    assert done.exit_code == 0, done.output
    [file] = tmp_path.glob("streamgauge-report-*.html")
    assert done.stdout == f"{file.name}\n"
    found = Written(file.read_bytes())
    assert "Requests\n40" in found.sections["verdict"]
    assert f"{END:%Y-%m-%d}" in found.sections[""]


def test_existing_file_is_replaced_only_with_force(stopped: Path, tmp_path: Path) -> None:
    file = tmp_path / "r.html"
    file.write_text("mine")
    refused = report("--data", stopped, "--output", file)
    assert refused.exit_code == 2
    assert "--force" in refused.output
    assert file.read_text() == "mine"
    done = report(
        "--data",
        stopped,
        "--output",
        file,
        "--force",
        "--title",
        "Weekly",
        "--without",
        "spend",
        "--gateway",
        "edge-eu",
    )
    assert done.exit_code == 0, done.output
    found = Written(file.read_bytes())
    assert "Weekly" in found.sections[""]
    assert "gateway edge-eu" in found.sections[""]
    assert "spend" not in found.sections


def test_files_are_measured_as_open_does(tmp_path: Path) -> None:
    (tmp_path / "page.har").write_text(har(entry(), entry()))
    done = report("page.har", "--output", "r.html")
    assert done.exit_code == 0, done.output
    assert "Requests\n2" in Written((tmp_path / "r.html").read_bytes()).sections["verdict"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["page.har", "r.html"]


def test_damaged_file_is_named_after_the_report_of_the_others(tmp_path: Path) -> None:
    (tmp_path / "page.har").write_text(har(entry()))
    done = report("page.har", "missing.har", "--output", "r.html")
    assert done.exit_code == 1
    assert "missing.har" in done.output
    assert (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["--since", "yesterday"], 2, "neither a duration"),
        (["--since", "2026-01-02", "--until", "2026-01-01"], 2, "is empty"),
        (["--session", "nobody"], 1, "no request of this session"),
        (["--price-file", "p.csv"], 2, "either FILE"),
        (["page.har"], 2, "either FILE"),
        (["--output", "none/r.html"], 1, "cannot write none/r.html: No such file"),
    ],
)
def test_wrong_arguments_are_one_clear_line(
    stopped: Path, arguments: list[str], code: int, says: str
) -> None:
    done = report("--data", stopped, *arguments)
    assert (done.exit_code, says in done.output) == (code, True), done.output
    assert not list(Path().glob("*.html"))


def test_missing_store_is_one_line() -> None:
    done = report("--data", "nowhere")
    assert done.exit_code == 1
    assert "nowhere does not exist" in done.output
