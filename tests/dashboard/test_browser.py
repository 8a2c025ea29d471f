"""The pages in a real browser: no console errors, numbers equal those of SQL, links restore choices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, quote, urlsplit

import polars as pl
import pytest
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from streamgauge.analytics.reports import formatting
from streamgauge.dashboard.sql_statements import RECIPES
from tests.dashboard.browser import FOREIGN_HOST, MARKS, TIMEOUT_MS, Reader, reader
from tests.dashboard.generated_traces import HOSTILE, LARGE_TRACE, ODD_TRACE
from tests.dashboard.running_dashboard import Dashboard
from tests.deadline import until
from tests.tables import tables

pytestmark = MARKS


@pytest.fixture(scope="module")
def seen(dashboard: Dashboard) -> Iterator[Reader]:
    with reader(dashboard.url) as found:
        yield found


def test_one_click_opens_a_stream_and_back_returns(seen: Reader) -> None:
    seen.open("streams?range=24h&refresh=off&model=gpt-4o-mini&order=longest")
    rows = seen.page.get_by_role("table", name="Streams", exact=True).locator("tbody tr")
    digits = rows.nth(2).locator("a").inner_text()
    seen.page.evaluate("window.sameDocument = true")
    rows.nth(1).locator("a").focus()
    seen.page.evaluate("""() => {  // as a refresh with other rows does
        const box = document.querySelector('.sg-table').parentElement
        box.innerHTML = box.innerHTML
    }""")
    seen.page.wait_for_function("document.activeElement.classList.contains('sg-row')", timeout=TIMEOUT_MS)
    rows.nth(2).click()
    seen.page.get_by_role("heading", name="Stream", exact=True).wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    address = urlsplit(seen.page.url)
    parameters = parse_qs(address.query)
    assert address.path == "/stream"
    assert parameters["id"][0].endswith(digits)
    assert parameters["model"] == ["gpt-4o-mini"]
    assert seen.page.evaluate("window.sameDocument")
    seen.page.go_back()
    seen.page.get_by_role("heading", name="Streams", exact=True).wait_for(timeout=TIMEOUT_MS)
    assert rows.nth(2).locator("a").inner_text() == digits


def test_value_of_a_filter_is_selected_by_a_click_and_removed_by_its_chip(
    seen: Reader, streams_data: Path
) -> None:
    by_outcome = dict(
        tables(streams_data).query("SELECT outcome, count(*) FROM streams GROUP BY ALL").iter_rows()
    )
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    seen.open("streams?range=24h&refresh=off")
    values = seen.page.get_by_role("navigation", name="Values of the filters")
    outcomes = seen.page.get_by_role("table", name="Streams", exact=True).locator("td[data-heading=Outcome]")
    values.get_by_role("link", name="client_abort").first.click()
    seen.page.get_by_text(f"{by_outcome['client_abort']} streams", exact=True).wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    assert set(outcomes.all_inner_texts()) == {"◌ client_abort"}
    assert parse_qs(urlsplit(seen.page.url).query)["outcome"] == ["client_abort"]
    seen.page.get_by_role("button", name="outcome: client_abort").click()
    seen.page.get_by_text(f"of {sum(by_outcome.values())} streams").wait_for(timeout=TIMEOUT_MS)
    assert "outcome" not in parse_qs(urlsplit(seen.page.url).query)


VISIBLE_HEADINGS = """() => [...document.querySelectorAll('table[aria-label=Streams] th[scope=col]')]
    .filter(th => getComputedStyle(th).display !== 'none').map(th => th.innerText.trim().replace(/ ▾$/, ''))"""


def test_streams_on_a_phone_show_model_time_and_ttft_and_have_pages(seen: Reader) -> None:
    seen.page.set_viewport_size({"width": 390, "height": 844})
    seen.open("streams?range=24h&refresh=off&order=longest")
    headings = seen.page.evaluate(VISIBLE_HEADINGS)
    assert {"Started", "Model", "TTFT, ms"} <= set(headings)
    assert not {"HTTP", "Cause"} & set(headings)
    first = seen.page.get_by_role("table", name="Streams", exact=True).locator("tbody th").first.inner_text()
    seen.page.get_by_role("link", name="Page 2 →").click()
    seen.page.get_by_text("26 – 50 of 400 streams").wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    assert (
        seen.page.get_by_role("table", name="Streams", exact=True).locator("tbody th").first.inner_text()
        != first
    )
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    seen.open("?range=24h&refresh=off")
    verdict = seen.page.locator("[class*=st-key-verdict-]").first.bounding_box()
    assert verdict is not None
    assert verdict["y"] < 110


def test_trace_is_found_collapsed_and_opened_with_the_keyboard(seen: Reader) -> None:
    seen.problems.clear()
    seen.page.set_viewport_size({"width": 1280, "height": 900})
    seen.open("traces?range=24h&refresh=off&service=gateway&outcome=ok&least=1")
    rows = seen.page.get_by_role("table", name="Traces").locator("tbody tr")
    found = rows.count()
    rows.first.click()
    tree = seen.page.locator(".sg-trace")
    tree.wait_for(timeout=TIMEOUT_MS)
    assert re.search(r"[?&]trace=[0-9a-f]{32}", seen.page.url)
    llm_request = tree.locator("summary").filter(has_text="llm_request").first
    toggle = tree.get_by_role("checkbox", name=re.compile("Show spans below answer a question"))
    toggle.focus()
    seen.page.keyboard.press("Space")
    assert not llm_request.is_visible()
    seen.page.keyboard.press("Space")
    llm_request.focus()
    seen.page.keyboard.press("Enter")
    opened = tree.locator("details[open]")
    assert "gen_ai.request.model" in opened.get_by_role("table", name="Attributes").inner_text()
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened.get_by_role("button", name="Copy").click()
    opened.get_by_role("button", name="Copied").wait_for(timeout=TIMEOUT_MS)
    assert "Span\tllm_request\nService\tgateway\n" in seen.page.evaluate("navigator.clipboard.readText()")
    seen.page.get_by_role("link", name="All traces").click()
    rows.first.wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    assert (rows.count(), "service=gateway" in seen.page.url) == (found, True)
    assert seen.problems == []


CLIPPED_SPANS = """() => [...document.querySelectorAll('.sg-trace *')].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width && (box.right > innerWidth + 1 || box.left < -1);
}).map(element => element.outerHTML.slice(0, 200))"""


def test_hostile_and_many_spans_are_readable_on_a_phone(seen: Reader) -> None:
    seen.problems.clear()
    warnings: list[str] = []
    seen.page.on(
        "console", lambda message: warnings.append(message.text) if message.type == "warning" else None
    )
    seen.page.set_viewport_size({"width": 390, "height": 844})
    seen.open(f"traces?refresh=off&trace={ODD_TRACE}")
    failed = seen.page.locator(".sg-failed > summary")
    assert failed.get_by_text("✕ error").is_visible()
    failed.click()
    assert HOSTILE in failed.locator("..").get_by_role("table", name="About the span").inner_text()
    assert seen.page.evaluate("window.hostile") is None
    label, track = (failed.locator(part).bounding_box() for part in (".sg-label", ".sg-track"))
    assert label is not None
    assert track is not None
    assert label["y"] + label["height"] <= track["y"] + 1
    assert seen.page.evaluate(CLIPPED_SPANS) == []
    seen.open(f"traces?refresh=off&trace={LARGE_TRACE}")
    assert seen.page.locator(".sg-trace summary").count() == 500
    assert seen.page.locator(".sg-failed > summary").is_visible()
    assert seen.page.evaluate(CLIPPED_SPANS) == []
    assert (seen.problems, warnings) == ([], [])
    seen.page.set_viewport_size({"width": 1280, "height": 900})


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
    shown = seen.page.locator("[data-testid=stMetric]").filter(has_text="Requests")
    shown.filter(has_text=str(expected["n"])).wait_for(timeout=TIMEOUT_MS)
    seen.settle()
    link = seen.page.url.removeprefix(f"{seen.base}/")
    for restored in (False, True):
        if restored:
            seen.open(link)
        assert seen.metric("Requests") == formatting.count(expected["n"])
        assert seen.metric("TTFT p99") == formatting.duration(expected["ttft"])
        assert seen.metric("tok/s p50") == formatting.rate(expected["speed"], "")


def without_clock(text: str) -> str:
    """Without times and the length of the range, which ends at the newest stream while no analytics runs."""
    return re.sub(r"\d\d:\d\d:\d\d|[\d.]+ h(?=: )", "", text)


def choose(seen: Reader, side: str, label: str, value: str) -> None:
    """Choose a value in a filter of side A or B of the comparison."""
    box = seen.page.locator("[data-testid=stColumn]", has=seen.page.get_by_text(side, exact=True)).first
    before = seen.page.url
    box.get_by_role("combobox", name=label).click()
    seen.page.get_by_role("option", name=value, exact=True).click()
    seen.page.keyboard.press("Escape")
    seen.page.wait_for_url(lambda url: url != before, timeout=TIMEOUT_MS)
    seen.settle()


def test_comparison_by_a_dimension_and_around_an_onset_is_in_the_address(seen: Reader) -> None:
    onset = datetime.now(UTC).replace(microsecond=0, tzinfo=None) - timedelta(hours=1)
    seen.page.set_viewport_size({"width": 1440, "height": 900})
    seen.open(f"compare?range=24h&refresh=off&utc=true&onset={onset.isoformat()}&dimension=dialect")
    chosen = seen.page.get_by_role("combobox", name="When")
    captions = seen.page.locator("[data-testid=stCaptionContainer]")
    texts = seen.page.locator("[data-testid=stMain]")
    assert [when.input_value() for when in chosen.all()] == ["before onset", "after onset"]
    assert f"{onset:%H:%M:%S} UTC" in texts.inner_text()
    for side, dialect in (("A", "openai_chat"), ("B", "anthropic")):
        choose(seen, side, "When", "same time")
        choose(seen, side, "Dialect", dialect)
        shown = captions.filter(has_text=f"dialect {dialect}")
        until(lambda shown=shown: seen.settle() or shown.is_visible(), f"the selection of {dialect}")  # type: ignore[misc]
    for plot in ("Failures", "Durations of ok streams"):
        drawn = seen.page.get_by_label(f"{plot}: effects with their 95 % intervals")
        assert drawn.locator("svg, canvas").first.bounding_box() is not None
    seen.settle()
    before = without_clock(texts.inner_text())
    seen.open(seen.page.url.removeprefix(f"{seen.base}/"))
    until(lambda: without_clock(texts.inner_text()) == before, "the same page")


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
    seen.page.wait_for_function(
        "first => ![...document.querySelectorAll('p')].some(p => p.innerText === first)",
        arg=first,
        timeout=TIMEOUT_MS,
    )
    seen.settle()
    assert seen.page.evaluate(layout) == before
    assert abs(before[0] - 700) <= 1
    assert seen.page.evaluate("window.highest - window.lowest") <= 4


def test_sql_page_works_with_the_keyboard(seen: Reader) -> None:
    seen.open("sql?refresh=off")
    for _ in range(40):
        seen.page.keyboard.press("Tab")
        if seen.page.evaluate("document.activeElement.tagName") == "TEXTAREA":
            break
    area = seen.page.get_by_role("textbox", name="SQL")
    completions = seen.page.get_by_role("listbox", name="Completions")
    seen.page.keyboard.press("Control+A")
    seen.page.keyboard.type("SELECT s.outc")
    assert not completions.is_visible()  # the statement reads no table yet
    seen.page.keyboard.type("ome, cou")
    completions.get_by_role("option", name="count").first.wait_for()
    seen.page.keyboard.press("Tab")
    seen.page.keyboard.type("*) AS n FROM strea")
    seen.page.keyboard.press("Enter")
    seen.page.keyboard.type(" s WHERE s.ttf")
    assert "BIGINT" in completions.get_by_role("option", name="ttft_ns").inner_text()
    seen.page.keyboard.press("Escape")
    assert not completions.is_visible()
    seen.page.keyboard.type("t_ns > 0 GROUP BY ALL")
    assert (
        area.input_value()
        == "SELECT s.outcome, count(*) AS n FROM streams s WHERE s.ttft_ns > 0 GROUP BY ALL"
    )
    seen.page.keyboard.press("Control+Enter")
    seen.page.get_by_text("rows in").wait_for(timeout=TIMEOUT_MS)
    area.focus()
    seen.page.keyboard.press("Escape")
    seen.page.keyboard.press("Tab")
    assert seen.page.evaluate("document.activeElement.innerText") == "Run"
    assert seen.exceptions() == 0


def test_sql_error_is_marked_until_the_statement_changes(seen: Reader) -> None:
    sql = "SELECT 'é🙂',\n  outcom\nFROM streams"
    seen.open(f"sql?refresh=off&sql={quote(sql)}")
    error = seen.page.locator("[data-testid=stAlertContentError]")
    error.wait_for(timeout=TIMEOUT_MS)
    assert "Line 2, column 3: cannot run the statement" in error.inner_text()
    assert 'Did you mean "outcome"' in error.inner_text()
    mark = seen.page.locator(".sql-error")
    mark.wait_for()
    assert mark.all_inner_texts() == ["outcom"]
    area = seen.page.get_by_role("textbox", name="SQL")
    assert area.get_attribute("aria-invalid") == "true"
    area.press("Control+End")
    seen.page.keyboard.type(" s")
    assert mark.count() == 0


def test_id_in_a_result_opens_its_stream(seen: Reader) -> None:
    sql = "SELECT stream_id FROM streams LIMIT 1"
    seen.open(f"sql?refresh=off&range=6h&sql={quote(sql)}")
    grid = seen.page.locator("[data-testid=stDataFrame]")
    grid.scroll_into_view_if_needed()
    with seen.page.expect_popup(timeout=TIMEOUT_MS) as opened:
        for _ in range(
            TIMEOUT_MS // 1000
        ):  # the table draws its cells on a canvas some time after it arrived
            grid.hover(position={"x": 60, "y": 52})
            if (
                grid.locator("canvas").first.evaluate("canvas => getComputedStyle(canvas).cursor")
                == "pointer"
            ):
                break
            seen.page.wait_for_timeout(1000)
        grid.click(position={"x": 60, "y": 52})
    assert re.search(r"/stream\?range=6h&.*id=[0-9a-f-]{36}$", opened.value.url)
    opened.value.close()


def test_link_of_a_query_shows_its_result_and_downloads_equal_it(seen: Reader, streams_data: Path) -> None:
    seen.problems.clear()
    warnings: list[str] = []
    seen.page.on("console", lambda message: warnings.append(message.text))
    sql = "SELECT request_model, count(*) AS n FROM streams GROUP BY ALL ORDER BY ALL"
    seen.open(f"sql?refresh=off&sql={quote(sql)}&view=Chart&y=n")
    seen.page.get_by_text("rows in").wait_for(timeout=TIMEOUT_MS)
    area = seen.page.get_by_role("textbox", name="SQL")
    assert area.input_value() == sql
    assert seen.page.locator("[data-testid=stVegaLiteChart]").count() == 1
    expected = tables(streams_data).query(sql)
    for name, parse in (("CSV", pl.read_csv), ("Parquet", pl.read_parquet), ("JSON", pl.read_json)):
        with seen.page.expect_download(timeout=TIMEOUT_MS) as downloaded:
            seen.page.get_by_role("button", name=name, exact=True).click()
        assert parse(downloaded.value.path()).rows() == expected.rows()
    area.fill("SELECT 2 AS two")
    area.press("Control+Enter")
    seen.page.wait_for_url("**sql=SELECT+2+AS+two*", timeout=TIMEOUT_MS)
    # Streamlit may add the address of the second query once more when its script has ended.
    for _ in range(2):
        seen.page.go_back()
        with suppress(PlaywrightTimeout):
            seen.page.wait_for_function(
                "sql => document.querySelector('.sql-area').value === sql", arg=sql, timeout=10_000
            )
            break
    assert area.input_value() == sql
    assert (warnings, seen.problems) == ([], [])


def test_steps_back_from_a_query_leave_the_sql_page(seen: Reader) -> None:
    seen.open("errors?refresh=off")
    seen.page.get_by_role("link", name="SQL", exact=True).first.click()
    area = seen.page.get_by_role("textbox", name="SQL")
    area.fill("SELECT 1 AS one")
    area.press("Control+Enter")
    seen.page.wait_for_url("**sql=SELECT+1+AS+one*", timeout=TIMEOUT_MS)
    shown = seen.page.get_by_text("rows in")
    seen.page.go_back()
    shown.wait_for(state="detached", timeout=TIMEOUT_MS)
    seen.settle()
    assert (urlsplit(seen.page.url).path, "sql=" in seen.page.url) == ("/sql", False)
    seen.page.go_back()
    seen.page.get_by_role("heading", name="Errors", exact=True).wait_for(timeout=TIMEOUT_MS)


def test_sign_of_a_running_script_covers_nothing_of_the_head(seen: Reader) -> None:
    seen.open(f"sql?refresh=off&sql={quote('SELECT count(*) FROM range(4000000000)')}")
    running, head = seen.page.get_by_test_id("stStatusWidget"), seen.page.locator(".st-key-header")
    seen.page.reload()
    running.wait_for(timeout=TIMEOUT_MS)
    boxes = running.bounding_box(), head.bounding_box()
    assert boxes[0] is not None
    assert boxes[1] is not None
    assert boxes[0]["y"] > boxes[1]["y"] + boxes[1]["height"]


def test_measure_of_answers_stays_in_the_address(seen: Reader) -> None:
    for measure in ("Cut at the token limit", "Refusals"):
        seen.open(f"throughput?range=24h&refresh=off&answers={quote(measure)}")
        seen.page.get_by_text(f"{measure} by model", exact=True).wait_for(timeout=TIMEOUT_MS)
        assert parse_qs(urlsplit(seen.page.url).query)["answers"] == [measure]


def test_recipe_fills_the_editor_and_its_link_can_be_copied(seen: Reader) -> None:
    recipe = RECIPES[1]
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    seen.open("sql?refresh=off")
    seen.page.get_by_role("button", name=recipe.title).click()
    seen.page.get_by_text("rows in").wait_for(timeout=TIMEOUT_MS)
    area = seen.page.get_by_role("textbox", name="SQL")
    assert area.input_value() == recipe.sql
    assert parse_qs(urlsplit(seen.page.url).query)["sql"] == [recipe.sql]
    area.fill("SELECT 'a + b & c' FROM ")
    seen.page.get_by_label("Search tables and columns").fill("open_str")
    seen.page.get_by_role("button", name="open_streams view").click()
    assert area.input_value() == "SELECT 'a + b & c' FROM open_streams"
    seen.page.get_by_role("button", name="Copy link").click()
    seen.page.get_by_text("Link copied.").wait_for()
    copied = urlsplit(seen.page.evaluate("navigator.clipboard.readText()"))
    assert parse_qs(copied.query) == {"refresh": ["off"], "sql": [area.input_value()]}
    area.fill("-" * 6001)
    seen.page.get_by_role("button", name="Copy link").click()
    seen.page.get_by_text("takes 6,001 characters in an address; the limit is 6,000").wait_for()
