"""Decode a recorded response: a file, or the reads of a client with their times.

A file is a response body, or the output of `curl -i` (headers first). gzip and zstd are detected by their first bytes. Path,
status and content type come from the caller, else from `X.json` next to `X.sse` (`url`, `http_status`, `content_type`, and
`request`, which may ask for a stream), else from the headers in the file, else the path is unknown and the status 200. The
decoder is the one for live streams. Files have no times, so the byte offset of a line replaces its time within the decoder, and
the events have none.

A last event without its blank line is decoded, counted and noted, although a strict client would not have received it. The
elements of a JSON array are decoded but not counted as events.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TypeVar
from urllib.parse import urlsplit

import click
import msgspec

from streamgauge.analytics.decoding.decoded_body import body_of
from streamgauge.analytics.decoding.dialect_selection import UNKNOWN
from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.measures.outcome import Transport, judge
from streamgauge.ingest.files.exchange_log import Exchange
from streamgauge.ingest.records import coding_of
from streamgauge.python_api.stream_measures import Event, Measures, measures_of_body
from streamgauge.settings.values import WholeNumber, format_option

_T = TypeVar("_T")
_MAX_SIDECAR_BYTES = 16 * 2**20
_MAX_HEAD_BYTES = 64 * 1024


class UnreadableResponse(OSError):
    """A file that `read` cannot read. The message says what to do."""


class ExchangeHints(msgspec.Struct, frozen=True):
    """Path, status and content type from options or sidecar; None if absent."""

    path: str | None = None
    status: int | None = None
    content_type: str | None = None
    request: dict[str, Any] | None = None
    """The request in JSON."""


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A decoded response. None means unknown, or that the response does not have it.

    Fields without a description have the meaning of the columns of `streams`.
    """

    file: str | None
    """None for bytes and timed reads."""
    dialect: str
    """As in `streams.dialect`; `unknown` is counted but not decoded."""
    provider: str | None
    streamed: bool
    """Whether the body arrived as events."""
    outcome: str
    """As in `streams.outcome`, judged from status and body."""
    error_type: str | None
    error_phase: str | None
    error_message: str | None
    """The message of the error, as the response has it."""
    response_id: str | None
    response_model: str | None
    text: str
    """Of the first choice, as are `reasoning` and `refusal`."""
    reasoning: str
    refusal: str | None
    tool_calls: list[dict[str, Any]]
    """`id`, `name` and `arguments` (JSON text) of each call that the client must run."""
    choices: list[dict[str, Any]] | None
    """All choices, if there are several."""
    finish_reason: str | None
    usage: dict[str, Any] | None
    """The last usage report as the server sent it."""
    input_tokens: int | None
    output_tokens: int | None
    reasoning_tokens: int | None
    cached_input_tokens: int | None
    event_count: int
    output_event_count: int
    """Events with generated text, reasoning, refusal, tool calls, audio or images."""
    content_event_count: int
    comment_count: int
    malformed_events: int
    done_seen: bool
    """Whether `data: [DONE]` arrived."""
    unterminated_tail: bool
    error: Any
    """The error as the server sent it."""
    notes: list[str]
    """Remarks on how the response was decoded."""
    events: tuple[Event, ...]
    """The events in order. They have times only if the reads have."""
    measures: Measures | None
    """The measures of the stream. None without times."""


def read(
    source: str | os.PathLike[str] | bytes | Iterable[tuple[int, bytes]],
    *,
    path: str | None = None,
    status: int | None = None,
    content_type: str | None = None,
) -> Response:
    """Decode a recorded response.

    `source` is a file (a response body, or the output of `curl -i`), its content as bytes, or the reads of a client: pairs of
    the time in ns since the request and the bytes of the body. Compressed bytes are detected. `path` (path or URL of the
    request), `status` and `content_type` help to select the dialect; without them, a file's headers or the `X.json` next to
    `X.sse` are used.

    Bad data never raises: it is counted, and `outcome` and `notes` describe it. Raises `UnreadableResponse` for a file that
    cannot be read.

    >>> import streamgauge as sg
    >>> reads = [
    ...     (210_000_000, b'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "Hel"}}]}\\n\\n'),
    ...     (230_000_000, b'data: {"model": "m", "choices": [{"index": 0, "delta": {"content": "lo"}}]}\\n\\n'),
    ...     (231_000_000, b'data: {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\\n\\n'),
    ...     (231_000_000, b'data: [DONE]\\n\\n'),
    ... ]
    >>> response = sg.read(reads, path="/v1/chat/completions")
    >>> response.dialect, response.outcome, response.text
    ('openai_chat', 'ok', 'Hello')
    >>> response.measures.ttft_ns, response.measures.ttst_ns
    (210000000, 20000000)
    >>> [event.kind for event in response.events]
    ['text', 'text', 'finish', 'terminal']
    """
    hints = ExchangeHints(path, status, content_type)
    if isinstance(source, bytes):
        return _read_body(io.BytesIO(source), hints, None, [])
    if not isinstance(source, str | os.PathLike):
        return read_timed(source, hints)
    try:
        return read_file(Path(source), hints)
    except OSError as e:
        raise UnreadableResponse(
            f"cannot read {os.fspath(source)}: {e.strerror or e}. Pass the file of a recorded response body."
        ) from None


def read_file(file: Path, hints: ExchangeHints) -> Response:
    """Decode one file. Raises OSError."""
    with file.open("rb") as source:
        hints, from_sidecar = _with_sidecar(hints, file)
        name = str(file).encode("utf-8", "replace").decode()
        sidecar = file.with_suffix(".json").name
        notes = [f"url, status or content type from {sidecar}"] if from_sidecar else []
        return _read_body(source, hints, name, notes)


def _read_body(source: BinaryIO, hints: ExchangeHints, file: str | None, notes: list[str]) -> Response:
    start = source.read(_MAX_HEAD_BYTES)
    head, body_start = _curl_head(start)
    exchange = _exchange(hints, head, body_start)
    decoder = StreamDecoder(exchange, keep_text=True)
    for reads in _reads(body_start, source):
        decoder.feed(reads)
    decoder.finish()
    return _response(decoder, exchange, file=file, end_ns=decoder.body_bytes, notes=notes, is_timed=False)


def exchange_of_file(file: Path, content: bytes) -> Exchange | None:
    """The exchange of a recorded response, for the record log. Its path and request are those of the sidecar. Raises OSError.

    None: no response. The beginning of an event stream shows that it is one, so only JSON is decoded whole.
    """
    hints, _ = _with_sidecar(ExchangeHints(), file)
    head, body = _curl_head(content)
    info = _exchange(hints, head, body)
    is_json = body.lstrip()[:1] in (b"{", b"[")
    decoder = StreamDecoder(info)
    decoder.feed([(0, body if is_json else body[:_MAX_HEAD_BYTES])])
    decoder.finish()
    if not decoder.streamed and decoder.dialect == UNKNOWN and decoder.error is None:
        return None
    kind = info.content_type or ("application/json" if is_json else "text/event-stream")
    return Exchange(
        method="POST",
        url=hints.path or "/",
        request_headers=[("content-type", "application/json")],
        request_body=msgspec.json.encode(hints.request) if hints.request is not None else b"",
        started_wall_ns=file.stat().st_mtime_ns,
        status=info.status if 100 <= info.status <= 999 else 200,
        response_headers=[
            *((n, v) for n, v in info.response_headers.items() if n != "content-type"),
            ("content-type", kind),
        ],
        reads=[(0, body)] if body else [],
        times="none",
    )


def read_timed(reads: Iterable[tuple[int, bytes]], hints: ExchangeHints) -> Response:
    """Decode reads: (ns since the request, bytes of the body), in order."""
    rest = iter(reads)
    first = next(rest, None)  # the first bytes show a compression that no header names
    exchange = _exchange(hints, None, first[1] if first is not None else b"")
    decoder = StreamDecoder(exchange, keep_text=True)
    end_ns = 0
    for at_ns, data in chain(() if first is None else (first,), rest):
        decoder.feed([(at_ns, data)])
        end_ns = at_ns
    decoder.finish()
    return _response(decoder, exchange, file=None, end_ns=end_ns, notes=[], is_timed=True)


def _exchange(hints: ExchangeHints, head: _Head | None, body_start: bytes) -> ExchangeInfo:
    url = urlsplit(hints.path or "")
    headers = dict(head.headers) if head else {}
    if coding := coding_of(body_start):
        headers.setdefault("content-encoding", coding)  # a header of the recording knows better
    return ExchangeInfo(
        path=url.path + (f"?{url.query}" if url.query else ""),
        host=url.hostname or "",
        status=hints.status or (head.status if head else 200),
        content_type=hints.content_type or headers.get("content-type", ""),
        response_headers=headers,
        # An empty recording has no other description. It is no success.
        stream_requested=(hints.request or {}).get("stream") is True or (head is None and not body_start),
    )


def _response(
    decoder: StreamDecoder,
    exchange: ExchangeInfo,
    *,
    file: str | None,
    end_ns: int,
    notes: list[str],
    is_timed: bool,
) -> Response:
    transport = Transport(status=exchange.status, headers_ns=0, end_ns=end_ns)
    body = body_of(decoder)
    verdict = judge(transport, body, capture_content=True)
    usage = decoder.usage
    found: dict[str, Any] = {
        "file": file,
        "outcome": verdict.outcome,
        "error_type": verdict.error_type,
        "error_phase": verdict.error_phase,
        "error_message": verdict.error_message,
        "refusal": decoder.refusal or None,
        # Servers send "" for an id that they do not have.
        "tool_calls": [{**call, "id": call["id"] or None} for call in decoder.tool_calls],
        "choices": decoder.choices if decoder.choice_count > 1 else None,
        "usage": usage.raw if usage else None,
        # Some servers report 0 for counts that they do not have, although there was a prompt or output.
        "input_tokens": usage.input_tokens if usage and not decoder.usage_denies_input else None,
        "output_tokens": usage.output_tokens if usage and not decoder.usage_denies_output else None,
        "reasoning_tokens": usage.reasoning_tokens if usage else None,
        "cached_input_tokens": usage.cached_input_tokens if usage else None,
        # The elements of an array arrived as one body, so that none of them is an event. The tail is one that no client received.
        "event_count": (0 if decoder.framing == "array" else decoder.event_count) + decoder.tail_event_count,
        "error": decoder.error.raw if decoder.error else None,
        "notes": _notes(decoder, exchange) + notes,
        "events": Event.of_columns(decoder.events, is_timed=is_timed),
        "measures": measures_of_body(body, verdict) if is_timed else None,
    }
    of_decoder = {name: getattr(decoder, name) for name in Response.__struct_fields__ if name not in found}
    return Response(**found, **of_decoder)


def _notes(decoder: StreamDecoder, exchange: ExchangeInfo) -> list[str]:
    """Remarks on how the file was decoded."""
    notes: list[str] = []
    if not decoder.body_bytes:
        notes.append("the file is empty")
    elif decoder.coding_note:
        notes.append(decoder.coding_note)
    elif not decoder.streamed and exchange.status < 400:
        kind = "a JSON body" if decoder.body_is_json else "neither an event stream nor JSON"
        notes.append(f"{kind}, not a stream: no events, no timing")
    elif decoder.dialect == "unknown" and decoder.streamed:
        notes.append(
            "unknown dialect: events are counted but not decoded. Pass --path if the request path is known."
        )
    if decoder.framing == "lines":
        notes.append("JSON lines, not SSE: each line is an event")
    if decoder.framing == "array":
        notes.append("a JSON array, not SSE: its elements are decoded but not counted as events")
    if decoder.unterminated_tail:
        notes.append("the last event has no blank line after it: a strict client would not have received it")
    if decoder.malformed_events:
        notes.append(
            f"{decoder.malformed_events} malformed: invalid JSON, over 16 MiB, or invalid compression"
        )
    return notes


class _Head(msgspec.Struct):
    status: int
    headers: dict[str, str]


def _curl_head(start: bytes) -> tuple[_Head | None, bytes]:
    """Split off the headers that `curl -i` writes before the body; of several responses, the last one counts."""
    head: _Head | None = None
    # curl writes a head for each redirect and for `100 Continue`, too.
    while start.startswith(b"HTTP/"):
        cut = min((at for sep in (b"\r\n\r\n", b"\n\n") if (at := start.find(sep)) >= 0), default=-1)
        if cut < 0:
            break
        # Latin-1 decodes every byte: headers have no fixed encoding.
        lines = start[:cut].decode("latin-1").splitlines()
        words = lines[0].split()
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() and len(words[1]) == 3 else 200
        pairs = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        headers.pop("content-encoding", None)  # curl decoded the body, or its first bytes show the coding
        head = _Head(status, headers)
        start = start[cut:].removeprefix(b"\r\n\r\n" if start[cut : cut + 1] == b"\r" else b"\n\n")
    return head, start


def _with_sidecar(hints: ExchangeHints, file: Path) -> tuple[ExchangeHints, bool]:
    """Fill missing members from `X.json` next to `X.sse`. Also return whether it was used."""
    sidecar = file.with_suffix(".json")
    if sidecar == file or not sidecar.is_file() or sidecar.stat().st_size > _MAX_SIDECAR_BYTES:
        return hints, False
    try:
        value = msgspec.json.decode(sidecar.read_bytes())
    # Any file may be named like a sidecar: it is no error of the recording.
    except (OSError, ValueError, RecursionError):
        return hints, False
    if not isinstance(value, dict) or not {"url", "http_status", "content_type"} & value.keys():
        return hints, False
    return ExchangeHints(
        hints.path if hints.path is not None else _member(value, "url", str),
        hints.status if hints.status is not None else _member(value, "http_status", int),
        hints.content_type if hints.content_type is not None else _member(value, "content_type", str),
        _member(value, "request", dict),
    ), True


def _member(value: dict[str, Any], name: str, kind: type[_T]) -> _T | None:
    found = value.get(name)
    return found if isinstance(found, kind) else None


def _reads(first: bytes, source: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """The body as reads of one line each; their time is the offset in the body."""
    offset = 0
    data = first
    while data:
        reads: list[tuple[int, bytes]] = []
        for line in data.splitlines(keepends=True):
            reads.append((offset, line))
            offset += len(line)
        yield reads
        data = source.read(_MAX_HEAD_BYTES)


_NOT_PRINTED = ("events", "measures")


def members(response: Response) -> dict[str, Any]:
    """What `--format json` prints."""
    found = msgspec.structs.asdict(response)
    return {name: value for name, value in found.items() if name not in _NOT_PRINTED}


def _table(found: dict[str, Any]) -> str:
    """The result for one file as text, without unknown and empty values."""
    lines = [found["file"]]
    for key, value in found.items():
        empty = value in (None, "", [], False) or (value == 0 and key != "event_count")
        if empty or key in ("file", "notes"):
            continue
        if isinstance(value, (dict, list)):
            value = msgspec.json.encode(value).decode()
        text = " ".join(str(value).split())
        lines.append(f"  {key:<20} {text if len(text) <= 160 else text[:159] + '…'}")
    lines += [f"  {'note':<20} {note}" for note in found["notes"]]
    return "\n".join(lines)


@click.command(name="read")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--path", metavar="PATH", help="Path or URL of the request, such as /v1/chat/completions.")
@click.option("--status", type=WholeNumber(100, 599), metavar="CODE", help="HTTP status of the response.")
@click.option("--content-type", metavar="TYPE", help="Content type of the response.")
@format_option(" json prints one object per line.")
def read_command(
    files: tuple[Path, ...], path: str | None, status: int | None, content_type: str | None, form: str
) -> int:
    """Decode recorded responses: text, tool calls, tokens, outcome.

    If X.json exists next to X.sse, url, http_status and content_type are taken from it.
    """
    code = 0
    for file in files:
        try:
            found = members(read_file(file, ExchangeHints(path, status, content_type)))
        except OSError as e:
            click.echo(f"streamgauge: cannot read {file}: {e.strerror or e}", err=True)
            code = 2
            continue
        if form == "json":
            line = msgspec.json.encode(found)
            # Bytes, because the encoding of stdout may not be UTF-8. Flushed, so that a pipe gets each file at once.
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        else:
            click.echo(_table(found))
    if code:
        raise SystemExit(code)
    return os.EX_OK
