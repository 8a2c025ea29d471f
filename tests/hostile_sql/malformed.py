"""Text that is not SQL: truncated, mutated and spliced statements, comments, control characters."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.hostile_sql.draw import Draw

TOKEN = re.compile(r"\s+|\w+|'(?:[^']|'')*'|\"[^\"]*\"|.", re.DOTALL)
_INSERTED = (
    "--", "/*", "*/", "/* /* */", ";", ";;", "'", '"', "$$", "$1", "?", ":name", "\\", "\x00", "\x01", "\x1a", "\r", "\u2028",
    "\u00a0", "\ufeff", "\u202e", "＇", "；", "é", "𝕊𝔼𝕃𝔼ℂ𝕋", "(", ")", "[", "]", "{", "}", ",", ".", "::", "->", ":=", "=>", "*", "**",
    "NULL", "SELECT", "FROM", "WITH", "UNION", "GROUP BY", "ORDER BY ALL", "OVER ()", "LIMIT", "1e", "0x", "0b2", "1__0", "x'zz'",
    "e'\\", "b'1'", "$tag$ x $tag", "@", "#1", "#999999", "!", "~", "%", "\n\n\n", "AS OF", "INTERVAL", "lambda", "\ud800",
    "\U0010ffff", "DESCRIBE", "EXPLAIN", "PIVOT", "UNPIVOT", "FILTER", "WITHIN GROUP", "RECURSIVE", "TRY_CAST(", "COLUMNS(",
    "/*streamgauge max_rows=1 timeout_s=9*/",
)  # fmt: skip


def malformed(draw: Draw, valid: Callable[[Draw], str]) -> str:
    """A valid statement with one to six mutations, or random tokens."""
    if draw.chance(0.1):
        return " ".join(draw.some(_INSERTED, 30))
    text = valid(draw)[:20_000]
    for _ in range(draw.size(6)):
        tokens = TOKEN.findall(text)
        place = draw.random.randrange(len(tokens) + 1)
        other = draw.random.randrange(len(tokens) + 1)
        low, high = sorted((place, other))
        text = "".join(
            draw.one(
                (
                    tokens[:place],
                    [*tokens[:place], draw.one(_INSERTED), *tokens[place:]],
                    tokens[:place] + tokens[place + 1 :],
                    [*tokens[:place], draw.one(_INSERTED), *tokens[place + 1 :]],
                    tokens[:low] + tokens[high:],
                    tokens[:high] + tokens[low:],
                    tokens[low:],
                    tokens[:place] + tokens[other : other + 1] + tokens[place:],
                    [*tokens[:place], valid(draw)[:5000], *tokens[place:]],
                )
            )
        )
    return text[:80_000]
