"""Find the error in an event or a body, of any vendor: {"error": {…}}, {"error": "text"}, flat objects, lists, HTML, text.

In a 200 stream, only two values are errors: one labelled as an error (`error_in`), and the flat last event of a stream without
a terminal (`unlabelled_error`). The body of a response with status ≥ 400 is always an error (`error_in_body`).

`type` is the provider's type, else its code (`code`, Google's `status`, `error_type`, `title` …), else None: the caller has
the HTTP status. `raw` is the error as sent: the value under `error`, the whole object of a flat error, or the text.
"""

from __future__ import annotations

import html
import re
from typing import Any

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.events import ChoiceDelta, DecodedEvent, ErrorReport
from streamgauge.analytics.dialects.tolerant_json import compact, json_or_none, text_of

MAX_TEXT_CHARS = 4096
"""Limit of a message, and of the kept part of an HTML or plain-text body."""
MAX_DEPTH = 8
"""Depth of nesting to which errors are searched."""

_TYPE_KEYS = (
    "type", "error_type", "status", "code", "error_code", "errorCode", "__type", "tpe", "reason", "errorcode", "title",
    "name",
)  # fmt: skip
_MESSAGE_KEYS = (
    "message", "msg", "Message", "error_message", "errorMessage", "error_msg", "detail", "details", "description",
    "faultstring", "title", "error", "errors",
)  # fmt: skip
_FLAT_MESSAGES = ("detail", "message", "msg", "error_message", "errorMessage", "error_msg")
FLAT = kept.members(
    name="status code error_code errorCode status_code object",
    title="type error_type title",
    word="id",
    id="request_id",
    count="success",
    text="message msg error_message errorMessage error_msg detail",
    content="statusCode requestId timestamp path instance param",
)
"""Members of flat errors."""
NESTED = kept.members(
    name="__type tpe reason errorcode name",
    word="retryDelay",
    text="Message details description faultstring error errors Error fault loc",
)
ERROR_KINDS = ("error", "stream-error")
"""Kinds of events that are errors in all dialects."""
_DELAY = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)s")
_WRAPPERS = ("error", "Error", "fault")
_NO_TYPE = frozenset({"", "error", "none", "null", "object", "about:blank"})
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<(script|style)\b.*?</\1>|<[^>]*>", re.IGNORECASE | re.DOTALL)


def error_in(value: Any) -> ErrorReport | None:
    """The error in an event of a 200 stream, if the value is labelled as one."""
    if not isinstance(value, dict):
        return None
    inner = value.get("error")
    if inner:
        return error_from(inner, around=value)
    if value.get("object") == "error" or value.get("type") == "error":
        return error_from(value)
    return None


def unlabelled_error(data: bytes) -> ErrorReport | None:
    """The error in the last event of a stream that ends without its terminal: an object with only members that errors have.

    Examples are FastAPI's `{"detail": …}` and a message with a code.
    """
    value = json_or_none(data)
    if not isinstance(value, dict) or not value.keys() <= FLAT.keys():
        return None
    has_message = any(isinstance(value.get(key), (str, list, dict)) and value[key] for key in _FLAT_MESSAGES)
    status = str(value.get("status")).lower()
    success = value.get("success") is True or status in ("ok", "success", "completed")
    return error_from(value) if has_message and not success else None


def retry_delay_in(raw: Any) -> float | None:
    """Seconds of the `RetryInfo` among the details of one of Google's errors (`"retryDelay": "34.07s"`). None if it has none."""
    details = raw.get("details") if isinstance(raw, dict) else None
    for detail in details if isinstance(details, list) else ():
        delay = detail.get("retryDelay") if isinstance(detail, dict) else None
        if isinstance(delay, str) and (found := _DELAY.fullmatch(delay)):
            return float(found[1])
    return None


def error_event(data: bytes) -> DecodedEvent:
    """Decode an event (or a body) that is known to be an error."""
    value = json_or_none(data)
    error = error_in(value) or error_from(text_of(data, MAX_TEXT_CHARS) if value is None else value)
    return DecodedEvent(kind="error", error=error)


def failed_event(name: object, data: bytes, last: str = "") -> DecodedEvent:
    """Decode an event or a body that its dialect cannot decode: an error, if it is labelled as one, else malformed.

    Plugins may also pass `(event, data, name)`: `event` is None, or an error that the dialect decoded.
    """
    if not isinstance(name, str):
        name = last if name is None else "error"
    value = json_or_none(data)
    labels = ("error", "errors") if isinstance(value, dict) else ()
    labelled = name in ERROR_KINDS or error_in(value) is not None or any(value.get(label) for label in labels)
    return error_event(data) if labelled else DecodedEvent(kind="malformed")


def error_from(raw: Any, *, around: dict[str, Any] | None = None) -> ErrorReport:
    """Convert an error value. `around` is the object that contains it, which may hold the type or code."""
    kind, message = _type_of(raw), _message_of(raw)
    if around is not None:
        kind = kind or _type_of(around)
        message = message or _message_of({k: v for k, v in around.items() if v is not raw})
    return ErrorReport(type=kind, message=message, raw=raw)


def error_in_body(body: bytes) -> ErrorReport | None:
    """The error in the body of a response with status ≥ 400; None when it is empty."""
    body = body.removeprefix(b"\xef\xbb\xbf").strip()
    if not body:
        return None
    value = json_or_none(body)
    if value is None and body.startswith((b"data:", b"event:", b":")):
        value = json_or_none(_sse_data(body))
    if isinstance(value, list) and len(value) > 0 and isinstance(value[0], dict):
        value = value[0]
    if isinstance(value, dict):
        wrapped = next((value[key] for key in _WRAPPERS if value.get(key)), None)
        return error_from(value) if wrapped is None else error_from(wrapped, around=value)
    if isinstance(value, str):
        return ErrorReport(type=None, message=value[:MAX_TEXT_CHARS], raw=value)
    text = text_of(body, MAX_TEXT_CHARS)
    return ErrorReport(type=None, message=_visible(text), raw=text)


def _type_of(raw: Any, depth: int = 0) -> str | None:
    if depth > MAX_DEPTH:
        return None
    if isinstance(raw, list):
        # A list may hold any number of errors, and each is searched to `MAX_DEPTH`: the first ones suffice.
        return next((t for item in raw[:20] if (t := _type_of(item, depth + 1))), None)
    if not isinstance(raw, dict):
        return None
    for key in _TYPE_KEYS:
        value = raw.get(key)
        if isinstance(value, bool) or not isinstance(value, (str, int)):
            continue
        if isinstance(value, int) and key != "code":
            continue  # the HTTP status, repeated in the body
        if str(value).strip().lower() not in _NO_TYPE:
            return str(value)
    for key in ("errors", "detail", "message", "error"):  # the first of several errors that has a type
        if isinstance(raw.get(key), (list, dict)) and (found := _type_of(raw[key], depth + 1)):
            return found
    return None


def _message_of(raw: Any, depth: int = 0) -> str | None:
    if isinstance(raw, str):
        return raw[:MAX_TEXT_CHARS] or None
    if depth > MAX_DEPTH:
        return None
    if isinstance(raw, list):
        found = (_message_of(item, depth + 1) for item in raw[:20])
        return "; ".join(message for message in found if message) or None
    if not isinstance(raw, dict):
        return None if raw is None else compact(raw)
    for key in _MESSAGE_KEYS:
        if raw.get(key) and (message := _message_of(raw[key], depth + 1)):
            return _at_field(raw) + message
    return None


def _at_field(raw: dict[str, Any]) -> str:
    """The position that FastAPI reports: `loc: ["body", "max_tokens"]`."""
    where = raw.get("loc")
    return ".".join(map(str, where)) + ": " if isinstance(where, list) and where else ""


def _visible(text: str) -> str:
    """The title of an HTML page, else its text; plain text unchanged."""
    if "<" not in text:
        return text
    title = _TITLE.search(text)
    shown = html.unescape(title[1] if title else _TAG.sub(" ", text))
    return " ".join(shown.split()) or text


def _sse_data(body: bytes) -> bytes:
    """The data of the first event, for an error body in SSE framing."""
    first = re.split(rb"\r?\n\r?\n", body, maxsplit=1)[0]
    return b"\n".join(line[5:].strip() for line in first.splitlines() if line.startswith(b"data:"))


FINAL = frozenset({"completed", "requires_action", "incomplete", "failed", "cancelled", "expired"})
FAILED = frozenset({"failed", "cancelled", "expired"})


def add_final_status(event: DecodedEvent, status: str | None, error: Any, *, failed: bool = False) -> None:
    """Make `event` the terminal of an API that sends the status of a response, run or interaction in place of a finish reason.

    The status becomes the finish reason, and an error if it means failure or `failed`; `error` is the object reported.
    """
    if status not in FINAL:
        return
    event.kind, event.terminal = "finish", True
    event.deltas = [ChoiceDelta(finish_reason=status)]
    if failed or status in FAILED:
        report = error_from(error) if error else ErrorReport(None)
        report.type = report.type or status
        event.kind, event.error = "error", report
