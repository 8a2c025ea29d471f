"""Pictures of every page of a running dashboard: `python -m tests.dashboard.screenshots URL FOLDER [dark]`.

For README and docs: run it over the demo. The stream page shows the stream that the first row of Streams links to.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tests.dashboard.browser import reader
from tests.dashboard.pages import VIEWS

MOST_PX = 2600
README_PX = 1320
"""The overview's cards and first lines: what stands in README."""


def main(url: str, folder: Path, *, dark: bool = False, stream_id: str = "") -> None:
    """One PNG per page, as high as the page (up to a limit)."""
    folder.mkdir(parents=True, exist_ok=True)
    with reader(url, dark=dark) as seen:
        for view in VIEWS:
            path = {"overview": "?range=5m", "stream": f"stream?id={stream_id}"}.get(view, f"{view}?range=5m")
            seen.page.set_viewport_size({"width": 1280, "height": 900})
            seen.open(path)
            tall = seen.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
            seen.page.set_viewport_size(
                {
                    "width": 1280,
                    "height": max(900, min(int(tall), README_PX if view == "overview" else MOST_PX)),
                }
            )
            seen.settle()
            seen.page.screenshot(path=folder / f"{view}{'-dark' if dark else ''}.png")


if __name__ == "__main__":
    address, where, *more = sys.argv[1:]
    main(address, Path(where), dark="dark" in more, stream_id=next((m for m in more if len(m) == 36), ""))
