"""The same rules for values that were read already and are about to be stored."""

from __future__ import annotations

import re

from ingest.redaction.body import BodyRedactor

_WRAP = b'{"usage":'
_STRING = re.compile(r'[:\[]"')
_TITLE = re.compile(r"[A-Za-z0-9_.:/@+=~%#() -]{0,64}")


def numbers_only(report: str) -> str:
    """A report of counts and times, as compact JSON: its numbers, its keys, and the words that are known."""
    if _STRING.search(report) is None:
        return report
    return BodyRedactor().feed(_WRAP + report.encode() + b"}")[len(_WRAP) : -1].decode()


def title(text: str) -> str:
    """What an error calls its kind: a few words; the rest is filler."""
    found = _TITLE.match(text)
    stays = found.end() if found is not None else 0
    return text[:stays] + "x" * (len(text) - stays)
