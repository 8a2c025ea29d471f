"""Parse HTTP/1.x header fields, one line at a time.

A line is a token, a colon and a value without control bytes (RFC 9112 §5); anything else is malformed. Clients and servers send
the same few lines repeatedly, so parsed lines are cached, in a bounded table that is cleared when it is full. Only fields that
may be recorded (`header_allow_list`) or that frame the message are cached: the cache holds no credential.
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
"""Prefix of the fields for the tap itself, which are not forwarded."""


class Field(NamedTuple):
    """One header field."""

    name: bytes  # in lower case
    line: bytes  # as received, with its CRLF (`FieldTable` normalizes some fields)
    value: bytes  # without surrounding whitespace
    special: bool  # the tap interprets the field, replaces it or does not forward it
    recorded: tuple[str, str] | None  # name and value to record, None if the field may not be recorded


class MalformedField(Exception):
    """The line is not a header field."""


class FieldTable(dict[bytes, Field]):
    """Parsed fields by line (without CRLF). `table[line]` parses an unknown line. Raises `MalformedField`.

    `normalized` names fields that are forwarded without whitespace around the value. They determine where a message ends, and
    servers differ in the whitespace that they strip.
    """

    def __init__(
        self,
        special: frozenset[bytes],
        recorded: Callable[[bytes, bytes], tuple[str, str] | None],
        normalized: frozenset[bytes] = frozenset(),
    ) -> None:
        self._special = special
        self._recorded = recorded
        self._normalized = normalized

    def __missing__(self, line: bytes) -> Field:
        match = _LINE.fullmatch(line)
        if match is None:
            raise MalformedField
        name, value = match[1].lower(), match[2].strip(b" \t")
        special = name in self._special
        recorded = self._recorded(name, value)
        forwarded = (line[: len(name)] + b": " + value if name in self._normalized else line) + b"\r\n"
        field = Field(name, forwarded, value, special or name.startswith(OWN_PREFIX), recorded)
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
    normalized=frozenset({b"content-length", b"transfer-encoding"}),
)
RESPONSE_FIELDS = FieldTable(
    frozenset(
        b"""
        connection keep-alive proxy-connection upgrade content-length transfer-encoding trailer content-type
        """.split()
    ),
    allow_list.response_field,
)
