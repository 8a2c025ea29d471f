"""Read the entries of a HAR file (HTTP Archive 1.2) of Chrome, Firefox, Safari, Playwright, mitmproxy and others.

- Only requests that may be to a model are read: event streams and other streams of lines, and each POST with JSON in its request
  or response.
- Any member may be missing or have another type. No text raises an exception: what cannot be read is a ValueError with the reason.
- A HAR has no times of events, only those of the exchange. An exception is the member `_eventSourceMessages` of some tools.
- Bodies in a HAR are decoded: the content coding in the headers is not that of the text.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import accumulate
from typing import Any, TypeVar
from urllib.parse import urlsplit

from streamgauge.ingest.files.exchange_log import Exchange
from streamgauge.ingest.records import Cause, Times, coding_of

_ENTRIES = re.compile(r'(?<!\\)"entries"\s*:\s*\[')
_BETWEEN = re.compile(r"[\s,]*")
_decode = json.JSONDecoder().raw_decode
_STREAMS = (
    "text/event-stream", "application/x-ndjson", "application/ndjson", "application/jsonl", "application/stream+json",
    "application/vnd.amazon.eventstream",
)  # fmt: skip
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


def is_har(text: str) -> bool:
    """Whether the text has the member `entries`."""
    return text.lstrip().startswith("{") and _ENTRIES.search(text) is not None


def exchanges(text: str, saved_wall_ns: int) -> Iterator[tuple[int, Exchange | ValueError | None]]:
    """The end of each entry in the text, and its exchange. None: no request to a model. An error: why it cannot be read.

    `saved_wall_ns`: the start of an exchange without a time.
    """
    start = _ENTRIES.search(text)
    at = start.end() if start is not None else len(text)
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # matches anywhere
        if text[at : at + 1] == "]":
            return
        try:
            entry, at = _decode(text, at)
        except (ValueError, RecursionError) as e:
            why = "the file ends" if at == len(text) else str(e)
            yield at, ValueError(f"{why}. The rest of the file was not read")
            return
        try:
            yield at, _exchange_of(entry, saved_wall_ns)
        except ValueError as e:
            yield at, e


def _exchange_of(entry: Any, saved_wall_ns: int) -> Exchange | None:
    request, response = _get(entry, "request", dict), _get(entry, "response", dict)
    url, method = _get(request, "url", str), _get(request, "method", str).upper()
    if not url or urlsplit(url).port == 0:  # another invalid port raises ValueError
        raise ValueError("it has no URL")
    content, posted = _get(response, "content", dict), _get(request, "postData", dict)
    request_headers, request_kind = _headers(request, posted)
    response_headers, kind = _headers(response, content)
    messages = _get(entry, "_eventSourceMessages", list)
    has_json = any(name.endswith(("/json", "+json")) for name in (request_kind, kind))
    if kind not in _STREAMS and not messages and not (method == "POST" and has_json):
        return None
    number, (cause, detail) = _get(response, "status", int), _failure(entry, response)
    status = number if 100 <= number <= 999 else None
    if status is None and cause == "complete":
        raise ValueError("it has no response and no error")
    timings = _get(entry, "timings", dict)
    parts_ns = [
        sum(_duration_ns(timings, name) for name in names)
        for names in (("blocked", "dns", "connect"), ("send",), ("wait",), ("receive",))
    ]
    connected_ns, sent_ns, headers_ns, end_ns = accumulate(parts_ns)
    if not timings:
        headers_ns = end_ns = _duration_ns(entry, "time")
    wall_ns = _wall_ns(_get(entry, "startedDateTime", str)) or saved_wall_ns
    times: Times = "reads" if messages else "exchange"
    reads = []
    if messages:
        reads = _timed_reads(messages, wall_ns, headers_ns)
        end_ns = max(end_ns, reads[-1][0])
    elif status is not None and (body := _body(content, status, cause)):
        reads = [(end_ns, body)]
    if not reads or coding_of(reads[0][1]) is None:  # a tool that could not decode a body saves it as it was
        response_headers = [(n, v) for n, v in response_headers if n.lower() != "content-encoding"]
    has_parts = bool(timings) and status is not None
    return Exchange(
        method=method, url=url, request_headers=request_headers, request_body=_encoded(posted), started_wall_ns=wall_ns,
        connected_ns=connected_ns if has_parts else None, request_sent_ns=sent_ns if has_parts else None, status=status,
        response_headers=response_headers, headers_ns=headers_ns, reads=reads, end_ns=end_ns, cause=cause, detail=detail, times=times,
    )  # fmt: skip


def _body(content: dict[str, Any], status: int, cause: Cause) -> bytes:
    """The body of a response. Raises ValueError if the file does not have the whole one."""
    body = _encoded(content)
    size = _get(content, "size", int) if content.keys() & {"text", "size"} else 1
    # mitmproxy has the compressed size, which is larger for a small body.
    is_cut = size > len(body) + (1024 if body else 0)
    if is_cut and cause == "complete" and status < 400 and status not in (204, 304):
        part = "only a part of the body" if body else "no body"
        raise ValueError(f"the file has {part} of its response. Save the HAR with content, without a limit")
    return body


def _encoded(content: dict[str, Any]) -> bytes:
    text = _get(content, "text", str)
    if _get(content, "encoding", str).lower() != "base64":
        try:
            body = text.translate(_WINDOWS_1252).encode("latin-1")
            body.decode()
        except UnicodeError:
            return text.encode("utf-8", "replace")
        return body
    try:
        return base64.b64decode(text.encode("ascii", "replace"))
    except ValueError:
        raise ValueError("its body is not valid base64") from None


def _timed_reads(messages: list[Any], wall_ns: int, least_ns: int) -> list[tuple[int, bytes]]:
    """The events with their times, which are Unix times in s."""
    reads: list[tuple[int, bytes]] = []
    for message in messages:
        at_ns = _duration_ns(message, "time", 1e9, _MAX_WALL_NS)
        if not at_ns:
            raise ValueError("an event has no time")
        least_ns = max(least_ns, min(at_ns - wall_ns, _MAX_NS))
        name = _get(message, "eventName", str)
        lines = [f"event: {name}"] if name not in ("", "message") else []
        lines += [f"data: {line}" for line in _get(message, "data", str).split("\n")]
        reads.append((least_ns, ("\n".join(lines) + "\n\n").encode("utf-8", "replace")))
    return reads


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
