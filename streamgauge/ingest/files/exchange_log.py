"""Write exchanges that were observed before into the record log of a data folder, through the recorders of the tap.

The same fields are recorded as by a tap. Bodies are redacted before they are written (`streamgauge.ingest.redaction`).
"""

from __future__ import annotations

import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from streamgauge.ingest.facts import FieldFacts, RequestFacts, ResponseFacts, RouteFacts
from streamgauge.ingest.header_fields import request_field, response_field
from streamgauge.ingest.http1.client_identity import API_KEY_FIELDS
from streamgauge.ingest.http1.fields import TOKEN
from streamgauge.ingest.http1.trace_context import join_trace
from streamgauge.ingest.http1.upstreams import NAME, Upstream
from streamgauge.ingest.record_log.interface import LogWriter
from streamgauge.ingest.record_log.packing import messages_of
from streamgauge.ingest.record_log.segments import list_segments, open_segment, sealed_at
from streamgauge.ingest.recording.options import RecordingOptions
from streamgauge.ingest.recording.recorder import Recorders
from streamgauge.ingest.recording.recording import Recording
from streamgauge.ingest.recording.source import NO_LIMIT_BYTES, QUEUED_BYTES, recording
from streamgauge.ingest.records import MAX_ENTRY_BYTES, Cause, Times, unpack
from streamgauge.ingest.redaction.record_redactor import Redactor

UNKNOWN_GATEWAY = "unknown"
_READ_BYTES = 65_536
"""A longer read is recorded in parts with one time: an entry of the log has a limit."""
_FIELD_NAME = re.compile(TOKEN + b"+")
_KNOWN = (b"content-type", b"x-streamgauge-capture", b"traceparent", *API_KEY_FIELDS)

Pairs = Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its response. `*_ns` and the times of the reads are since `started_wall_ns`; None is unknown."""

    method: str
    url: str
    """Or a path, if the host is unknown."""
    request_headers: Pairs
    request_body: bytes = b""
    request_bytes: int = 0
    """Its size, if not all of it is known."""
    started_wall_ns: int
    connected_ns: int | None = None
    request_sent_ns: int | None = None
    status: int | None
    """None: no response."""
    response_headers: Pairs
    headers_ns: int = 0
    reads: Sequence[tuple[int, bytes]]
    """In order. Without transfer coding, with the content coding that the headers name."""
    response_bytes: int = 0
    """Size of the body, if not all of it is known."""
    frames: Sequence[tuple[int, bytes, bool]] = ()
    """Those of a WebSocket, in order, and whether the client sent them."""
    end_ns: int = 0
    cause: Cause = "complete"
    detail: str | None = None
    times: Times


class _RedactingWriter:
    """A `LogWriter` that redacts."""

    def __init__(self, writer: LogWriter, redactor: Redactor) -> None:
        self._writer, self._redactor = writer, redactor
        self.close = writer.close

    def append(self, payloads: Sequence[bytes]) -> None:
        entries = [self._redactor.redact(unpack(payload)[0]) for payload in payloads]
        self._redactor.mark_saved()  # every stream ends here: no state is needed again
        # Bodies are decoded here: a small one may have become too large for an entry.
        packed = [messages_of(records, MAX_ENTRY_BYTES, time.time_ns())[0] for records in entries]
        self._writer.append([message.value for messages in packed for message in messages])


class ExchangeLog:
    """Records exchanges. Its methods raise OSError if the log cannot be written, such as on a full disk."""

    def __init__(self, recording: Recording, client_key: bytes) -> None:
        self._recording, self._client_key = recording, client_key
        self.partition = f"w{recording.options.worker}"
        self.end = 0
        """The offset after the last entry, once the log is closed."""
        self.first_ns, self.last_ns = 2**62, 0
        """First and last start of an exchange."""

    @property
    def exchanges(self) -> int:
        """Recorded exchanges."""
        return self._recording.counters.streams_opened

    def recorders(self, source: str, times: Times) -> Recorders:
        """Those of a file. `source` is in the column `tap`. Their clock is the Unix time."""
        every = self._recording.recorders
        assert every is not None
        return Recorders(
            every.buffer, replace(every.options, tap_name=_name(source)), incarnation=every.incarnation,
            client_key=self._client_key, wall_ns=self._start, times=times,
        )  # fmt: skip

    def _start(self, at_ns: int) -> int:
        self.first_ns, self.last_ns = min(self.first_ns, at_ns), max(self.last_ns, at_ns)
        return at_ns

    def add(self, exchange: Exchange, source: str) -> None:
        """Record an exchange. Raises ValueError for an invalid URL."""
        # JSON text can have surrogates, which no record can.
        method, address = (
            text.encode("utf-8", "replace").decode() for text in (exchange.method, exchange.url)
        )
        url, t0_ns = urlsplit(address), exchange.started_wall_ns
        host, port = url.hostname or "", url.port or {"http": 80, "https": 443}.get(url.scheme, 0)
        target = url._replace(scheme="", netloc="", fragment="").geturl() or "/"
        fields, known, size = _fields(exchange.request_headers, request_field)
        recorder = self.recorders(source, exchange.times).new(
            RequestFacts(method, fields, known, size), RouteFacts(Upstream(_name(host), url.scheme, host, port, ""), target),
            join_trace(known.get(b"traceparent")), t0_ns, t0_ns,
        )  # fmt: skip
        if exchange.connected_ns is not None:
            recorder.connected(t0_ns + exchange.connected_ns)
        if exchange.request_body:
            recorder.request_data(exchange.request_body)
        if exchange.request_sent_ns is not None:
            recorder.request_sent(t0_ns + exchange.request_sent_ns)
        recorder.record_request(True)
        if exchange.status is not None:
            fields, known, size = _fields(exchange.response_headers, response_field)
            head = ResponseFacts(exchange.status, fields, known.get(b"content-type", b""), size)
            recorder.response_head(head, t0_ns + exchange.headers_ns)
        for at_ns, data in exchange.reads if exchange.status is not None else ():
            for start in range(0, len(data), _READ_BYTES):
                recorder.response_data(data[start : start + _READ_BYTES], t0_ns + at_ns)
        for at_ns, data, from_client in exchange.frames:
            for start in range(0, len(data), _READ_BYTES):
                recorder.websocket_data(data[start : start + _READ_BYTES], t0_ns + at_ns, from_client)
        sent_bytes, received_bytes = (
            sum(len(data) for _, data, from_client in exchange.frames if from_client is side)
            for side in (True, False)
        )
        recorder.ended(
            exchange.cause, exchange.detail, t0_ns + exchange.end_ns,
            max(exchange.request_bytes, len(exchange.request_body) + sent_bytes),
            max(exchange.response_bytes, sum(len(data) for _, data in exchange.reads) + received_bytes),
            False, bool(exchange.frames), None,
        )  # fmt: skip
        recorder.drained(None)
        self.flush()

    def flush(self) -> None:
        """Hand the records over to the log, and wait while too many are queued."""
        self._recording.flush(QUEUED_BYTES)


@asynccontextmanager
async def exchange_log(
    options: RecordingOptions, redactor: Redactor, client_key: bytes
) -> AsyncIterator[ExchangeLog]:
    """A log in the data folder of the options, beside that of a tap. Raises OSError or ValueError if it cannot be opened."""
    options = replace(options, record_log_max_bytes=NO_LIMIT_BYTES, queue_bytes=NO_LIMIT_BYTES)
    async with recording(options, wrap_log=lambda writer: _RedactingWriter(writer, redactor)) as started:
        log = ExchangeLog(started, client_key)
        yield log
        started.flush(0)
    for segment in list_segments(options.data / "log" / log.partition)[-1:]:
        with closing(open_segment(segment.path)) as connection:
            log.end = sealed_at(connection) or 0


def _name(text: str) -> str:
    """As the names of upstreams and taps are."""
    found = NAME.match(re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-"))
    return found[0] if found else UNKNOWN_GATEWAY


def _fields(
    pairs: Pairs, recorded: Callable[[bytes, bytes], tuple[str, str] | None]
) -> tuple[list[FieldFacts], dict[bytes, bytes], int]:
    """The fields, the first values of those in `RequestFacts.known`, and about the memory."""
    found: list[FieldFacts] = []
    known: dict[bytes, bytes] = {}
    for name, value in (
        (n.lower().encode("utf-8", "replace"), v.encode("utf-8", "replace")) for n, v in pairs
    ):
        if _FIELD_NAME.fullmatch(name):  # not `:authority`, which browsers list, too
            found.append(FieldFacts(name, value, recorded(name, value)))
            if name in _KNOWN:
                known.setdefault(name, value)
    return found, known, sum(len(field.name) + len(field.value) for field in found)
