"""Pictures of every page of a running dashboard: `python -m tests.dashboard.screenshots URL FOLDER [dark] [ID] [range=…]`.

For README and docs: run it over the demo. The stream page shows the stream that the first row of Streams links to.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image

from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import reader

MOST_PX = 2600
README_PX = 1320
"""The overview's cards and first lines: what stands in README."""


def make_small(file: Path) -> None:
    """Write a PNG anew with its 256 most frequent colours, a third of its size: a page has few, and those stay."""
    with Image.open(file) as opened:
        picture = opened.convert("RGB")
    counted: list[Any] = sorted(picture.getcolors(picture.width * picture.height) or [], reverse=True)[:256]
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for _, color in counted for channel in color])
    picture.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)


def main(
    url: str,
    folder: Path,
    *,
    dark: bool = False,
    stream_id: str = "",
    span: str = "range=5m",
    paths: Mapping[str, str] | None = None,
) -> None:
    """One PNG per page, as high as the page (up to a limit), over a time range as the address says it.

    `paths`: what else the address of a page says.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with reader(url, dark=dark) as seen:
        for view in VIEWS:
            path = {"overview": f"?{span}", "stream": f"stream?id={stream_id}"}.get(view, f"{view}?{span}")
            path += (paths or {}).get(view, "")
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
            file = folder / f"{view}{'-dark' if dark else ''}.png"
            seen.page.screenshot(path=file)
            make_small(file)


if __name__ == "__main__":
    address, where, *more = sys.argv[1:]
    main(
        address,
        Path(where),
        dark="dark" in more,
        stream_id=next((m for m in more if len(m) == 36), ""),
        span=next((m for m in more if m.startswith("range=")), "range=5m"),
    )
