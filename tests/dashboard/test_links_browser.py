"""Every link of every page in a real browser: its target shows the filter that the link names, in the sidebar, the address and the numbers.

One link of each kind is followed: the links of one column of a table differ in a value only.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import urlencode

import pytest

from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import MARKS, reader
from tests.dashboard.followed_links import LINKS, Site, follow
from tests.dashboard.page_paths import RANGE, page_paths
from tests.dashboard.running_dashboard import running

pytestmark = [
    *MARKS,
    pytest.mark.slow,  # test_diagnosis_browser follows the links of the diagnosis
]
WITHOUT_LINKS = ("alerts", "compare", "pipeline", "sql")
"""In this store: no alert has fired."""


@pytest.fixture(scope="module")
def site(incident: tuple[Path, datetime]) -> Iterator[Site]:
    data, _ = incident
    until = (datetime.now(UTC) + timedelta(minutes=2)).replace(tzinfo=None)
    ends = [("from", until - timedelta(hours=1)), ("until", until)]
    span = {"range": ["custom"], **{name: [f"{at:%Y-%m-%dT%H:%M}"] for name, at in ends}, "refresh": ["off"]}
    with running(data) as dashboard, reader(dashboard.url, height=1200) as seen:
        yield Site(seen, data, span)


def follow_all(site: Site, view: str) -> int:
    """Follow one link of each kind of a page. Returns how many."""
    address = page_paths(site.data)[view].replace(RANGE, urlencode(site.span, doseq=True))
    followed = 0
    site.seen.open(address)
    for href in site.seen.page.evaluate(LINKS):
        if followed:
            site.seen.open(address)
        follow(site, site.seen.page.evaluate(LINKS).index(href), href)
        followed += 1
    return followed


@pytest.mark.parametrize("view", [*VIEWS, "trace"])
def test_links_of_every_page_carry_their_filter(site: Site, view: str) -> None:
    assert follow_all(site, view) >= (0 if view in WITHOUT_LINKS else 1)
