"""Screenshots of every page of a running dashboard.

`python -m tests.dashboard.screenshots URL FOLDER [dark] [STREAM_ID] [range=…]`
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from PIL import Image, ImageColor

from streamgauge.dashboard.charts import colors
from tests.dashboard.app_test import VIEWS
from tests.dashboard.browser import reader

SERIES_AND_STATES = (
    *colors.SERIES, *colors.OUTCOMES.values(), *colors.ERROR_CAUSES.values(), *colors.EVENT_KINDS.values(), *colors.CAUSES.values(),
    *colors.TOKENS.values(), colors.TOTAL_COLOR, colors.UNNAMED, colors.MARK,
)  # fmt: skip
MOST_PX = 2600
README_PX = 1320
"""Height of the overview, for the README."""


def make_small(file: Path) -> None:
    """Reduce a PNG to 256 colours, which makes it a third of the size: those of series and states, and the most frequent ones."""
    with Image.open(file) as image:
        reduced = image.convert("RGB")
    frequencies: list[Any] = sorted(reduced.getcolors(reduced.width * reduced.height) or [], reverse=True)
    kept = dict.fromkeys([ImageColor.getrgb(color) for color in SERIES_AND_STATES])
    kept |= dict.fromkeys(color for _, color in frequencies)
    palette = Image.new("P", (1, 1))
    palette.putpalette([channel for color in [*kept][:256] for channel in color])
    reduced.quantize(palette=palette, dither=Image.Dither.NONE).save(file, optimize=True)


def main(
    url: str,
    folder: Path,
    *,
    dark: bool = False,
    stream_id: str = "",
    span: str = "range=5m",
    paths: Mapping[str, str] | None = None,
) -> None:
    """Take one PNG per page, as high as the page up to a limit.

    `span` is the URL parameter of the time range. `paths` are further URL parameters of a page.
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
    address, folder_name, *options = sys.argv[1:]
    main(
        address,
        Path(folder_name),
        dark="dark" in options,
        stream_id=next((m for m in options if len(m) == 36), ""),
        span=next((m for m in options if m.startswith("range=")), "range=5m"),
    )
