"""The SQL editor: a component of the SQL page, with highlighting, completion, a list of the tables, and recipes.

It is our own, without dependencies. The published editors for Streamlit have not had a release since 2024 or earlier, have 4 to
13 MB, and load scripts or fonts from other sites, which the dashboard never does. A text area with a coloured copy behind it
keeps the browser's own undo, input methods and accessibility. Escape closes the list of completions; Tab leaves the
editor unless that list is open.

The browser keeps the text: each run sends it, and `revision` replaces it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import streamlit as st

from streamgauge.dashboard.sql_statements import MAX_CHARS, MAX_EDITOR_CHARS

_HERE = Path(__file__).parent
_SCRIPTS = ("highlight.js", "completion.js", "schema.js", "editor.js")
_component = st.components.v2.component(
    "streamgauge_sql_editor",
    html=(_HERE / "editor.html").read_text(),
    css=(_HERE / "editor.css").read_text(),
    js="\n".join((_HERE / name).read_text() for name in _SCRIPTS),
    # With a shadow root, Streamlit's shortcuts of one key would not see that the key goes to a text area.
    isolate_styles=False,
)


@dataclass(frozen=True)
class Mark:
    """The position of an error, in characters of the statement."""

    sql: str
    position: int | None


def draw(
    sql: str,
    *,
    revision: int,
    mark: Mark | None,
    tables: Sequence[Mapping[str, Any]],
    functions: Sequence[Sequence[str]],
    recipes: Sequence[tuple[str, Sequence[Mapping[str, str]]]],
    open_recipes: bool,
) -> str | None:
    """Draw the editor, and return the statement that the reader has just run.

    `sql` replaces the text when `revision` changes. `tables`: `name, kind, comment, columns` with (name, type, comment).
    `functions`: (name, parameters). `recipes`: groups of `title, answers, sql`.
    """
    result = _component(
        key="sql-editor",
        data={
            "sql": sql,
            "revision": revision,
            "error": None if mark is None else {"sql": mark.sql, "position": mark.position},
            "tables": tables,
            "functions": functions,
            "recipes": recipes,
            "openRecipes": open_recipes,
            "maxChars": MAX_EDITOR_CHARS,
            "maxLinkChars": MAX_CHARS,
        },
        on_run_change=lambda: None,
    )
    ran = result.run
    return ran if isinstance(ran, str) and ran.strip() else None
