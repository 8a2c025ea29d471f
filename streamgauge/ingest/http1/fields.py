"""Parse HTTP/1.x header fields, one line at a time.

A line is a token, a colon and a value without control bytes (RFC 9112 §5); anything else is malformed. Clients and servers send
the same few lines repeatedly, so parsed lines are cached, in a bounded table that is cleared when it is full. Only fields that
may be recorded (`streamgauge.ingest.header_fields`) and some that never hold a credential are cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from streamgauge.ingest.facts import FieldFacts
from streamgauge.ingest.http1.client_identity import API_KEY_FIELDS

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_LINE = re.compile(rb"(" + TOKEN + rb"+):([\t\x20-\x7e\x80-\xff]*)")
_MAX_LINES = 2048
_MAX_LINE_BYTES = 256
OWN_PREFIX = b"x-streamgauge-"
"""Prefix of the fields for the tap itself, which are not forwarded."""
UPSTREAM = b"x-streamgauge-upstream"
"""Name of the upstream for a request (`routing`)."""


class Field(FieldFacts):
    """One header field. Its value has no surrounding whitespace."""

    __slots__ = ("line", "special")
    line: bytes  # as received, with its CRLF (`FieldTable` normalizes some fields)
    special: int  # not 0: the tap interprets the field, replaces it or does not forward it; see `FieldTable`


FRAMING_NAMES = (b"content-length", b"transfer-encoding")
_FRAMING_LENGTHS = frozenset(map(len, FRAMING_NAMES))
_SEPARATOR = re.compile(rb"[^0-9a-z]")


def normalized_name(name: bytes) -> bytes:
    """A name as back ends may read it: CGI, WSGI and similar interfaces turn `-` and other separators into `_`, so
    `content_length` becomes equal to `content-length`."""
    return _SEPARATOR.sub(b"-", name.lower())


def reads_as_framing(name: bytes) -> bool:
    """Whether a back end may read this name as that of a framing field."""
    return len(name) in _FRAMING_LENGTHS and normalized_name(name) in FRAMING_NAMES


class FieldTable:
    """Parses the field lines of requests or of responses, and keeps the usual ones.

    `malformed` makes the exception for a line that is not a header field, or whose name resembles a framing field, from the reason.
    `special`: names of special fields. `Field.special` is their position, from 1 on, or -1 for the tap's own fields.
    `strict`, for requests: names that resemble framing fields are malformed, and framing fields are forwarded without
    whitespace around the value, because servers differ in the whitespace that they strip.
    """

    def __init__(
        self,
        special: Iterable[bytes],
        recorded: Callable[[bytes, bytes], tuple[str, str] | None],
        malformed: Callable[[str], Exception],
        *,
        strict: bool = False,
    ) -> None:
        self.cached: dict[bytes, Field] = {}  # by line
        self._special = {name: position for position, name in enumerate(special, 1)}
        self._recorded = recorded
        self._malformed = malformed
        self._strict = strict

    def read(self, lines: list[bytes]) -> list[Field]:
        """The fields of a head's lines without CRLF, after its first line."""
        cached = self.cached
        return [cached.get(line) or self._parse(line) for line in lines[1:]]

    def _parse(self, line: bytes) -> Field:
        match = _LINE.fullmatch(line)
        if match is None:
            raise self._malformed("a header field is malformed")
        name, value = match[1], match[2]
        field = Field.__new__(Field)
        field.name = name = name.lower()
        field.value = value = value.strip(b" \t")
        framing = name in FRAMING_NAMES
        if self._strict and not framing and reads_as_framing(name):
            raise self._malformed("a header field resembles Content-Length or Transfer-Encoding")
        field.special = -1 if name.startswith(OWN_PREFIX) else self._special.get(name, 0)
        field.recorded = self._recorded(name, value)
        field.line = (line[: len(name)] + b": " + value if framing and self._strict else line) + b"\r\n"
        if len(line) <= _MAX_LINE_BYTES and (field.recorded is not None or name in _CACHED):
            if len(self.cached) >= _MAX_LINES:
                self.cached.clear()
            self.cached[line] = field
        return field


_CACHED = frozenset(
    b"""
    host connection content-length transfer-encoding keep-alive te upgrade
    accept accept-encoding accept-language cache-control date pragma server vary
    """.split()
)
SPECIAL_IN_REQUESTS = (
    *b"""
    host content-length content-type transfer-encoding connection upgrade te expect traceparent
    keep-alive proxy-connection proxy-authorization http2-settings
    x-forwarded-for x-forwarded-proto x-forwarded-host
    """.split(),
    *API_KEY_FIELDS,
)
SPECIAL_IN_RESPONSES = tuple(
    b"connection keep-alive proxy-connection upgrade content-length transfer-encoding trailer content-type".split()
)
