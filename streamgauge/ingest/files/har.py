"""Read the entries of a HAR file (HTTP Archive 1.2) of Chrome, Firefox, Safari, Playwright, mitmproxy and others.

- Each exchange over the network is read, as packets would show it. What a browser took from its cache, and tunnels to a proxy, are none.
- The file is read in pieces, and one entry at a time is in memory. Memory is bounded by `MAX_ENTRY_BYTES`.
- Any member may be missing or have another type. What cannot be read of an entry is a ValueError with the reason.
- A HAR has no times of events, only those of the exchange. Exceptions are the members `_eventSourceMessages` and `_webSocketMessages` of
  some tools.
- Bodies in a HAR are decoded: the content coding in the headers is not that of the text. Tools that cannot decode a body save it as it
  was, in base64. Its bytes decide.
"""

# Read here and not by a library: ijson keeps the path of each open bracket, which takes 1 GB for 20,000 brackets, and a string of any
# length. It cannot skip an entry that is too large.

from __future__ import annotations

import base64
import json
import re
from codecs import BOM_UTF8, getincrementaldecoder
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, Protocol, TypeVar
from urllib.parse import urlsplit

from wsproto.frame_protocol import FrameProtocol

from streamgauge.ingest.files.exchange_log import Exchange
from streamgauge.ingest.recording.body_capture import LOOK_BYTES, body_kind
from streamgauge.ingest.records import Cause, Times, coding_of

MAX_ENTRY_BYTES, MAX_ENTRY_PARTS = 64 * 2**20, 1_000_000
"""An entry with more bytes, or more objects and lists, is not read: an empty list takes 20 times its bytes."""
_PIECE_BYTES = 2**18
_TEXT = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""The rest of a text, up to its end or that of the buffer."""
_VALUES = re.compile(rb'[^"{}\[\]]*+(?:"[^"\\]*+(?:\\.[^"\\]*+)*+"[^"{}\[\]]*+)*+', re.DOTALL)
"""Everything without brackets, up to a text that does not end in the buffer."""
_ENTRIES = re.compile(rb'(?<!\\)"entries"\s*:\s*\Z')
_ENTRIES_BYTES = 64
"""Where it is searched, before a bracket."""
_LIST_DEPTH = 3  # {"log": {"entries": [
_BETWEEN = re.compile(r"[\s,]*")
_decode = json.JSONDecoder(strict=False).raw_decode
_STREAMS = (
    "text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl", "application/stream+json",
    "application/vnd.amazon.eventstream",
)  # fmt: skip
_SCHEMES = ("", "http", "https", "ws", "wss")
_CACHES = ("memory", "disk", " cache")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NS = 10**15
_MAX_WALL_NS = 2**61
_WINDOWS_1252 = {
    ord(bytes([byte]).decode("cp1252", "ignore") or chr(byte)): byte for byte in range(0x80, 0xA0)
}
"""Chromium and mitmproxy read event streams as Windows-1252, although they are always UTF-8. Text that can be either was UTF-8."""
_CAUSES: dict[str, Cause] = {
    "ABORTED": "client_left",
    "CONNECTION_REFUSED|NAME_NOT_RESOLVED|ADDRESS_UNREACHABLE|TIMED_OUT|CERT|SSL": "connect_error",
    "CONNECTION_RESET|CONNECTION_CLOSED|EMPTY_RESPONSE|INCOMPLETE_CHUNKED|CONTENT_LENGTH|HTTP2|QUIC|": "upstream_reset",
}
"""Parts of the names of errors, such as `net::ERR_CONNECTION_REFUSED`, the last one empty. → The cause of the end."""
T = TypeVar("T", dict[str, Any], list[Any], str, int)


class NotHar(ValueError):
    """The file has no entries."""


class Damaged(ValueError):
    """The rest of the file cannot be read."""


class Source(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def exchanges(source: Source, saved_wall_ns: int) -> Iterator[Exchange | ValueError | None]:
    """The exchange of each entry. None: it was none over the network. An error: why it cannot be read.

    `saved_wall_ns`: the start of an exchange without a time. Raises NotHar, and Damaged after the last entry that is whole.
    """
    for text in _entries(source):
        if isinstance(text, ValueError):
            yield text
            continue
        at, size = 0, len(text)
        while (at := _BETWEEN.match(text, at).end()) < size:  # type: ignore[union-attr]  # matches anywhere
            try:
                entry, at = _decode(text, at)
            except (ValueError, RecursionError) as e:
                yield ValueError(f"it is no JSON: {e}")
                break
            try:
                yield _exchange_of(entry, saved_wall_ns)
            except ValueError as e:
                yield e


def _entries(source: Source) -> Iterator[str | ValueError]:
    """Each entry as JSON, with what is before it."""
    buffer = bytearray((source.read(_PIECE_BYTES) or b"").removeprefix(BOM_UTF8).lstrip())
    at = start = depth = parts = 0
    in_text = in_list = skips = False
    if not buffer.startswith(b"{"):
        raise NotHar
    while True:
        while True:
            at = (_TEXT if in_text else _VALUES).match(buffer, at).end()  # type: ignore[union-attr]  # matches anywhere
            byte = buffer[at : at + 1]
            if byte == b'"':
                in_text = not in_text
            elif not byte or byte == b"\\":  # the end of the buffer
                break
            elif byte in b"{[":
                depth, parts = depth + 1, parts + 1
                if depth == _LIST_DEPTH and not in_list and byte == b"[":
                    in_list = _ENTRIES.search(buffer[max(0, at - _ENTRIES_BYTES) : at]) is not None
                    start, parts = at + 1, 0
            else:
                depth -= 1
                if in_list and depth <= _LIST_DEPTH:
                    if not skips:
                        yield str(memoryview(buffer)[start : at + (depth == _LIST_DEPTH)], "utf-8", "replace")
                    start, parts, skips = at + 1, 0, False
                    if depth < _LIST_DEPTH:
                        return
            at += 1
        if in_list and not skips and (at - start > MAX_ENTRY_BYTES or parts > MAX_ENTRY_PARTS):
            yield ValueError(
                f"it has more than {MAX_ENTRY_BYTES >> 20} MiB, or {MAX_ENTRY_PARTS:,} objects and lists"
            )
            skips = True
        if skips or not in_list:
            start = max(0, at - _ENTRIES_BYTES)
        del buffer[:start]
        at, start = at - start, 0
        if not (data := source.read(_PIECE_BYTES)):
            break
        buffer += data
    if not in_list:
        raise NotHar
    raise Damaged("it ends within " + ("an entry" if depth > _LIST_DEPTH else "its list of entries"))


def _exchange_of(entry: Any, saved_wall_ns: int) -> Exchange | None:
    request, response = _get(entry, "request", dict), _get(entry, "response", dict)
    url, method = _get(request, "url", str), _get(request, "method", str).upper()
    if not url or urlsplit(url).port == 0:  # another invalid port raises ValueError
        raise ValueError("it has no URL")
    events, messages = (_get(entry, name, list) for name in ("_eventSourceMessages", "_webSocketMessages"))
    scheme = urlsplit(url).scheme
    is_websocket = bool(messages) or scheme in ("ws", "wss")
    from_cache = _get(entry, "_fromCache", str) or _get(response, "_fetchType", str)
    is_tunnel = method == "CONNECT" and not is_websocket
    if scheme not in _SCHEMES or is_tunnel or from_cache.lower().endswith(_CACHES):
        return None
    if is_websocket:
        method, url = "GET", "http" + url[2:] if scheme.startswith("ws") else url
    content, posted = _get(response, "content", dict), _get(request, "postData", dict)
    request_headers, request_kind = _headers(request, posted)
    response_headers, kind = _headers(response, content)
    number, (cause, detail) = _get(response, "status", int), _failure(entry, response)
    status = 101 if messages else number if 100 <= number <= 999 else None
    request_body = _encoded(posted)
    body = b"" if events or is_websocket or status is None else _encoded(content)
    sent, answered = (body_kind(one[:LOOK_BYTES], len(one) > LOOK_BYTES) for one in (request_body, body))
    has_json = any(name.endswith(("/json", "+json")) for name in (request_kind, kind)) or "json" in (
        sent,
        answered,
    )
    may_stream = (
        bool(events) or kind in _STREAMS or answered in ("sse", "lines") or (method == "POST" and has_json)
    )
    if status is None and cause == "complete":
        if not may_stream:
            return None  # it was blocked
        raise ValueError("it has no response and no error")
    connected_ns, sent_ns, headers_ns, end_ns = _elapsed_ns(entry)
    wall_ns = _wall_ns(_get(entry, "startedDateTime", str)) or saved_wall_ns
    times: Times = "reads" if events or messages else "exchange"
    reads, frames = _timed_reads(events, wall_ns, headers_ns), _frames(messages, wall_ns, headers_ns)
    if body:
        reads = [(end_ns, body)]
    if may_stream and not events and cause == "complete":
        _check_size(content, body, status)
    end_ns = max(end_ns, reads[-1][0] if reads else 0, frames[-1][0] if frames else 0)
    if is_websocket:  # its messages are not compressed, and over HTTP/2 it has no such header
        response_headers = [(n, v) for n, v in response_headers if n.lower() != "sec-websocket-extensions"]
        request_headers = [
            ("upgrade", "websocket"),
            *((n, v) for n, v in request_headers if n.lower() != "upgrade"),
        ]
    return Exchange(
        method=method, url=url, request_headers=_with_coding_of(request_body, request_headers),
        request_body=request_body, request_bytes=_get(request, "bodySize", int), started_wall_ns=wall_ns,
        connected_ns=None if status is None else connected_ns, request_sent_ns=None if status is None else sent_ns, status=status,
        response_headers=_with_coding_of(body, response_headers), headers_ns=headers_ns, reads=reads, frames=frames,
        response_bytes=0 if may_stream or is_websocket else _get(content, "size", int), end_ns=end_ns,
        cause=cause, detail=detail, times=times,
    )  # fmt: skip


def _elapsed_ns(entry: Any) -> tuple[int | None, int | None, int, int]:
    """Until the connection was open, the request sent, the head of the response there, and its end."""
    timings = _get(entry, "timings", dict)
    if not timings:
        end_ns = _duration_ns(entry, "time")
        return None, None, end_ns, end_ns
    connected_ns, sent_ns, headers_ns, end_ns = accumulate(
        sum(_duration_ns(timings, name) for name in names)
        for names in (("blocked", "dns", "connect"), ("send",), ("wait",), ("receive",))
    )
    return connected_ns, sent_ns, headers_ns, end_ns


def _check_size(content: dict[str, Any], body: bytes, status: int | None) -> None:
    """Raises ValueError if the file does not have the whole body of a response."""
    size = _get(content, "size", int) if "size" in content else -1  # which is unknown
    # mitmproxy has the compressed size, which is larger for a small body.
    is_cut = size > len(body) + 1024 if body else size > 0 or (size < 0 and "text" not in content)
    if is_cut and status is not None and status < 400 and status not in (204, 304):
        part = "only a part of the body" if body else "no body"
        raise ValueError(f"the file has {part} of its response. Save the HAR with content, without a limit")


def _with_coding_of(body: bytes, headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The headers with the content coding that the bytes have."""
    sent = next((value for name, value in headers if name.lower() == "content-encoding"), "")
    last, found = sent.rpartition(",")[2].strip().lower(), coding_of(body)
    if found is None and last in ("br", "deflate") and not _is_text(body):  # which have no sign in the bytes
        found = last
    coding = [("content-encoding", sent if found == last else found)] if found is not None else []
    return [(name, value) for name, value in headers if name.lower() != "content-encoding"] + coding


def _is_text(body: bytes) -> bool:
    try:
        getincrementaldecoder("utf-8")().decode(body)
    except UnicodeDecodeError:
        return False
    return True


def _encoded(content: dict[str, Any]) -> bytes:
    text = _get(content, "text", str)
    if _get(content, "encoding", str).lower() != "base64":
        if text.isascii():
            return text.encode()
        try:
            body = text.translate(_WINDOWS_1252).encode("latin-1")
            body.decode()
        except UnicodeError:
            return text.encode("utf-8", "replace")
        return body
    try:
        return base64.b64decode("".join(text.split()).encode("ascii", "replace"), validate=True)
    except ValueError:
        raise ValueError("its body is not valid base64") from None


def _timed_reads(messages: list[Any], wall_ns: int, least_ns: int) -> list[tuple[int, bytes]]:
    """The events with their times, which are Unix times in s."""
    reads: list[tuple[int, bytes]] = []
    for message in messages:
        least_ns = _message_ns(message, wall_ns, least_ns)
        name = _get(message, "eventName", str)
        lines = [f"event: {name}"] if name not in ("", "message") else []
        lines += [f"data: {line}" for line in _get(message, "data", str).split("\n")]
        reads.append((least_ns, ("\n".join(lines) + "\n\n").encode("utf-8", "replace")))
    return reads


def _frames(messages: list[Any], wall_ns: int, least_ns: int) -> list[tuple[int, bytes, bool]]:
    """The messages of a WebSocket as frames, with their times and whether the client sent them."""
    frames: list[tuple[int, bytes, bool]] = []
    sides = {kind: FrameProtocol(client=kind == "send", extensions=[]) for kind in ("send", "receive")}
    for message in messages:
        kind, opcode = _get(message, "type", str), _get(message, "opcode", int)
        if kind not in sides or opcode not in (1, 2):  # an error, or a control frame
            continue
        least_ns = _message_ns(message, wall_ns, least_ns)
        encoding = "base64" if opcode == 2 else ""
        data = _encoded({"text": _get(message, "data", str), "encoding": encoding})
        frames.append((least_ns, bytes(sides[kind].send_data(data, fin=True)), kind == "send"))
    return frames


def _message_ns(message: Any, wall_ns: int, least_ns: int) -> int:
    at_ns = _duration_ns(message, "time", 1e9, _MAX_WALL_NS)
    if not at_ns:
        raise ValueError("an event or message has no time")
    return max(least_ns, min(at_ns - wall_ns, _MAX_NS))


def _failure(entry: Any, response: dict[str, Any]) -> tuple[Cause, str | None]:
    error = _get(response, "_error", str) or _get(response, "_failureText", str) or _get(entry, "_error", str)
    if not error:
        return "complete", None
    part = next(part for parts in _CAUSES for part in parts.split("|") if part in error.upper())
    return next(cause for parts, cause in _CAUSES.items() if part in parts.split("|")), part or None


def _headers(message: dict[str, Any], content: dict[str, Any]) -> tuple[list[tuple[str, str]], str]:
    """The headers, with the content type at least of the content, and the media type."""
    found = [
        (_get(field, "name", str), _get(field, "value", str)) for field in _get(message, "headers", list)
    ]
    kind = next((value for name, value in found if name.lower() == "content-type"), "")
    if not kind and (kind := _get(content, "mimeType", str)):
        found.append(("content-type", kind))
    return found, kind.partition(";")[0].strip().lower()


def _wall_ns(text: str) -> int | None:
    try:
        at = datetime.fromisoformat(text)
        wall_ns = ((at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH) // timedelta(microseconds=1) * 1000
    except (ValueError, OverflowError):
        return None
    return wall_ns if 0 < wall_ns < _MAX_WALL_NS else None


def _duration_ns(found: Any, name: str, unit_ns: float = 1e6, most_ns: int = _MAX_NS) -> int:
    """A time in ms as ns. 0 if it is unknown, for which a HAR has -1."""
    value = found.get(name) if isinstance(found, dict) else None
    return int(value * unit_ns) if isinstance(value, (int, float)) and 0 <= value <= most_ns / unit_ns else 0


def _get(found: Any, name: str, kind: type[T]) -> T:
    """A member, or an empty value if it is missing or of another type."""
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, kind) else kind()
