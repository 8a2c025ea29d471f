"""The same redaction rules for decoded values that are about to be stored."""

from __future__ import annotations

import re
from functools import lru_cache

from ingest.redaction.body_redactor import BodyRedactor

_WRAP = b'{"usage":'
_NUMBER = re.compile(r"(?<=[:,\[])(-?\d[\d.eE+-]*)(?=[,\]}])")
_PLAIN = re.compile(r'(?:[{},]|"[A-Za-z0-9_.$@-]{0,64}":|-?\d[\d.eE+-]*+|null|true|false)*+')
_TITLE = re.compile(r"[A-Za-z0-9_.:/@+=~%#() -]{0,64}")


def numbers_only(report: str) -> str:
    """Redact a report of counts and times, given as compact JSON: numbers, keys and known words stay.

    Streams may report with each event, with the same words and other numbers. So the result for the words is cached.
    """
    if _PLAIN.fullmatch(report) is not None:
        return report
    parts = _NUMBER.split(report)  # words and numbers alternate
    words = _words(tuple(parts[::2]))
    if words is None:
        return _redacted(report)
    parts[::2] = words
    return "".join(parts)


def title(text: str) -> str:
    """Redact the type of an error: a few words stay, the rest becomes filler."""
    found = _TITLE.match(text)
    stays = found.end() if found is not None else 0
    return text[:stays] + "x" * (len(text) - stays)


@lru_cache(maxsize=1024)
def _words(words: tuple[str, ...]) -> tuple[str, ...] | None:
    """The redacted words around the numbers. None when a number does not stay or a text looks like a number."""
    made = _NUMBER.split(_redacted("7".join(words)))
    stays = [len(word) for word in made[::2]] == [len(word) for word in words] and set(made[1::2]) <= {"7"}
    return tuple(made[::2]) if stays else None


def _redacted(report: str) -> str:
    return BodyRedactor().feed(_WRAP + report.encode() + b"}")[len(_WRAP) : -1].decode()
