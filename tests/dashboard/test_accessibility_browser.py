"""axe-core finds nothing serious on any page, in the light and the dark theme; every chart has a text alternative."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import CHROMIUM, Reader, reader
from tests.dashboard.page_paths import page_paths
from tests.dashboard.running_dashboard import running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
    ),
]
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


@pytest.fixture(scope="module")
def seen(streams_data: Path) -> Iterator[Reader]:
    with running(streams_data) as dashboard, reader(dashboard.url, width=1440) as found:
        yield found


@pytest.fixture(scope="module")
def paths(streams_data: Path) -> dict[str, str]:
    return page_paths(streams_data)


def findings(seen: Reader, options: dict[str, Any]) -> list[Any]:
    found: list[Any] = seen.page.evaluate(RUN, [options, CHART, list(ACCEPTED)])
    return [f for f in found if f[0] in FAILS or f[1] in HEADINGS]


@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.slow)])
@pytest.mark.parametrize("view", [*VIEWS, "filtered", "trace"])
def test_page_is_accessible(view: str, width: int, seen: Reader, paths: dict[str, str]) -> None:
    seen.page.set_viewport_size({"width": width, "height": 900})
    seen.page.emulate_media(color_scheme="light")
    seen.open(paths[view])
    seen.page.evaluate(AXE)
    assert findings(seen, ALL_RULES) == []
    assert seen.page.evaluate(UNLABELLED, CHART) == []
    seen.page.emulate_media(color_scheme="dark")
    assert findings(seen, COLORS) == []
