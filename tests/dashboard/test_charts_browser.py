"""Charts in a real browser: a drag zooms the time range, and the crosshair is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from streamgauge.dashboard import zoom
from tests.dashboard.browser import MARKS, TIMEOUT_MS, Reader, reader
from tests.dashboard.running_dashboard import Dashboard

pytestmark = MARKS
CHART = "[class*=st-key-over-time-]"
PLOT = f"{CHART} .role-frame.root > g > path.background"


@pytest.fixture(scope="module")
def seen(dashboard: Dashboard) -> Iterator[Reader]:
    with reader(dashboard.url, height=1800) as found:
        yield found


def test_drag_zooms_the_range_and_one_click_restores_it(seen: Reader) -> None:
    seen.open("?range=24h&refresh=off")
    plot = seen.page.locator(PLOT).first.bounding_box()
    assert plot is not None
    hours = seen.page.locator(f"{CHART} .role-axis-label text").filter(has_text=re.compile(r"^\d\d:00$"))
    hours.first.wait_for(timeout=TIMEOUT_MS)
    assert hours.count() >= 4  # the axis has the time range, so the hours are at different places
    x, y = plot["x"], plot["y"] + plot["height"] / 2
    seen.page.mouse.move(x + 0.5 * plot["width"], y)
    assert seen.page.locator(".time-crosshair").count() == seen.page.locator(PLOT).count() == 4
    seen.page.mouse.down()
    seen.page.mouse.move(x + 0.75 * plot["width"], y, steps=3)
    assert seen.page.locator(".time-brush").count() == 4
    seen.page.mouse.up()
    seen.page.wait_for_url("**zoom=*", timeout=TIMEOUT_MS)
    span = zoom.from_text(parse_qs(urlsplit(seen.page.url).query)["zoom"][0])
    assert span is not None
    assert (span[1] - span[0]).total_seconds() == pytest.approx(6 * 3600, rel=0.02)
    caption = seen.page.locator("[data-testid=stCaptionContainer]").first
    caption.filter(has_text="6 h:").wait_for(timeout=TIMEOUT_MS)
    seen.page.get_by_role("link", name="Latency", exact=True).first.click()
    seen.page.get_by_role("heading", name="Latency").wait_for(timeout=TIMEOUT_MS)
    caption.filter(has_text="6 h:").wait_for(timeout=TIMEOUT_MS)  # the next page has the same range
    assert "zoom=" in seen.page.url
    seen.page.get_by_role("button", name="zoom:").click()
    caption.filter(has_text="24 h:").wait_for(timeout=TIMEOUT_MS)
    assert "zoom=" not in seen.page.url


def test_click_on_the_legend_isolates_a_series_and_another_restores_all(seen: Reader) -> None:
    strokes = """() => [...new Set([...document.querySelector('[class*=st-key-over-time-]')
        .querySelectorAll('.mark-line path')].map(path => path.getAttribute('stroke')))].length"""
    seen.open("latency?range=24h&refresh=off")
    legend = seen.page.locator(".st-key-legend button")
    shown = legend.count()
    assert shown == seen.page.evaluate(strokes) > 2
    legend.nth(1).click()
    seen.page.wait_for_url("**series=*", timeout=TIMEOUT_MS)
    isolated = f"() => ({strokes})() === 2"  # its own colour, and grey
    seen.page.wait_for_function(isolated, timeout=TIMEOUT_MS)
    link = seen.page.url
    legend.nth(1).click()
    seen.page.wait_for_function(f"() => ({strokes})() === {shown}", timeout=TIMEOUT_MS)
    seen.open(link.split("/", 3)[-1])
    seen.page.wait_for_function(isolated, timeout=TIMEOUT_MS)


def test_click_on_a_cause_shows_only_its_errors_and_on_a_cell_those_of_its_model_and_gateway(
    seen: Reader,
) -> None:
    fills = """() => [...new Set([...document.querySelector('[class*=st-key-over-time-]')
        .querySelectorAll('.mark-rect path')].map(path => path.getAttribute('fill')))].length"""
    seen.open("errors?range=24h&refresh=off")
    legend = seen.page.locator(".st-key-legend button")
    shown = legend.count()
    assert shown == seen.page.evaluate(fills) > 1
    legend.nth(0).click()
    seen.page.wait_for_function(f"() => ({fills})() === 1", timeout=TIMEOUT_MS)
    legend.nth(0).click()
    seen.page.wait_for_function(f"() => ({fills})() === {shown}", timeout=TIMEOUT_MS)
    seen.settle()
    cell = seen.page.locator(
        "[data-testid=stVegaLiteChart] .mark-rect.role-mark path[aria-label*=model]"
    ).last
    cell.click()
    seen.page.wait_for_url(lambda url: "model=" in url and "gateway=" in url, timeout=TIMEOUT_MS)
    seen.page.get_by_role("button", name="Remove all filters").click()
    seen.page.wait_for_url(lambda url: "model=" not in url, timeout=TIMEOUT_MS)
