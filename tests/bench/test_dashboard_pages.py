"""The dashboard bench clicks through every page of the menu."""

import re
from pathlib import Path

from bench.dashboard.browser_timing import PAGES

APP = Path(__file__).parents[2] / "dashboard" / "app.py"


def test_every_page_of_the_menu_is_timed() -> None:
    assert set(re.findall(r'\.py", title="(\w+)"', APP.read_text())) == {*PAGES, "Stream"}
