"""Saved views in the file, as flags and in the environment, and what the dashboard makes of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner

from streamgauge.cli import cli
from streamgauge.dashboard.filters import saved_views_markup
from streamgauge.settings.flags import flags, load
from streamgauge.settings.model import Settings
from streamgauge.settings.process_options import dashboard_options
from streamgauge.settings.tables import MAX_VIEWS, SAVED_VIEW, SavedView, parse_saved_views
from tests.dashboard.app_test import open_page

EXPECTED = (SavedView("rate limits", "streams?status=429&range=24h"), SavedView("A & B", "?range=1h"))
FILE = """
[saved_views]
"rate limits" = "https://gauge.example.com/streams?status=429&token=secret&range=24h"
"A & B" = "/?range=1h"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_table_of_the_file_and_of_config_check(folder: Path) -> None:
    (folder / "streamgauge.toml").write_text(FILE)
    assert dashboard_options(load({})).saved_views == EXPECTED
    printed = CliRunner().invoke(cli, ["config", "check"])
    assert printed.exit_code == 0, printed.output
    assert "secret" not in printed.output
    (folder / "streamgauge.toml").write_text(printed.output)
    assert load({}).saved_views == EXPECTED


def test_flags_for_a_child_process_give_the_same_views() -> None:
    argv = flags(Settings(saved_views=EXPECTED), ["saved_views"])
    assert load({"saved_views": tuple(argv[1::2])}).saved_views == EXPECTED


def test_environment_as_the_dashboard_passes_it_to_its_pages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STREAMGAUGE_SAVED_VIEWS", '{"<b>hot</b>": "streams?kind=errors&range=24h"}')
    assert load({}).saved_views == (SavedView("<b>hot</b>", "streams?kind=errors&range=24h"),)
    app = open_page(folder, monkeypatch)
    found = [html.proto.body for html in app.sidebar.get("html") if "Saved views" in html.proto.body]
    assert (
        '<a href="./streams?kind=errors&amp;range=24h" target="_self">&lt;b&gt;hot&lt;/b&gt;</a>' in found[0]
    )


def test_view_of_the_first_page_leads_there_from_other_pages() -> None:
    assert 'href="./?range=1h"' in saved_views_markup([("all", "?range=1h")])


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("=streams",), "the name '' is not text of 1 to 64 characters without equals signs"),
        (("a",), "the value is not a table of addresses by name, such as " + SAVED_VIEW),
        (("a=x", "a=y"), "'a' is taken: give each entry its own"),
        *(
            ((f"a={address}",), f"the address of 'a' is not a page of the dashboard with parameters, such as in {SAVED_VIEW}")
            for address in ("", "javascript:alert(1)", "Ünknown", "/", "streams?" + "x" * 2000)
        ),
    ],
)  # fmt: skip
def test_wrong_view_is_one_clear_line(given: object, message: str) -> None:
    with pytest.raises(UsageError) as wrong:
        load({"saved_views": given})
    assert wrong.value.message == f"--saved-views: {message}."


def test_number_of_views_is_limited() -> None:
    with pytest.raises(ValueError, match=f"above the limit of {MAX_VIEWS}"):
        parse_saved_views({f"view {n}": "streams" for n in range(MAX_VIEWS + 1)})
