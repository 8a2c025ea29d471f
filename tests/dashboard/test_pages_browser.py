"""Every page in a real browser: it loads without shifting, fits windows of 1440, 900 and 390 px, and is accessible.

axe-core finds nothing serious in the light and the dark theme, at 1280, 768 and 390 px; every chart has a text alternative.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import MARKS, Reader, reader
from tests.dashboard.page_paths import page_paths
from tests.dashboard.running_dashboard import Dashboard

pytestmark = MARKS
MAX_SHIFT = 0.1
"""Cumulative layout shift that Web Vitals calls good."""
COUNT_SHIFTS = """window.shifted = 0;
new PerformanceObserver(list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifted += entry.value;
}).observe({type: "layout-shift", buffered: true});"""
FITS = "() => document.querySelector('[data-testid=stMain]').scrollWidth <= innerWidth && document.body.scrollWidth <= innerWidth"
CLIPPED_TABLES = """() => [...document.querySelectorAll('.sg-table')].filter(box => {
    const overflows = box.scrollWidth > box.clientWidth + 1;
    const leavesPage = box.getBoundingClientRect().right > window.innerWidth + 1;
    return leavesPage || (overflows && box.tabIndex !== 0);
}).map(box => box.innerText.slice(0, 200))"""
"""Tables that are wider than their box, unless the box can be scrolled with the keyboard."""
EXPANDED = "() => !!document.elementFromPoint(40, 300)?.closest('[data-testid=stSidebar]')"
COLLAPSED = EXPANDED.replace("!!", "!")
AXE = files("axe_playwright_python").joinpath("axe.min.js").read_text()
FAILS = ("serious", "critical")
HEADINGS = ("heading-order", "page-has-heading-one")
"""Rules that fail, although axe counts them as moderate and not as WCAG."""
ALL_RULES = {
    "runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]},
    "rules": {rule: {"enabled": True} for rule in HEADINGS},
}
COLORS = {"runOnly": {"type": "rule", "values": ["color-contrast"]}}
"""All that differs between the themes."""
ACCEPTED = {
    ("list", "[data-testid=stSidebarNavItems]"): "Streamlit puts the headings of page groups into the list of pages.",
    ("listitem", "[data-testid=stSidebarNavItems]"): "As above: a group of pages is a div between list and item.",
}  # fmt: skip
"""Rule and container of elements that Streamlit draws → why the finding stays."""
CHART = "[data-testid=stVegaLiteChart]"
"""Its SVG is excluded: Vega names no mark without data, and axe checks no colours in SVG (see `test_colors`). The chart has a label."""
RUN = """async ([options, chart, accepted]) => {
    const found = await axe.run({exclude: `${chart} svg`}, {...options, resultTypes: ["violations"]});
    return found.violations.flatMap(violation => violation.nodes
        .filter(node => !accepted.some(([rule, container]) =>
            rule === violation.id && document.querySelector(node.target[0])?.closest(container)))
        .map(node => [violation.impact, violation.id, node.html.slice(0, 160), node.failureSummary]));
}"""
UNLABELLED = """chart => [...document.querySelectorAll(chart)].map(one => one.getAttribute("aria-label"))
    .filter(label => !label || label === "Vega visualization")"""


def shifts(seen: Reader, path: str) -> bool:
    """Whether the open page shifts in each of five loads. On a busy machine, the browser may paint between two parts of one."""
    for _ in range(4):
        if seen.page.evaluate("window.shifted") < MAX_SHIFT:
            return False
        seen.open(path)
    return bool(seen.page.evaluate("window.shifted") >= MAX_SHIFT)


@pytest.fixture(scope="module")
def seen(dashboard: Dashboard) -> Iterator[Reader]:
    with reader(dashboard.url, width=1440) as found:
        found.page.add_init_script(COUNT_SHIFTS)
        yield found


@pytest.fixture(scope="module")
def paths(streams_data: Path) -> dict[str, str]:
    return page_paths(streams_data)


def resize(seen: Reader, width: int) -> None:
    seen.page.set_viewport_size({"width": width, "height": 900})


def box(seen: Reader, selector: str) -> Any:
    found = seen.page.locator(selector).first.bounding_box()
    assert found is not None, selector
    return found


def findings(seen: Reader, options: dict[str, Any]) -> list[Any]:
    found: list[Any] = seen.page.evaluate(RUN, [options, CHART, list(ACCEPTED)])
    return [f for f in found if f[0] in FAILS or f[1] in HEADINGS]


def assert_accessible(seen: Reader) -> None:
    seen.page.evaluate(AXE)
    assert findings(seen, ALL_RULES) == []
    assert seen.page.evaluate(UNLABELLED, CHART) == []
    seen.page.emulate_media(color_scheme="dark")
    assert findings(seen, COLORS) == []
    seen.page.emulate_media(color_scheme="light")


@pytest.mark.parametrize(
    "view", [*reversed(VIEWS), "trace", "turn", "filtered"]
)  # so the first deep link is not the overview
def test_page_loads_is_accessible_and_fits_every_width(
    view: str, seen: Reader, paths: dict[str, str]
) -> None:
    resize(seen, 1440)
    seen.problems.clear()
    seen.open(paths[view])
    assert seen.page.url.endswith(paths[view])
    assert seen.exceptions() == 0
    assert seen.page.locator("[data-testid=stAlertContentError]").count() == 0
    assert seen.page.evaluate(CLIPPED_TABLES) == []
    title = seen.page.locator("[data-testid=stMain] h1").inner_text()
    assert seen.page.title() == f"{title} · Streamgauge"
    for control in (".st-key-range", ".st-key-refresh"):
        found = box(seen, control)
        assert found["x"] > 900, control
        assert found["y"] < 150, control
    resize(seen, 1280)
    assert_accessible(seen)
    for width in (900, 390):
        resize(seen, width)
        seen.page.wait_for_function(COLLAPSED, timeout=10_000)
        seen.page.wait_for_function(FITS, timeout=5_000)
        assert seen.page.evaluate(CLIPPED_TABLES) == [], width
        refresh = box(seen, ".st-key-refresh")
        assert refresh["x"] + refresh["width"] <= width
        assert refresh["y"] < 250
    assert seen.problems == []


def test_sidebar_is_collapsed_while_narrow_and_then_as_chosen(seen: Reader, paths: dict[str, str]) -> None:
    resize(seen, 1440)
    seen.open(paths["live"])
    for collapsed in (False, True):
        if collapsed:
            seen.page.locator("[data-testid=stSidebarHeader]").hover()
            seen.page.locator("[data-testid=stSidebarCollapseButton] button").click()
            seen.page.wait_for_function(COLLAPSED, timeout=10_000)
            seen.open(paths["live"])
            assert seen.page.evaluate(COLLAPSED)
        for width in (900, 390):
            resize(seen, width)
            seen.page.wait_for_function(COLLAPSED, timeout=10_000)
        seen.open(paths["live"])
        assert seen.page.evaluate(COLLAPSED)
        resize(seen, 1440)
        seen.page.wait_for_function(COLLAPSED if collapsed else EXPANDED, timeout=10_000)
    seen.page.locator("[data-testid=stExpandSidebarButton]").click()
    seen.page.wait_for_function(EXPANDED, timeout=10_000)


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 768])
@pytest.mark.parametrize("view", [*VIEWS, "trace", "turn", "filtered"])
def test_page_is_accessible_on_a_phone_and_a_tablet(
    view: str, width: int, seen: Reader, paths: dict[str, str]
) -> None:
    resize(seen, width)
    seen.open(paths[view])
    assert_accessible(seen)


@pytest.mark.slow  # how far a page shifts depends on the time between the parts of its load: only a quiet machine can say
@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("view", [*VIEWS, "trace", "turn"])
def test_page_loads_without_shifts(view: str, width: int, seen: Reader, paths: dict[str, str]) -> None:
    resize(seen, width)
    seen.open(paths[view])
    assert not shifts(seen, paths[view])
