"""A report as a file in a real browser: no request, no script, accessible in both themes, no wider than its window; it prints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.dashboard.browser import MARKS, TIMEOUT_MS, Reader, reader
from tests.dashboard.running_dashboard import Dashboard
from tests.dashboard.test_pages_browser import assert_accessible
from tests.dashboard.written_report import Written, last, written

pytestmark = MARKS
PAPER_PX = 695
"""A4 without its margins."""


@pytest.fixture(scope="module")
def report(streams_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("report") / "report.html"
    file.write_bytes(written(streams_data, last(24), title="July")[1])
    return file


@pytest.fixture(scope="module")
def seen(report: Path) -> Iterator[Reader]:
    with reader(report.as_uri()) as found:
        yield found


def test_file_opens_without_a_request_and_is_accessible(seen: Reader, report: Path) -> None:
    requested: list[str] = []
    seen.page.on("request", lambda request: requested.append(request.url))
    seen.page.goto(report.as_uri())
    assert seen.page.title() == "July"
    assert requested == [report.as_uri()]
    assert seen.page.locator("figure svg").count() > 4
    assert seen.page.locator("script").count() == 0
    assert_accessible(seen)
    assert seen.problems == []


@pytest.mark.parametrize("width", [1280, 390])
def test_fits_the_window_and_wide_tables_scroll_by_keyboard(seen: Reader, report: Path, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 900})
    seen.page.goto(report.as_uri())
    assert seen.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert seen.page.evaluate("[...document.querySelectorAll('.table')].every(box => box.tabIndex === 0)")


def test_dark_theme_and_print_have_their_colours(seen: Reader, report: Path) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    seen.page.goto(report.as_uri())
    light = seen.page.evaluate(ground)
    seen.page.emulate_media(color_scheme="dark")
    assert seen.page.evaluate(ground) != light
    seen.page.emulate_media(media="print")
    assert seen.page.evaluate(ground) == light
    assert not seen.page.locator("nav").is_visible()
    seen.page.set_viewport_size({"width": PAPER_PX, "height": 900})
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= PAPER_PX
    assert seen.page.pdf().startswith(b"%PDF")
    seen.page.emulate_media(media="screen", color_scheme="light")


def test_button_downloads_the_report_of_the_page(seen: Reader, dashboard: Dashboard, tmp_path: Path) -> None:
    on_dashboard = Reader(seen.page.context.new_page(), dashboard.url)
    on_dashboard.open("?range=24h&refresh=off")
    with on_dashboard.page.expect_download(timeout=TIMEOUT_MS) as download:
        on_dashboard.page.get_by_role("button", name="Report").click()
    download.value.save_as(tmp_path / "r.html")
    found = Written((tmp_path / "r.html").read_bytes())
    assert "Requests\n400" in found.sections["verdict"]
    assert "Time zone\nEurope/Berlin" in found.sections[""]
