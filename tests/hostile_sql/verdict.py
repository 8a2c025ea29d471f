"""Judge a reply: what became of the statement, and which guarantee the reply breaks.

- An error is one line and says what failed. It names no file, no internal table or function, and no line of code.
- An answer shows no internal names, no paths of the store and no token.
"""

from __future__ import annotations

import re

CLIENT_LINE = re.compile(r"\n\nLINE \d+: .*", re.DOTALL)
"""What a DuckDB client adds to an error: the line of its own statement."""
CLIENT_PREFIX = re.compile(r"^(?:[A-Z]\w+(?: \w+)? Error: )")
INTERNAL = re.compile(
    r"__ducklake\w*|\bducklake_(?:snapshot|table|schema|data_file|column|metadata)\w*|streamgauge_(?:gate|positions)\w*|\banswers\.\w+"
    r"|\binternal\.\w+|counter_parts|quack_gate|analytics[./]\w+|site-packages|\w+\.(?:py|cpp|hpp)\b|/(?:tmp|work|usr|root|home|proc)/[\w./-]+"
    r"|Traceback|Stack Trace|0x[0-9a-f]{8,}|\bat address\b|This error signals an assertion|github\.com|\b\w*Error\('"
)
"""What an error must not show, unless the statement has the same text."""
HIDDEN = re.compile(
    r"__ducklake\w*|streamgauge_(?:gate|positions)|\banswers\b|counter_parts|catalog\.sqlite|/tables/"
)
"""What an answer must not show, unless the statement has the same text."""
_LOST = (
    "Could not connect",
    "Failed to send message",
    "Connection refused",
    "Server returned nothing",
    "Connection reset",
    "Authentication failed",  # the listener's database has failed
    "has been invalidated",
)


def outcome_of(message: str) -> str:
    """`timeout`, `memory`, `crash`, `unavailable`, `busy` or `rejected`, from the text of an error."""
    if "ended its process" in message:
        return "crash"
    if "cannot start a query process" in message or any(text in message for text in _LOST):
        return "unavailable"
    if "time limit" in message or "CPU time" in message or "Timeout was reached" in message:
        return "timeout"
    if "MiB of memory" in message:
        return "memory"
    return "busy" if "busy:" in message else "rejected"


def without_client_text(message: str) -> str:
    """The server's part of an error that a DuckDB client raises."""
    return CLIENT_PREFIX.sub("", CLIENT_LINE.sub("", message))


def problem_of_error(sql: str, message: str) -> str | None:
    """What is wrong with the text of an error, None if nothing."""
    if not message.strip():
        return "empty error"
    if "\n" in message.strip():
        return "error of several lines"
    if any(text in message for text in _LOST):
        return "connection lost"
    return _shown(INTERNAL, sql, message, "error shows")


def problem_of_answer(sql: str, text: str, secrets: list[str]) -> str | None:
    """What is wrong with an answer, None if nothing. `secrets`: texts that no answer has."""
    if any(secret in text for secret in secrets):
        return "answer shows a secret"
    return _shown(HIDDEN, sql, text, "answer shows")


def _shown(pattern: re.Pattern[str], sql: str, text: str, what: str) -> str | None:
    for match in pattern.finditer(text):
        if match[0].lower() not in sql.lower():
            return f"{what} {match[0]!r}"
    return None
