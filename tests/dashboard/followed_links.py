"""Follow a link of a page in a real browser, and compare its target with the link: address, sidebar, chips and number of streams."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from streamgauge.analytics.reports.overview import complete_until
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.dashboard.pages import PAGES
from tests.dashboard.browser import TIMEOUT_MS, Reader
from tests.dashboard.generated_store import NAMED_CLIENT
from tests.tables import tables

Parameters = dict[str, list[str]]
CLIENT = f"if(client_id = '{NAMED_CLIENT[0]}', '{NAMED_CLIENT[1]}', client_id)"
COLUMNS = {
    "model": "coalesce(request_model, response_model)", "gateway": "gateway", "client": CLIENT, "outcome": "outcome",
    "app": "coalesce(client_app, '(unknown)')",
    "cause": "error_type", "status": "http_status::VARCHAR", "dialect": "dialect", "tap": "tap", "server": "server_instance",
    "finish": "CASE WHEN finish_reason LIKE 'max_tokens' THEN 'length' ELSE finish_reason END",
}  # fmt: skip
"""Filter → SQL of its value, written without the code of the pages."""
KINDS = {
    "errors": IS_ERROR,
    "stalled": "stall_count > 0",
    "aborted": "outcome = 'client_abort'",
    "lost": "outcome = 'tap_lost'",
    "unsuccessful": "NOT meets_objective",
    "breaks strict clients": "len(violations) > 0",
}
ANSWERS = {
    "refusal": "outcome = 'ok' AND (refusal_chars > 0 OR finish_reason = 'content_filter')",
    "text": "outcome = 'ok' AND coalesce(refusal_chars, 0) + coalesce(tool_call_count, 0) = 0 AND ttfo_ns IS NOT NULL",
    "failed with a tool call": f"tool_call_count > 0 AND ({IS_ERROR} OR tool_failure_count > 0)",
}
DEFAULTS = {"order": ["newest"]}
SIDEBAR = ("model", "gateway", "client", "app", "label")
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
        for label in parameters.get("label", ()):
            name, _, value = label.replace("'", "''").partition("=")
            where.append(f"labels['{name}'] = '{value}'")
        where += [KINDS[kind] for kind in parameters.get("kind", ())]
        where += [ANSWERS[answer] for answer in parameters.get("answer", ())]
        begin, end = range_of(parameters)
        where.append(f"started_at >= '{begin}' AND started_at < '{end}'")
        return self.count(" AND ".join(where), sql)

    def count(self, where: str, sql: str = "count(*)") -> int:
        """The answer of SQL about the streams that match a condition."""
        return int(tables(self.data).query(f"SELECT {sql} FROM streams WHERE {where}").item() or 0)


def range_of(parameters: Parameters) -> tuple[datetime, datetime]:
    """The time range of an address: the newest zoom, or else the custom range."""
    texts = (
        parameters["zoom"][-1].split("/")
        if "zoom" in parameters
        else [parameters[name][0] for name in ("from", "until")]
    )
    begin, end = (datetime.fromisoformat(f"{text}+00:00") for text in texts)
    return begin, end


def shown_streams(site: Site, path: str, parameters: Parameters) -> tuple[object, object] | None:
    """Numbers of streams on the page, and what SQL says. None for pages that do not count streams."""
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
        begin, end = range_of(parameters)
        models, gateways = (tuple(parameters.get(name, ())) for name in ("model", "gateway"))
        shown = Selection(since=begin, until=end, models=models, gateways=gateways)
        edge = complete_until(tables(site.data).query, shown, datetime.now(UTC))
        onset, by = f"{parameters['onset'][0]}+00", parameters.get("dimension", [""])[0].split(" ")[0]
        place = parameters | ({by: parameters["A-value"]} if by else {})
        before = f"{count} FILTER (started_at < '{onset}')"
        after = f"{count} FILTER (started_at >= '{onset}' AND started_at < '{edge}')"
        return [metric("A: requests"), metric("B: requests")], [
            site.number(sql, place) for sql in (before, after)
        ]
    if path == "/pipeline":
        return column("Streams by tap", "Tap lost"), site.count("outcome = 'tap_lost'")
    if path == "/stream":
        shown_id = seen.page.get_by_label("Stream id").input_value()
        models = tables(site.data).query(
            f"""SELECT request_model FROM (
                SELECT stream_id, request_model FROM streams UNION ALL SELECT stream_id, request_model FROM open_streams)
            WHERE stream_id = '{parameters["id"][0]}'"""
        )
        return [shown_id, True], [
            parameters["id"][0],
            models.item() in seen.page.locator("[data-testid=stMain]").inner_text(),
        ]
    if path == "/streams":
        return seen.stream_count(), site.number(count, parameters)
    return None


def wanted_chips(seen: Reader, named: Parameters) -> list[str]:
    """The texts of the chips for the filters of these parameters. Those of a time and of a duration are only their names."""
    title = seen.page.locator("[data-testid=stMain] h1").inner_text()
    page = next(page for group in PAGES.values() for page in group if page.title == title)
    applying = ("from", *SIDEBAR) if title == "SQL" else page.applying()  # that of SQL depends on the address
    values = [(name, v) for name in (*SIDEBAR, *page.own_filters) for v in named.get(name, ())]
    return [
        name if name == "duration" else f"{name}: {value}"
        for name, value in values
        if name not in SIDEBAR or name in applying
    ] + ["zoom" for _ in named.get("zoom", ()) if "from" in applying]


def shown_chips(seen: Reader) -> list[str]:
    """The texts of the chips, as `wanted_chips`."""
    texts = seen.page.locator(".st-key-chips [class*=st-key-chip-] button:visible p").all_inner_texts()
    found = [text.split(":")[0] if text.startswith(("zoom:", "duration:")) else text for text in texts]
    return sorted((t for t in found if ":" in t or t == "zoom"), key=lambda text: text == "zoom")


def differences(site: Site, path: str, named: Parameters) -> str:
    """What differs between the open page and these parameters of its address, or an empty text."""
    page = site.seen.page
    address = urlsplit(page.url)
    # Streamlit leaves the defaults of widgets out.
    wanted = {name: values for name, values in named.items() if DEFAULTS.get(name) != values}
    if (address.path, parse_qs(address.query)) != (path, wanted):
        return f"address {page.url}"
    for name in SIDEBAR:
        # Without labels there is no filter of them.
        shown = "".join(page.locator(f".st-key-{name}").all_inner_texts()).split("\n")[1:]
        if [line for line in shown if line] != named.get(name, []):
            return f"{name} is {shown}"
    if page.locator(".st-key-range input").first.input_value() != named["range"][0]:
        return "range"
    if (chips := shown_chips(site.seen)) != (expected := wanted_chips(site.seen, named)):
        return f"chips {chips}, not {expected}"
    numbers = shown_streams(site, path, named)
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
