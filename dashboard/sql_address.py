"""The statement of the SQL page in its address, and how long it may be. Pure."""

from __future__ import annotations

from urllib.parse import urlencode

PARAMETER = "sql"
MAX_EDITOR_CHARS = 20_000
"""Longest statement in the editor."""
MAX_CHARS = 6_000
"""Longest statement in an address, as it is encoded there. Proxies commonly accept request lines of 8 KiB."""


def encoded_chars(sql: str) -> int:
    """The length of the statement in an address, encoded as browsers do (`URLSearchParams`)."""
    return (
        len(urlencode({PARAMETER: sql}, safe="*", errors="replace").replace("~", "%7E")) - len(PARAMETER) - 1
    )


def fits(sql: str) -> bool:
    """Whether an address can contain the statement."""
    return encoded_chars(sql) <= MAX_CHARS


def too_long(sql: str) -> str:
    """The message for a statement that the address does not contain."""
    return (
        f"The address does not contain the query: it takes {encoded_chars(sql):,} characters there; the limit is "
        f"{MAX_CHARS:,}. Shorten the query to share it as a link."
    )
