"""Apply the redaction rules to decoded values before they are stored."""

from __future__ import annotations

import re
from functools import lru_cache

from streamgauge.ingest.redaction.body_redactor import BodyRedactor

_WRAP = b'{"usage":'
_NUMBER = re.compile(r"(?<=[:,\[])(-?\d[\d.eE+-]*)(?=[,\]}])")
_PLAIN = re.compile(r'(?:[{},]|"[A-Za-z0-9_.$@-]{0,64}":|-?\d[\d.eE+-]*+|null|true|false)*+')


def numbers_only(report: str) -> str:
    """Redact a report of counts and times, given as compact JSON: numbers, keys and known words are kept.

    Streams may send a report with each event, with the same words and other numbers. So the result for the words is cached.
    """
    if _PLAIN.fullmatch(report) is not None:
        return report
    parts = _NUMBER.split(report)  # words and numbers alternate
    words = _words(tuple(parts[::2]))
    if words is None:
        return _redacted(report)
    parts[::2] = words
    return "".join(parts)


@lru_cache(maxsize=1024)
def _words(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The redacted words around the numbers. None when a number is filled or a text looks like a number."""
    parts = _NUMBER.split(_redacted("7".join(words)))
    kept = [len(word) for word in parts[::2]] == [len(word) for word in words] and set(parts[1::2]) <= {"7"}
    return tuple(parts[::2]) if kept else None


def _redacted(report: str) -> str:
    return BodyRedactor().feed(_WRAP + report.encode() + b"}")[len(_WRAP) : -1].decode()
