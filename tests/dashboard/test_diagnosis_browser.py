"""The first screen names the place and the onset of each kind of incident, and its links lead to the same streams as SQL.

One store, one dashboard and one browser for all kinds, and one range of time per kind.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qs, urlencode, urlsplit

import polars as pl
import pytest

from bench.diagnosis import drawn
from bench.diagnosis.incidents import INCIDENTS, Expected
from bench.diagnosis.traffic import simulate
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.schema.clients import shortened
from streamgauge.analytics.schema.frames import with_all_columns
from streamgauge.analytics.schema.outcomes import IS_ERROR
from streamgauge.analytics.schema.tables import STREAMS
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.analytics.storage.store import Store
from tests.dashboard.browser import MARKS, TIMEOUT_MS, reader
from tests.dashboard.followed_links import Site, differences, follow, range_of, wait_until_empty
from tests.dashboard.running_dashboard import running

pytestmark = MARKS
SHORT = ("one model's 429s", "answers cut at the limit")
"""A failure and answers that got worse without one. The others are slow."""
SEED, LENGTH_S, RATE = 5, 300.0, 10.0
FIRST = datetime(2026, 6, 1, 12, tzinfo=UTC)
TOLERANCE_S = 10
PLACES = {"model": "request_model", "gateway": "gateway", "client": "client_id", "tap": "tap"}
AFFECTED = {
    "failure": IS_ERROR,
    "loss": "outcome = 'tap_lost'",
    "stall": "stall_count > 0",
    "length": "outcome = 'ok' AND finish_reason = 'length'",
    "refusal": "outcome = 'ok' AND finish_reason = 'content_filter'",
    "violation": "len(violations) > 0",
}
"""Family of metrics → SQL condition of the streams that the incident affects. Without one, all at its place are."""
VERDICT = "[class*='st-key-verdict-red'], [class*='st-key-verdict-orange']"
VERDICT_LINKS = """number => {
    const links = document.querySelectorAll(`.st-key-verdict-links-${number} a[href]`);
    window.links = [...links].filter(link => link.getClientRects().length);
    return window.links.map(link => link.href);
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    data = tmp_path_factory.mktemp("incidents")
    with running(data) as dashboard, reader(dashboard.url) as found:
        yield Site(found, data, {})


def store_incident(site: Site, name: str) -> None:
    """Store the streams of an incident and their roll-ups. The time before the range is its baseline."""
    number = list(INCIDENTS).index(name)
    begin = FIRST + timedelta(minutes=20 * number)
    ends = {"from": begin, "until": begin + timedelta(seconds=LENGTH_S)}
    site.span = {
        "range": ["custom"],
        **{key: [f"{at:%Y-%m-%dT%H:%M}"] for key, at in ends.items()},
        "refresh": ["off"],
        "utc": ["true"],
    }
    faults = drawn(name, SEED, LENGTH_S).faults
    streams = simulate(SEED, since=begin, length_s=LENGTH_S, earlier_s=LENGTH_S, rate=RATE, faults=faults)
    # The ids of a seed are the same for all kinds.
    streams = streams.with_columns(
        pl.format(f"{number:08x}{{}}", pl.col("stream_id").str.slice(8)).alias("stream_id")
    )
    rows = {"streams": with_all_columns(streams, STREAMS)}
    with contextlib.closing(Store(locate(SQLITE, site.data))) as store:
        store.commit(Commit("", tables=rows | rollups(rows)))


def open_overview(site: Site) -> list[str]:
    """Open the Overview, whose diagnosis is within the first screen. Returns the texts of its causes."""
    seen = site.seen
    seen.open(f"?{urlencode(site.span, doseq=True)}")
    verdict = seen.page.locator(VERDICT).first
    verdict.wait_for(timeout=TIMEOUT_MS)
    box, window = verdict.bounding_box(), seen.page.viewport_size
    assert box is not None
    assert window is not None
    assert box["y"] + box["height"] <= window["height"]
    return verdict.locator("[data-testid=stMarkdown]").all_inner_texts()


def number_of(expected: Expected, causes: list[str], since: datetime) -> int:
    """The number of the cause at the expected place, which began at the expected onset."""
    values = [shortened(value) if d == "client" else value for d, value in expected.where.items()]
    number = next(
        (i for i, text in enumerate(causes) if all(v in text.split(" Unaffected")[0] for v in values)), None
    )
    assert number is not None, (expected, causes)
    clock = re.search(r"since (\d\d):(\d\d):(\d\d)", causes[number])
    assert clock is not None, causes[number]
    hours, minutes, seconds = map(int, clock.groups())
    onset_s = (since.replace(hour=hours, minute=minutes, second=seconds) - since).total_seconds()
    assert onset_s == pytest.approx(expected.onset_s, abs=TOLERANCE_S), causes[number]
    return number


def assert_streams_are_affected(site: Site, expected: Expected) -> None:
    """The open page, Streams or Stream, shows exactly the streams that SQL finds for the incident since its onset."""
    address = urlsplit(site.seen.page.url)
    parameters = parse_qs(address.query)
    where = [f"{PLACES[d]} = '{value}'" for d, value in expected.where.items()]
    where.append(AFFECTED.get(expected.families[0], "TRUE"))
    if address.path == "/stream":
        assert site.count(" AND ".join([*where, f"stream_id = '{parameters['id'][0]}'"])) == 1
    elif address.path == "/streams":
        begin, end = range_of(parameters)
        onset_s = (begin - range_of(site.span)[0]).total_seconds()
        assert onset_s == pytest.approx(expected.onset_s, abs=TOLERANCE_S)
        where.append(f"started_at >= '{begin}' AND started_at < '{end}'")
        assert site.seen.stream_count() == site.count(" AND ".join(where))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in INCIDENTS]
)
def test_first_screen_names_the_incident_and_links_to_its_streams(site: Site, name: str) -> None:
    store_incident(site, name)
    causes = open_overview(site)
    begin, _ = range_of(site.span)
    for expected in drawn(name, SEED, LENGTH_S).expected:
        number = number_of(expected, causes, begin)
        key = "first" if number == 0 else str(number + 1)
        hrefs = site.seen.page.evaluate(VERDICT_LINKS, key)
        assert len(hrefs) >= 3, hrefs
        for index, href in enumerate(hrefs):
            follow(site, index, href)
            assert_streams_are_affected(site, expected)
            if name == SHORT[0] and index == 0:
                site.seen.page.get_by_role("link", name="Streams", exact=True).first.click()
                filtered = parse_qs(urlsplit(href).query)
                wait_until_empty(site.seen, lambda: differences(site, "/streams", filtered), "sidebar")  # noqa: B023
                site.seen.page.go_back()
                wait_until_empty(site.seen, lambda: differences(site, urlsplit(href).path, filtered), "back")  # noqa: B023
            site.seen.page.go_back()
            wait_until_empty(site.seen, lambda: differences(site, "/", site.span), "back")
            assert site.seen.page.evaluate(VERDICT_LINKS, key) == hrefs
