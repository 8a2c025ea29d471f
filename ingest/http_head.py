"""Read the heads of HTTP/1.x messages. No I/O, no clock.

The rules: a request is read strictly, because what two readers understand differently is how requests are smuggled:
lines end in CRLF and nothing else, no folding, no control bytes, no space before a colon, one Host, at most one length
and never beside a transfer coding (RFC 9112 §3, §5, §6, §11.2). What breaks a rule raises `Refused`, which carries the
status that the client is told. An upstream's head is read by the same grammar, and where it is not HTTP raises
`BadUpstream`. Order and case of the fields are kept: heads are rewritten in `headers`, and only there.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

_TOKEN = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]"
_REQUEST_LINE = re.compile(rb"(" + _TOKEN + rb"{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])\r\n")
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: ([\t\x20-\x7e\x80-\xff]*))?\r\n")
_FIELD = re.compile(rb"((" + _TOKEN + rb"+):([\t\x20-\x7e\x80-\xff]*)\r\n)")
_LENGTH = re.compile(rb"[0-9]{1,18}")
_BARE_LF_OR_NUL = re.compile(rb"(?<!\r)\n|\0")
_OTHER_VERSION = re.compile(rb"[^\r\n]* HTTP/[0-9.]+\r\n")

Fields = list[tuple[bytes, bytes, bytes]]
"""(name in lower case, the whole line as sent with its CRLF, value without surrounding blanks), in order."""


class Refused(Exception):
    """A request that the tap does not pass on; the connection is closed after the answer."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class BadUpstream(Exception):
    """The upstream's answer was not HTTP; the message says how, in words of the tap's own."""


class Body(Enum):
    """How a message says where its body ends."""

    NONE = "none"
    LENGTH = "length"
    CHUNKED = "chunked"
    CLOSE = "close"


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """Bounds of a request's head, in bytes (and fields)."""

    head_bytes: int = 65_536
    target_bytes: int = 16_384
    fields: int = 256


@dataclass(slots=True)
class RequestHead:
    """A request's head. `target` is in origin form ("/a?b") or "*"."""

    method: str
    target: str
    minor: int
    fields: Fields
    body: Body
    length: int
    keep_alive: bool
    """What the client asks: the connection may serve another request."""
    host: bytes
    """The Host that the client meant (an absolute target's authority wins)."""
    upgrade: bytes | None
    connection: frozenset[bytes]
    """Options of the Connection header, in lower case: the names of further hop-by-hop fields."""
    known: dict[bytes, bytes]
    """The first value of each field that the tap looks at (`_READ_OF_REQUESTS`), and of its own `x-streamgauge-*`."""


@dataclass(slots=True)
class ResponseHead:
    """A response's head."""

    minor: int
    status: int
    reason: bytes
    fields: Fields
    connection: frozenset[bytes]
    transfer_coding: bytes
    lengths: list[bytes]

    @property
    def keep_alive(self) -> bool:
        """The upstream may be asked again on this connection."""
        return self.minor == 1 and b"close" not in self.connection


_NO_OPTIONS: frozenset[bytes] = frozenset()
_READ_OF_REQUESTS = frozenset(
    b"""
    host content-length content-type transfer-encoding connection upgrade traceparent authorization
    x-api-key api-key x-goog-api-key
    """.split()
)
OWN_PREFIX = b"x-streamgauge-"
"""Requests may carry fields for the tap itself; they do not go upstream."""


def _fields(head: bytes, start: int) -> Fields | None:
    """The fields of a head from `start` to its blank line, or None when anything in between is not a field."""
    size = start + 2
    fields: Fields = []
    for line, name, value in _FIELD.findall(head, start):
        size += len(line)
        fields.append((name.lower(), line, value.strip(b" \t")))
    return fields if size == len(head) else None


def _options(value: bytes) -> frozenset[bytes]:
    return frozenset(option.strip(b" \t").lower() for option in value.split(b","))


def refuse_unfinished_head(head: bytes, limits: HeadLimits) -> None:
    """Raise `Refused` when a head that has not ended yet can no longer become good."""
    if _BARE_LF_OR_NUL.search(head):
        raise Refused(400, "a bare LF or a NUL in the head")
    if len(head) > limits.target_bytes and b"\r\n" not in head[: limits.target_bytes + 64]:
        raise Refused(414, "the request target is too long")
    if len(head) > limits.head_bytes:
        raise Refused(431, "the request's head is too large")


def read_request_head(head: bytes, limits: HeadLimits) -> RequestHead:
    """Read a request's head, from its first byte to the blank line inclusive. Raises `Refused`."""
    if len(head) > limits.head_bytes:
        raise Refused(431, "the request's head is too large")
    line = _REQUEST_LINE.match(head)
    if line is None:
        if _OTHER_VERSION.match(head):
            raise Refused(400, "only HTTP/1.0 and HTTP/1.1 are spoken here")
        raise Refused(400, "the request line is malformed")
    method = line[1].decode()
    raw_target = line[2]
    if len(raw_target) > limits.target_bytes:
        raise Refused(414, "the request target is too long")
    minor = 1 if line[3] == b"1" else 0
    fields = _fields(head, line.end())
    if fields is None:
        raise Refused(400, "a header field is malformed")
    if len(fields) > limits.fields:
        raise Refused(431, "too many header fields")

    hosts = lengths = codings = 0
    connection = _NO_OPTIONS
    known: dict[bytes, bytes] = {}
    for name, _, value in fields:
        if name in _READ_OF_REQUESTS or name.startswith(OWN_PREFIX):
            if name not in known:
                known[name] = value
            if name == b"host":
                hosts += 1
            elif name == b"content-length":
                lengths += 1
            elif name == b"transfer-encoding":
                codings += 1
            elif name == b"connection":
                connection |= _options(value)
    if codings > 1:
        raise Refused(400, "more than one Transfer-Encoding")
    if hosts > 1 or (hosts == 0 and minor == 1):
        raise Refused(400, "exactly one Host header is required")
    body, body_length = _request_body(
        minor, known.get(b"transfer-encoding"), lengths, known.get(b"content-length", b"")
    )
    upgrade = known.get(b"upgrade")
    target, authority = _origin_form(method, raw_target)
    return RequestHead(
        method=method,
        target=target,
        minor=minor,
        fields=fields,
        body=body,
        length=body_length,
        keep_alive=(b"close" not in connection) if minor else (b"keep-alive" in connection),
        host=authority or known.get(b"host", b""),
        upgrade=upgrade if upgrade and b"upgrade" in connection and minor == 1 else None,
        connection=connection,
        known=known,
    )


def _request_body(minor: int, coding: bytes | None, lengths: int, length: bytes) -> tuple[Body, int]:
    if coding is not None:
        if lengths:
            raise Refused(400, "both Content-Length and Transfer-Encoding")
        if minor == 0:
            raise Refused(400, "Transfer-Encoding in HTTP/1.0")
        if coding.lower() != b"chunked":
            raise Refused(400, "the only transfer coding taken is chunked")
        return Body.CHUNKED, 0
    if not lengths:
        return Body.NONE, 0
    if lengths > 1:
        raise Refused(400, "more than one Content-Length")
    if not _LENGTH.fullmatch(length):
        raise Refused(400, "a malformed Content-Length")
    size = int(length)
    return (Body.LENGTH, size) if size else (Body.NONE, 0)


def _origin_form(method: str, target: bytes) -> tuple[str, bytes]:
    """The target as a path, and the authority when it came in absolute form."""
    if method == "CONNECT":
        raise Refused(400, "CONNECT is refused: this is no open proxy")
    if target[:1] == b"/":
        return target.decode(), b""
    if target == b"*" and method == "OPTIONS":
        return "*", b""
    scheme, sep, rest = target.partition(b"://")
    if not sep or scheme.lower() not in (b"http", b"https"):
        raise Refused(400, "the request target is neither a path nor an http URL")
    cut = min((i for i in (rest.find(b"/"), rest.find(b"?")) if i >= 0), default=len(rest))
    authority, path = rest[:cut], rest[cut:]
    if not authority or b"@" in authority:
        raise Refused(400, "the request target's host is malformed")
    return (path if path[:1] == b"/" else b"/" + path).decode(), authority


def read_response_head(head: bytes) -> ResponseHead:
    """Read a response's head, from its first byte to the blank line inclusive. Raises `BadUpstream`."""
    line = _STATUS_LINE.match(head)
    if line is None:
        raise BadUpstream("the status line is malformed")
    fields = _fields(head, line.end())
    if fields is None:
        raise BadUpstream("a header field is malformed")
    connection = _NO_OPTIONS
    coding = b""
    lengths: list[bytes] = []
    for name, _, value in fields:
        if name == b"content-length":
            lengths.append(value)
        elif name == b"transfer-encoding":
            coding = coding + b"," + value if coding else value
        elif name == b"connection":
            connection |= _options(value)
    return ResponseHead(
        minor=1 if line[1] == b"1" else 0,
        status=int(line[2]),
        reason=line[3] or b"",
        fields=fields,
        connection=connection,
        transfer_coding=coding.lower(),
        lengths=lengths,
    )


def response_body(head: ResponseHead, method: str) -> tuple[Body, int]:
    """How the body of this response is delimited, and its length (RFC 9112 §6.3). Raises `BadUpstream`."""
    if method == "HEAD" or head.status in (204, 304) or head.status < 200:
        return Body.NONE, 0
    if head.transfer_coding:
        codings = [c.strip(b" \t") for c in head.transfer_coding.split(b",")]
        if b"chunked" in codings[:-1]:
            raise BadUpstream("chunked is not the last transfer coding, or applied twice")
        return (Body.CHUNKED, 0) if codings[-1] == b"chunked" else (Body.CLOSE, 0)
    if not head.lengths:
        return Body.CLOSE, 0
    if len(set(head.lengths)) > 1:
        raise BadUpstream("Content-Lengths that differ")
    if not _LENGTH.fullmatch(head.lengths[0]):
        raise BadUpstream("a malformed Content-Length")
    size = int(head.lengths[0])
    return (Body.LENGTH, size) if size else (Body.NONE, 0)
