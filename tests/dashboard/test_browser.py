"""In a real browser: every page loads without a complaint, shows SQL's numbers, and links restore what was chosen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from analytics.ask import Asker
from dashboard import units
from tests.dashboard.browser import CHROMIUM, PATIENCE_MS, Reader, reader
from tests.dashboard.pages import VIEWS
from tests.dashboard.site import Site, running

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
    ),
]


@pytest.fixture(scope="module")
def site(river: Path) -> Iterator[Site]:
    with running(river) as found:
        yield found


@pytest.fixture(scope="module")
def seen(site: Site) -> Iterator[Reader]:
    with reader(site.url) as found:
        yield found


def test_every_page_loads_as_a_deep_link_without_a_complaint(seen: Reader, river: Path) -> None:
    stream_id = Asker(river).query("SELECT stream_id FROM streams WHERE outcome = 'ok' LIMIT 1")["stream_id"][
        0
    ]
    seen.complaints.clear()
    for view in sorted(VIEWS, reverse=True):  # not the first page first: a deep link must do without it
        path = {"overview": "?range=24h", "stream": f"stream?id={stream_id}"}.get(view, f"{view}?range=24h")
        seen.open(path)
        assert seen.exceptions() == 0, view
        assert seen.page.locator("[data-testid=stAlertContentError]").count() == 0, view
        assert seen.page.url.endswith(path), view
        assert seen.complaints == [], view


def test_numbers_are_those_of_sql_and_a_filter_is_kept_in_the_link(seen: Reader, river: Path) -> None:
    sql = """SELECT count(*) AS n, quantile_cont(ttft_ns, 0.99) AS ttft, quantile_cont(tps_user, 0.5) AS speed
        FROM streams WHERE request_model = 'claude-sonnet-4-5'"""
    wanted = Asker(river).query(sql).to_dicts()[0]
    seen.open("?range=24h&refresh=off")
    assert seen.metric("Requests") == "400"
    seen.page.get_by_role("combobox", name="Models").click()
    seen.page.get_by_role("option", name="claude-sonnet-4-5").click()
    seen.page.wait_for_url("**model=claude-sonnet-4-5*", timeout=PATIENCE_MS)
    shown = seen.page.locator("[data-testid=stMetricValue]").first
    shown.filter(has_text=str(wanted["n"])).wait_for(timeout=PATIENCE_MS)
    seen.settle()
    link = seen.page.url
    for _ in range(2):  # as chosen by hand, then as restored from the link
        assert seen.metric("Requests") == units.count(wanted["n"])
        assert seen.metric("TTFT p99") == units.duration(wanted["ttft"])
        assert seen.metric("Speed per stream, p50") == units.rate(wanted["speed"])
        seen.page.goto("about:blank")
        seen.page.goto(link)
        seen.settle()


def test_a_phone_sees_no_sideways_scrolling(seen: Reader) -> None:
    seen.page.set_viewport_size({"width": 390, "height": 844})
    seen.open("?range=24h")
    wide = seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
    assert wide <= 390
    assert seen.metric("Requests") == "400"
