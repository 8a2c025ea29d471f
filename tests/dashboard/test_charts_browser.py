"""Charts in a real browser: a drag zooms, a click opens the streams of a mark, two ranges are compared, the page is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator

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
    seen.open("?range=1h&refresh=off")
    plot = seen.page.locator(PLOT).first.bounding_box()
    assert plot is not None
    labels = seen.page.locator(f"{CHART} .role-axis-label text").filter(has_text=re.compile(r"^\d\d:\d\d$"))
    labels.first.wait_for(timeout=TIMEOUT_MS)
    assert labels.count() >= 4  # the axis has the time range, so the times are at different places
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
    assert (span[1] - span[0]).total_seconds() == pytest.approx(15 * 60, rel=0.02)
    caption = seen.page.locator("[data-testid=stCaptionContainer]").first
    caption.filter(has_text="15 min:").wait_for(timeout=TIMEOUT_MS)
    seen.page.get_by_role("link", name="Latency", exact=True).first.click()
    seen.page.get_by_role("heading", name="Latency").wait_for(timeout=TIMEOUT_MS)
    caption.filter(has_text="15 min:").wait_for(timeout=TIMEOUT_MS)  # the next page has the same range
    assert "zoom=" in seen.page.url
    seen.page.get_by_role("button", name="zoom:").click()
    caption.filter(has_text="1 h:").wait_for(timeout=TIMEOUT_MS)
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


def test_click_on_a_cause_shows_only_its_errors(seen: Reader) -> None:
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


def marks(seen: Reader, chart: str) -> Locator:
    """The marks of a chart that a click opens."""
    found = seen.page.get_by_label(chart, exact=True).locator(
        ":is(.mark-rect, .mark-symbol).role-mark > path[aria-label]"
    )
    found.first.wait_for(state="attached", timeout=TIMEOUT_MS)
    return found


def number_in(mark: Locator, name: str) -> int:
    found = re.search(rf"\b{name}: (\d+)", mark.get_attribute("aria-label") or "")
    assert found is not None, mark.get_attribute("aria-label")
    return int(found[1])


def opened(seen: Reader) -> tuple[int, dict[str, list[str]]]:
    """The number of streams of the page Streams that was opened, and its parameters."""
    seen.page.wait_for_url("**/streams?*", timeout=TIMEOUT_MS)
    return seen.stream_count(), parse_qs(urlsplit(seen.page.url).query)


@pytest.mark.parametrize(
    ("page", "chart", "counted", "parameters"),
    [
        ("latency", "TTFT over time, all streams", "n", {"zoom", "duration"}),
        ("errors", "Errors by cause", "n", {"zoom", "kind", "outcome"}),
        ("errors", "Error rate by model and gateway", "errors", {"model", "gateway", "kind"}),
    ],
)
def test_click_on_a_mark_opens_exactly_its_streams(
    page: str, chart: str, counted: str, parameters: set[str], seen: Reader
) -> None:
    seen.open(f"{page}?range=24h&refresh=off")
    source, largest = seen.page.url, max(marks(seen, chart).all(), key=lambda mark: number_in(mark, counted))
    expected = number_in(largest, counted)
    largest.click()
    found, named = opened(seen)
    assert (found, parameters <= set(named)) == (expected, True)
    seen.page.go_back()
    seen.page.wait_for_url(source, timeout=TIMEOUT_MS)


def test_keyboard_opens_a_point_of_a_line_and_selects_a_range(seen: Reader) -> None:
    seen.open("latency?range=24h&refresh=off&split=everything&quantile=p50")
    seen.page.get_by_label("TTFT, p50 by everything", exact=True).locator("[tabindex='0']").focus()
    seen.page.keyboard.press("ArrowRight")
    tooltip = seen.page.locator("#vg-tooltip-element")
    counted = re.search(r"\(n (\d+)\)", tooltip.inner_text())
    assert counted is not None
    seen.page.keyboard.press("Enter")
    found, named = opened(seen)
    assert found >= int(counted[1]) > 0  # streams without TTFT are not points of the line
    span = zoom.from_text(named["zoom"][0])
    assert span is not None
    seen.page.go_back()
    seen.page.wait_for_url("**/latency?*", timeout=TIMEOUT_MS)
    seen.settle()
    seen.page.get_by_label("TTFT, p50 by everything", exact=True).locator("[tabindex='0']").focus()
    seen.page.keyboard.press("Shift+ArrowRight")
    seen.page.wait_for_url("**zoom=*", timeout=TIMEOUT_MS)


def drag(seen: Reader, begin: float, end: float) -> None:
    """Drag over this part of the first chart over time."""
    plot = seen.page.locator(PLOT).first.bounding_box()
    assert plot is not None
    y = plot["y"] + plot["height"] / 2
    seen.page.mouse.move(plot["x"] + begin * plot["width"], y)
    seen.page.mouse.down()
    seen.page.mouse.move(plot["x"] + end * plot["width"], y, steps=3)
    seen.page.mouse.up()


def test_two_ranges_are_compared(seen: Reader) -> None:
    seen.open("?range=6h&refresh=off&model=gpt-4o-mini")
    drag(seen, 0.7, 0.8)
    seen.page.get_by_role("button", name="Compare with another range").click()
    seen.page.get_by_role("button", name="with the range that you drag over").wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    drag(seen, 0.85, 0.95)
    seen.page.wait_for_url("**/compare?*", timeout=TIMEOUT_MS)
    named = parse_qs(urlsplit(seen.page.url).query)
    a, b = (zoom.from_text(named[f"{side}-when"][0]) for side in "AB")
    assert a is not None
    assert b is not None
    assert (a[1] < b[0], named["model"]) == (True, ["gpt-4o-mini"])
    for text in ("A: requests", "B: requests"):
        seen.page.get_by_text(text, exact=True).first.wait_for(timeout=TIMEOUT_MS)


def test_one_click_copies_the_link_and_a_view_is_saved_and_removed(seen: Reader, streams_data: Path) -> None:
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.open("latency?range=90m&refresh=off&model=gpt-4o-mini")
    seen.page.get_by_role("button", name="Copy link").click()
    seen.page.get_by_role("button", name="Copied").wait_for(timeout=TIMEOUT_MS)
    relative = urlsplit(seen.page.evaluate("navigator.clipboard.readText()"))
    seen.page.get_by_role("button", name="More").click()
    link = seen.page.get_by_test_id("stPopoverBody").locator("code")
    link.wait_for(timeout=TIMEOUT_MS)
    absolute = urlsplit(link.inner_text().strip())
    parameters = parse_qs(relative.query)
    assert (relative.path, parameters["range"], parameters["model"]) == ("/latency", ["90m"], ["gpt-4o-mini"])
    span = zoom.from_text(parse_qs(absolute.query)["zoom"][0])
    assert span is not None
    assert (span[1] - span[0]).total_seconds() == 90 * 60
    seen.page.get_by_label("Save as a view in the sidebar").fill("slow <b>mini</b>")
    seen.page.get_by_role("button", name="Save view").click()
    view = seen.page.get_by_role("navigation", name="Saved views").get_by_role(
        "link", name="slow <b>mini</b>"
    )
    view.wait_for(timeout=TIMEOUT_MS)
    assert view.get_attribute("href") == f"./latency?{relative.query}"
    seen.page.get_by_role("button", name="slow").last.click()
    view.wait_for(state="detached", timeout=TIMEOUT_MS)
