"""Hook of MkDocs: adds the Markdown of each page to the site, at its path in `docs`, and `llms.txt`, which lists the pages for agents.

`llms.txt` follows llmstxt.org: the title, a summary, and for each part of the navigation a link to each page with its first sentence.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

FILE = "llms.txt"
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_sections: list[tuple[str, list[Any]]] = []


def on_nav(nav: Any, **_: Any) -> Any:
    """Keep the pages of each part of the navigation."""
    _sections[:] = [(item.title or "", _pages(item)) for item in nav.items]
    return nav


def on_post_build(config: Any) -> None:
    """Write the files."""
    site = Path(config.site_dir)
    lines = [f"# {config.site_name}", "", f"> {config.site_description}"]
    for title, pages in _sections:
        lines += ["", f"## {title}", ""]
        for page in pages:
            source = Path(page.file.abs_src_path)
            heading, summary = _beginning(source.read_text())
            lines.append(f"- [{heading}]({page.file.src_uri}): {summary}")
            target = site / page.file.src_uri
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    (site / FILE).write_text("\n".join(lines) + "\n")


def _pages(item: Any) -> list[Any]:
    """The pages of a part and of its parts."""
    if item.children is None:
        return [item]
    return [page for child in item.children for page in _pages(child)]


def _beginning(text: str) -> tuple[str, str]:
    """The heading of a page and its first sentence, without links and marks."""
    heading, *paragraphs = (p for p in text.split("\n\n") if not p.startswith(("<!--", "![")))
    first = " ".join(_LINK.sub(r"\1", paragraphs[0]).replace("*", "").split())
    sentence, end, _ = first.partition(". ")
    return heading.removeprefix("# ").strip(), sentence + end.strip()
