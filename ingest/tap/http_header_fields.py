"""Read the header fields of HTTP/1.x heads, one line at a time.

The rules: a line is a token, a colon, and a value without control bytes (RFC 9112 §5); anything else is malformed. What a
line says depends on nothing but the line, and clients and servers send the same few lines over and over, so what was read
is remembered: in a bounded table, which is emptied when it is full. Only fields that may be recorded (`allow_list`) or
that frame the message are remembered: no credential stays in it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from ingest.tap import header_allow_list as allow_list
from ingest.tap.client_identity import API_KEY_FIELDS

TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_LINE = re.compile(rb"(" + TOKEN + rb"+):([\t\x20-\x7e\x80-\xff]*)")
_MAX_LINES = 2048
_MAX_LINE_BYTES = 256
OWN_PREFIX = b"x-streamgauge-"
"""Requests may carry fields for the tap itself; they do not go upstream."""


class Field(NamedTuple):
    """One header field."""

    name: bytes
    """In lower case."""
    line: bytes
    """As sent (but see `FieldTable`), with its CRLF."""
    value: bytes
    """Without the blanks around it."""
    special: bool
    """The tap looks at it, or it does not simply go on."""
    recorded: tuple[str, str] | None
    """What of it may be recorded."""


class MalformedField(Exception):
    """A line that is no header field."""


class FieldTable(dict[bytes, Field]):
    """The fields that were read, by their lines (without CRLF): `table[line]` reads a line that it does not know yet.
    Those named in `anew` are written anew: blanks around what says where a message ends, which servers strip each in their
    own way, must not decide what it says.

    Raises `MalformedField`.
    """

    def __init__(
        self,
        special: frozenset[bytes],
        recorded: Callable[[bytes, bytes], tuple[str, str] | None],
        anew: frozenset[bytes] = frozenset(),
    ) -> None:
        self._special = special
        self._recorded = recorded
        self._anew = anew

    def __missing__(self, line: bytes) -> Field:
        found = _LINE.fullmatch(line)
        if found is None:
            raise MalformedField
        name, value = found[1].lower(), found[2].strip(b" \t")
        special = name in self._special
        recorded = self._recorded(name, value)
        whole = (line[: len(name)] + b": " + value if name in self._anew else line) + b"\r\n"
        field = Field(name, whole, value, special or name.startswith(OWN_PREFIX), recorded)
        if len(line) <= _MAX_LINE_BYTES and (recorded is not None or name in _FRAMING):
            if len(self) >= _MAX_LINES:
                self.clear()
            self[line] = field
        return field


_FRAMING = frozenset(b"host connection content-length transfer-encoding keep-alive te upgrade".split())
REQUEST_FIELDS = FieldTable(
    frozenset(
        b"""
        host content-length content-type transfer-encoding connection upgrade te expect via forwarded traceparent
        keep-alive proxy-connection proxy-authorization http2-settings
        x-forwarded-for x-forwarded-proto x-forwarded-host
        """.split()
    ).union(API_KEY_FIELDS),
    allow_list.request_field,
    anew=frozenset({b"content-length", b"transfer-encoding"}),
)
RESPONSE_FIELDS = FieldTable(
    frozenset(
        b"""
        connection keep-alive proxy-connection upgrade content-length transfer-encoding trailer content-type
        """.split()
    ),
    allow_list.response_field,
)
