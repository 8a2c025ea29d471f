"""Every link of every page in a real browser: its target shows the filter that the link names, in the sidebar, the address and the numbers.

One link of each kind is followed: the links of one column of a table differ in a value only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest

from streamgauge.analytics.reports.overview import complete_until
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.dashboard import zoom
from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import MARKS, TIMEOUT_MS, Reader, reader
from tests.dashboard.generated_store import NAMED_CLIENT
from tests.dashboard.page_paths import RANGE, page_paths
from tests.dashboard.running_dashboard import running
from tests.tables import tables

pytestmark = MARKS
Parameters = dict[str, list[str]]
CLIENT = f"if(client_id = '{NAMED_CLIENT[0]}', '{NAMED_CLIENT[1]}', client_id)"
COLUMNS = {
    "model": "coalesce(request_model, response_model)", "gateway": "gateway", "client": CLIENT, "outcome": "outcome",
    "cause": "error_type", "status": "http_status::VARCHAR", "dialect": "dialect",
}  # fmt: skip
KINDS = {
    "errors": IS_ERROR,
    "stalled": "stall_count > 0",
    "aborted": "outcome = 'client_abort'",
    "unsuccessful": "NOT meets_objective",
}
DEFAULTS = {"order": ["newest"]}
WITHOUT_LINKS = ("compare", "pipeline", "sql")
SIDEBAR = ("model", "gateway", "client")
LINKS = """() => {
    const found = {};
    for (const link of document.querySelectorAll("[data-testid=stMain] a[href]")) {
        if (!link.getClientRects().length || link.origin !== location.origin) continue;
        const table = link.closest("table")?.ariaLabel ?? link.closest("nav")?.ariaLabel ?? "";
        const column = link.closest("[data-heading]")?.dataset.heading ?? link.closest("th")?.innerText ?? "";
        const place = table ? `${table}, ${column}` : link.innerText;
        const names = [...new Set(new URL(link.href).searchParams.keys())].sort();
        found[[place, link.pathname, names]] ??= link;
    }
    window.links = Object.values(found);
    return window.links.map(link => link.href);
}"""
"""The addresses of one link of each kind that the page shows."""
TABLE_SUM = """([label, heading]) => {
    const table = [...document.querySelectorAll("table")].find(table => table.ariaLabel?.startsWith(label));
    return [...table?.querySelectorAll(`[data-heading="${heading}"]`) ?? []]
        .reduce((sum, cell) => sum + Number(cell.textContent.replaceAll(",", "")), 0);
}"""


@dataclass
class Site:
    """A dashboard in a browser, and the data folder that it shows."""

    seen: Reader
    data: Path
    span: Parameters
    """The time range of all streams, as parameters of the address."""

    def number(self, sql: str, parameters: Parameters) -> int:
        """The answer of SQL about the streams that the parameters select."""
        values = {
            name: ", ".join(f"'{v}'" for v in parameters[name]) for name in COLUMNS if name in parameters
        }
        where = [f"{COLUMNS[name]} IN ({listed})" for name, listed in values.items()]
        where += [KINDS[kind] for kind in parameters.get("kind", ())]
        for text in parameters.get("zoom", [])[-1:]:
            span = zoom.from_text(text)
            assert span is not None
            where.append(f"started_at >= '{span[0]}' AND started_at < '{span[1]}'")
        found = tables(self.data).query(f"SELECT {sql} FROM streams WHERE {' AND '.join(where) or 'TRUE'}")
        return int(found.item() or 0)


@pytest.fixture(scope="module")
def site(incident: tuple[Path, datetime]) -> Iterator[Site]:
    data, _ = incident
    until = (datetime.now(UTC) + timedelta(minutes=2)).replace(tzinfo=None)
    ends = [("from", until - timedelta(hours=1)), ("until", until)]
    span = {"range": ["custom"], **{name: [f"{at:%Y-%m-%dT%H:%M}"] for name, at in ends}, "refresh": ["off"]}
    with running(data) as dashboard, reader(dashboard.url, height=1200) as seen:
        yield Site(seen, data, span)


def shown_number(site: Site, path: str, parameters: Parameters) -> tuple[int, int] | None:
    """A number of the page, and what SQL says. None for pages that do not count streams."""
    seen, count = site.seen, "count(*)"

    def metric(label: str) -> int:
        return int(seen.metric(label).replace(",", ""))

    def column(label: str, heading: str) -> int:
        return int(seen.page.evaluate(TABLE_SUM, [label, heading]))

    if path == "/":
        return metric("Requests"), site.number(count, parameters)
    if path == "/latency":
        return column("Quantiles by", "Streams"), site.number("count(ttft_ns)", parameters)
    if path == "/throughput":
        return column("Throughput by", "Requests"), site.number(count, parameters)
    if path == "/errors":
        return metric("Errors"), site.number(f"count(*) FILTER ({IS_ERROR})", parameters)
    if path == "/compare" and "onset" in parameters:
        # Compare judges complete streams only.
        begin, end = (datetime.fromisoformat(f"{parameters[name][0]}+00:00") for name in ("from", "until"))
        models, gateways = (tuple(parameters.get(name, ())) for name in ("model", "gateway"))
        shown = Selection(since=begin, until=end, models=models, gateways=gateways)
        edge = complete_until(tables(site.data).query, shown, datetime.now(UTC))
        after = f"count(*) FILTER (started_at >= '{parameters['onset'][0]}+00' AND started_at < '{edge}')"
        return metric("B: requests"), site.number(after, parameters)
    if path == "/streams":
        return seen.stream_count(), site.number(count, parameters)
    return None


def differences(site: Site, path: str, named: Parameters) -> str:
    """What differs between the open page and these parameters of its address, or an empty text."""
    page = site.seen.page
    address = urlsplit(page.url)
    # Streamlit leaves the defaults of widgets out.
    wanted = {name: values for name, values in named.items() if DEFAULTS.get(name) != values}
    if (address.path, parse_qs(address.query)) != (path, wanted):
        return f"address {page.url}"
    for name in SIDEBAR:
        shown = page.locator(f".st-key-{name}").inner_text().split("\n")[1:]
        if [line for line in shown if line] != named.get(name, []):
            return f"{name} is {shown}"
    if page.locator(".st-key-range input").first.input_value() != named["range"][0]:
        return "range"
    numbers = shown_number(site, path, named)
    return "" if numbers is None or numbers[0] == numbers[1] else f"numbers {numbers}"


def follow(site: Site, index: int, href: str) -> None:
    """Click a link of the open page, and compare its target with what the link says."""
    seen, target = site.seen, urlsplit(href)
    named = parse_qs(target.query)
    seen.page.evaluate("window.sameDocument = true")
    seen.page.evaluate_handle("index => window.links[index]", index).as_element().click()  # type: ignore[union-attr]

    seen.settle()
    wait_until_empty(seen, lambda: differences(site, target.path, named), href)
    assert seen.exceptions() == 0, href
    assert seen.page.evaluate("window.sameDocument"), href


def wait_until_empty(seen: Reader, difference: Callable[[], str], about: str) -> None:
    """Wait until `difference()` is empty."""
    for _ in range(int(TIMEOUT_MS / 250)):
        if not (text := difference()):
            return
        seen.page.wait_for_timeout(250)
    raise AssertionError(f"{about}: {text}")


def follow_all(site: Site, view: str, kinds: str = "") -> int:
    """Follow one link of each kind of a page whose address contains `kinds`. Returns how many."""
    address = page_paths(site.data)[view].replace(RANGE, urlencode(site.span, doseq=True))
    followed = 0
    site.seen.open(address)
    for href in [href for href in site.seen.page.evaluate(LINKS) if kinds in href]:
        if followed:
            site.seen.open(address)
        follow(site, site.seen.page.evaluate(LINKS).index(href), href)
        followed += 1
    return followed


def test_links_of_the_diagnosis_and_then_of_the_sidebar_carry_their_filter(site: Site) -> None:
    assert follow_all(site, "overview", "model=gpt-4o-mini&gateway=litellm") == 2
    filtered = site.span | {"model": ["gpt-4o-mini"], "gateway": ["litellm"]}
    site.seen.page.get_by_role("link", name="Streams", exact=True).first.click()
    wait_until_empty(site.seen, lambda: differences(site, "/streams", filtered), "sidebar")


@pytest.mark.slow  # the links of the diagnosis are followed above
@pytest.mark.parametrize("view", [*VIEWS, "trace"])
def test_links_of_every_page_carry_their_filter(site: Site, view: str) -> None:
    assert follow_all(site, view) >= (0 if view in WITHOUT_LINKS else 1)
