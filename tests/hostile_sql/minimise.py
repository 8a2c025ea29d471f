"""Shorten a failing statement by removing tokens (delta debugging)."""

from __future__ import annotations

from collections.abc import Callable

from tests.hostile_sql.malformed import TOKEN


def minimise(sql: str, fails: Callable[[str], bool], attempts: int = 200) -> str:
    """The shortest statement found that still fails. Calls `fails` at most `attempts` times."""
    tokens = TOKEN.findall(sql)
    size = max(1, len(tokens) // 2)
    while size:
        removed = False
        start = 0
        while start < len(tokens):
            if not attempts:
                return "".join(tokens)
            attempts -= 1
            shorter = tokens[:start] + tokens[start + size :]
            if shorter and fails("".join(shorter)):
                tokens, removed = shorter, True
            else:
                start += size
        if not removed or size > 1:
            size //= 2
    return "".join(tokens)
