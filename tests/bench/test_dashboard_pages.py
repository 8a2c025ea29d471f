"""The dashboard bench clicks through every page of the menu."""

from itertools import chain

from bench.dashboard import browser_timing
from streamgauge.dashboard.pages import PAGES


def test_every_page_of_the_menu_is_timed() -> None:
    titles = {page.title for page in chain.from_iterable(PAGES.values())}
    assert titles == {*browser_timing.PAGES, "Stream"}
