"""The pages in a real browser: no console errors, numbers equal those of SQL, links restore every choice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import polars as pl
import pytest

from dashboard import formatting
from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import CHROMIUM, FOREIGN_HOST, TIMEOUT_MS, Reader, reader
from tests.dashboard.running_dashboard import Dashboard, running
from tests.tables import tables

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(300),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium on this machine (Debian: apt-get install chromium)"
    ),
]


@pytest.fixture(scope="module")
def dashboard(streams_data: Path) -> Iterator[Dashboard]:
    with running(streams_data) as found:
        yield found


@pytest.fixture(scope="module")
def seen(dashboard: Dashboard) -> Iterator[Reader]:
    with reader(dashboard.url) as found:
        yield found


def test_every_deep_link_loads_without_problems(seen: Reader, streams_data: Path) -> None:
    stream_id = tables(streams_data).query("SELECT stream_id FROM streams WHERE outcome = 'ok' LIMIT 1")[
        "stream_id"
    ][0]
    seen.problems.clear()
    for view in sorted(VIEWS, reverse=True):  # reversed, so the first deep link is not the overview
        path = {"overview": "?range=24h", "stream": f"stream?id={stream_id}"}.get(view, f"{view}?range=24h")
        seen.open(path)
        assert seen.exceptions() == 0, view
        assert seen.page.locator("[data-testid=stAlertContentError]").count() == 0, view
        assert seen.page.url.endswith(path), view
        assert seen.problems == [], view


def test_page_on_a_rebound_host_name_reads_nothing(seen: Reader) -> None:
    port = urlsplit(seen.base).port
    page = seen.page.context.new_page()
    answer = page.goto(f"http://{FOREIGN_HOST}:{port}/")
    assert answer is not None
    assert (answer.status, FOREIGN_HOST in answer.text()) == (403, True)
    connects = """url => new Promise(done => {
        const socket = new WebSocket(url)
        socket.onopen = () => done(true)
        socket.onerror = () => done(false)
    })"""
    for host in (FOREIGN_HOST, "127.0.0.1"):
        assert page.evaluate(connects, f"ws://{host}:{port}/_stcore/stream") is False
    seen.page.goto(f"{seen.base}/_stcore/health")
    assert seen.page.evaluate(connects, f"ws://localhost:{port}/_stcore/stream") is True
    page.close()


def test_numbers_equal_sql_and_link_keeps_filter(seen: Reader, streams_data: Path) -> None:
    sql = """SELECT count(*) AS n, quantile_cont(ttft_ns, 0.99) AS ttft, quantile_cont(tps_user, 0.5) AS speed
        FROM streams WHERE request_model = 'claude-sonnet-4-5'"""
    expected = tables(streams_data).query(sql).to_dicts()[0]
    seen.open("?range=24h&refresh=off")
    assert seen.metric("Requests") == "400"
    seen.page.get_by_role("combobox", name="Models").click()
    seen.page.get_by_role("option", name="claude-sonnet-4-5").click()
    seen.page.wait_for_url("**model=claude-sonnet-4-5*", timeout=TIMEOUT_MS)
    shown = seen.page.locator("[data-testid=stMetricValue]").first
    shown.filter(has_text=str(expected["n"])).wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    link = seen.page.url
    for _ in range(2):  # as selected, then as restored from the link
        assert seen.metric("Requests") == formatting.count(expected["n"])
        assert seen.metric("TTFT p99") == formatting.duration(expected["ttft"])
        assert seen.metric("tok/s p50") == formatting.rate(expected["speed"], "").strip()
        seen.page.goto("about:blank")
        seen.page.goto(link)
        seen.settle()


LINKS = {
    "latency?range=24h&metric=end+to+end&split=gateway&quantile=p99": ("end to end", "gateway", "p99"),
    "errors?range=24h&by=client": ("Error rate by client",),
    "streams?range=24h&kind=errors&order=longest&rows=100": ("errors", "longest", "100"),
    "compare?range=24h&A-when=same+time&A-model=qwen3-32b&B-model=deepseek-r1": (
        "same time",
        "qwen3-32b",
        "deepseek-r1",
    ),
    "throughput?range=custom&from=2026-01-01T00%3A00&until=2026-01-02T00%3A00&utc=true": ("24 h", "UTC"),
}


def test_link_restores_every_choice(seen: Reader) -> None:
    for link, texts in LINKS.items():
        seen.open(link)
        shown = seen.page.locator("body").inner_text()
        chosen = seen.page.eval_on_selector_all(
            "input, textarea", "all => all.map(one => one.value).join(' ')"
        )
        for text in texts:
            assert text in shown + chosen, (link, text)
        assert seen.exceptions() == 0, link


def test_refresh_keeps_scroll_position_and_layout(seen: Reader) -> None:
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    seen.open("?range=24h&refresh=5s")
    layout = """() => {
        const main = document.querySelector('[data-testid=stMain]');
        const boxes = [...document.querySelectorAll('[data-testid=stMetric], [data-testid=stVegaLiteChart], h3')];
        return [main.scrollTop, ...boxes.map(box => Math.round(box.getBoundingClientRect().top))];
    }"""
    seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollTo(0, 700)")
    before = seen.page.evaluate(layout)
    seen.page.evaluate(
        """() => {
            const main = document.querySelector('[data-testid=stMain]');
            window.highest = window.lowest = main.scrollHeight;
            new MutationObserver(() => {
                window.highest = Math.max(window.highest, main.scrollHeight);
                window.lowest = Math.min(window.lowest, main.scrollHeight);
            }).observe(main, {childList: true, subtree: true, attributes: true});
        }"""
    )
    stamp = seen.page.get_by_text("updated").first
    first = stamp.inner_text()
    for _ in range(2):
        seen.page.wait_for_function(
            "first => ![...document.querySelectorAll('p')].some(p => p.innerText === first)",
            arg=first,
            timeout=TIMEOUT_MS,
        )
        seen.settle()
        first = stamp.inner_text()
    assert seen.page.evaluate(layout) == before
    assert abs(before[0] - 700) <= 1
    assert seen.page.evaluate("window.highest - window.lowest") <= 4


def test_sql_page_works_with_the_keyboard(seen: Reader) -> None:
    seen.open("sql?refresh=off")
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate("document.activeElement.tagName") == "TEXTAREA":
            break
    seen.page.keyboard.press("Control+A")
    seen.page.keyboard.type("SELECT outcome, count(*) AS streams FROM streams GROUP BY ALL ORDER BY ALL")
    seen.page.keyboard.press("Control+Enter")
    seen.page.get_by_text("rows in").wait_for(timeout=TIMEOUT_MS)
    assert seen.exceptions() == 0


def test_download_equals_result(seen: Reader, streams_data: Path) -> None:
    sql = "SELECT request_model, count(*) AS n FROM streams GROUP BY ALL ORDER BY ALL"
    seen.open(f"sql?refresh=off&sql={quote(sql)}")
    seen.page.get_by_role("button", name="Run").click()
    seen.page.get_by_text("rows in").wait_for(timeout=TIMEOUT_MS)
    expected = tables(streams_data).query(sql)
    for name, parse in (("CSV", pl.read_csv), ("Parquet", pl.read_parquet)):
        with seen.page.expect_download(timeout=TIMEOUT_MS) as downloaded:
            seen.page.get_by_role("button", name=name, exact=True).click()
        assert parse(downloaded.value.path()).rows() == expected.rows()


@pytest.mark.parametrize(
    "views", [("overview", "stream"), pytest.param(tuple(VIEWS), marks=pytest.mark.slow)], ids=["two", "all"]
)
def test_no_horizontal_scrolling_on_a_phone(views: tuple[str, ...], seen: Reader, streams_data: Path) -> None:
    found = tables(streams_data).query("SELECT stream_id FROM streams WHERE outcome = 'ok' LIMIT 1")[
        "stream_id"
    ][0]
    seen.page.set_viewport_size({"width": 390, "height": 844})
    for view in views:
        seen.open({"overview": "?range=24h", "stream": f"stream?id={found}"}.get(view, f"{view}?range=24h"))
        wide = seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert wide <= 390, view
