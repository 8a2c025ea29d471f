"""Load the code of the elements that pages draw, and the font of the icons, before the first element arrives.

Streamlit loads the code of an element when it first draws one. A placeholder of another height takes its place for that time,
so all elements below it would shift. It appears even if the browser has the code, unless the page has drawn one before.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import streamlit as st

ELEMENTS = ("Selectbox", "Multiselect", "Checkbox", "Html", "PageLink", "Metric", "ButtonGroup", "Button", "TextInput",
            "ArrowVegaLiteChart", "embed", "BidiComponent")  # fmt: skip
"""Streamlit's names of the elements of most pages, in the order of their appearance. Unknown names are skipped."""
HIDDEN = "preloaded"
"""Key of the container of `draw_hidden`. `css` hides it."""
ICON_FONT = "MaterialSymbols-Rounded"
STATIC = Path(st.__file__).parent / "static" / "static"
_IMPORT = re.compile(r'(?:from|import)"\./([^"]+\.js)"')


def preloads(static: Path = STATIC) -> str:
    """Links and a script for the end of the page. `static` has the folders `js` and `media`."""
    scripts, fonts = (sorted(file.name for file in (static / folder).glob("*")) for folder in ("js", "media"))
    elements = [name for element in ELEMENTS for name in scripts if name.startswith(f"{element}.")]
    links = [
        f'<link rel=preload as=font type=font/woff2 crossorigin href="/static/media/{name}">'
        for name in fonts
        if name.startswith(f"{ICON_FONT}.")
    ]
    links += [
        f'<link rel=modulepreload crossorigin href="/static/js/{name}">'
        for name in _imported(static, elements)
    ]
    run = f"for(const name of {json.dumps(elements)})import(`/static/js/${{name}}`)"
    return f"{''.join(links)}<script type=module>{run}</script>"


def draw_hidden() -> None:
    """Draw one of each element without a fixed height in a hidden container, before the queries of the page run."""
    with st.sidebar, st.container(key=HIDDEN):
        st.html("<i></i>")
        st.metric("-", "-")
        st.page_link("views/overview.py")


def _imported(static: Path, names: list[str]) -> list[str]:
    """The names and all that they import, without what the page loads itself."""
    loaded = set(re.findall(r'static/js/([^"]+\.js)', (static.parent / "index.html").read_text()))
    found: dict[str, None] = {}
    waiting = names[::-1]
    while waiting:
        name = waiting.pop()
        if name not in found and name not in loaded:
            found[name] = None
            waiting += _IMPORT.findall((static / "js" / name).read_text())[::-1]
    return list(found)
