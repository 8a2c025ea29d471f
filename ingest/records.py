"""What the tap writes and analytics reads: the records of the log, and how they are packed.

Every record but `Alive` and `Damaged` belongs to one stream and carries `(stream, seq)`; `seq` counts the records of its stream
from 0 without a gap, so a hole is seen and a duplicate is dropped by that pair alone. `Opened` is seq 0 and `Closed`
the last. Times named `*_ns` are lengths from the stream's t0 (the instant when the tap turned to the upstream);
`wall_ns` and `mono_ns` are the two clocks read together at t0. No record ever holds Authorization, API keys or cookies:
headers are an allow-list (`ingest.tap.header_rewrite`).

An *entry* of a log is a packed batch of records: one format byte, then a MessagePack array of the records, plain
(`PLAIN`) or zstd-compressed (`ZSTD`). It holds records of many streams; in Kafka it is the value of a message, its streams
those of one partition. An entry of the format `DAMAGE` holds no records: it says which entries of a local log could not be
read when it was moved on.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
import zstandard

PLAIN, ZSTD, DAMAGE = b"\x01", b"\x02", b"\x03"
MAX_ENTRY_BYTES = 64 * 2**20
"""An entry that unpacks to more than this is refused: no honest writer makes one."""

Cause = Literal[
    "complete",  # the response ended as HTTP says it should
    "client_left",  # the client closed or reset first
    "upstream_reset",  # the upstream closed or reset in the middle of the response (or before its head)
    "connect_error",  # DNS, TCP or TLS to the upstream failed
    "connect_timeout",  # the tap's limit for connecting
    "headers_timeout",  # the tap's limit for the silence before the first byte of the response
    "idle_bytes",  # the tap's limit for silence in mid-stream
    "idle_output",  # the tap's limit for heartbeats without output
    "bad_upstream",  # the upstream's answer was not HTTP
    "bad_request",  # refused by the tap itself (the client's request was not acceptable HTTP)
    "tap_stopped",  # the tap was told to stop and its drain time was over
]

CodingFault = Literal[
    "broken",  # the bytes are not what the content-encoding header says, or end the decoding
    "bomb",  # they grow beyond all proportion
]


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=lambda name: name.lower()):
    """Base of all records. Fields are only ever appended, with defaults: old logs stay readable."""


class ResponseHeaders(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The head of the upstream's response. `headers` is the allow-listed part, names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    headers_ns: int
    """When the final (not 1xx) head was complete."""


class Opened(Record, frozen=True):
    """A request's head was read and the tap turned to the upstream. Always seq 0."""

    stream: str
    """UUIDv7, textual."""
    seq: int
    tap: str
    """Name of the tap (host name unless configured)."""
    tap_worker: int
    """Number of the tap's worker process, from 0."""
    incarnation: str
    """UUID of this run of this worker; a newer one supersedes it."""
    gateway: str
    """Name of the upstream that was chosen."""
    server_address: str
    server_port: int
    method: str
    path: str
    """Path as sent upstream, without the query (it may carry keys); `alt=sse` is kept as `?alt=sse`."""
    wall_ns: int
    mono_ns: int
    client_start_ns: int
    """First byte of the request at the tap, from t0: ≤ 0."""
    trace_id: str
    """32 hex digits: the caller's, or made by the tap."""
    span_id: str
    """16 hex digits: chosen by the tap and sent upstream as the parent."""
    parent_span_id: str | None
    """The caller's span, None when the tap began the trace."""
    trace_flags: int
    client_id: str | None
    """Keyed hash of the client's API key."""
    headers: list[tuple[str, str]]
    """Allow-listed request headers, names in lower case."""
    capture_content: bool | None = None
    """False when the client sent `x-streamgauge-capture: none`; None when it said nothing."""


class Request(Record, frozen=True):
    """The first bytes (64 KiB by default) of the request's body, as sent."""

    stream: str
    seq: int
    body: bytes
    truncated: bool
    decoded: bool = False
    """Its content coding, if it had one, was undone on the way (`ingest.redaction`)."""


class Frames(Record, frozen=True):
    """Reads of the response's body (transfer coding removed, content coding kept), in order of arrival.

    `response` is set on the first `Frames` of a stream and only there; a response without a body has one `Frames`
    with no frames.
    """

    stream: str
    seq: int
    frames: list[tuple[int, bytes]]
    """(arrival of the read in ns from t0, its body bytes)."""
    response: ResponseHeaders | None = None
    uncaptured_bytes: int = 0
    """Body bytes that passed but are not mirrored, by rule (content type, size cap): not a loss."""
    wire_bytes: list[int] | None = None
    """Where the content coding was undone on the way (`ingest.redaction`): what each read was as received."""
    coding_fault: CodingFault | None = None
    """What was wrong with that coding, as far as it was seen up to here."""


class Closed(Record, frozen=True):
    """The exchange is over: what the transport saw. Always the last seq of its stream."""

    stream: str
    seq: int
    cause: Cause
    detail: str | None
    """Class of the exception or a short word of the tap's own; never text from the wire."""
    end_ns: int
    """tE: end of the response's body, or the instant of the failure."""
    connected_ns: int | None
    """A connection to the upstream was there (≈ 0 when one was reused)."""
    request_sent_ns: int | None
    """The request's last byte had gone upstream."""
    request_bytes: int
    response_bytes: int
    """Body bytes received from the upstream."""
    delivered_bytes: int
    """Body bytes handed to the client's socket and not known to be undelivered."""
    client_drain_ns: int | None
    """When the client's socket had taken the last byte."""
    client_left_ns: int | None = None
    """When the client was seen to have left, None if it stayed."""
    reused_connection: bool = False
    tunnel: bool = False
    """An upgraded connection (WebSocket): measured by bytes, no frames."""


class Lost(Record, frozen=True):
    """A hole in one stream: its records [seq, last_seq] will never come."""

    stream: str
    seq: int
    last_seq: int
    cause: str
    """queue_full | log_full | log_aged | log_error | record_too_large | redaction_state_lost"""
    at_wall_ns: int
    bytes: int = 0
    last: bool = False
    """The stream's `Closed` is among them: nothing more of it will come."""


class Alive(Record, frozen=True):
    """This incarnation of a tap worker lives. Sent every few seconds, and to every partition of a Kafka topic."""

    tap: str
    tap_worker: int
    incarnation: str
    wall_ns: int
    mono_ns: int
    started_wall_ns: int
    stopping: bool = False
    """The last one of a clean stop: every stream of this incarnation has been closed."""
    counters: dict[str, int] = {}
    """Totals since the start, for the ledger: streams_opened, streams_closed, records, frames, body_bytes,
    lost_records, lost_bytes, loop_lag_max_ns …"""


class Damaged(Record, frozen=True):
    """Entries of a local log could not be read: records of these runs' streams may never come. Sent where `Alive` is sent."""

    incarnations: list[str]
    reason: str
    at_wall_ns: int


def captures(opened: Opened, routes: Sequence[str]) -> bool:
    """Whether text of this stream may be kept: its path fits one of the globs, and its client did not forbid it.

    No glob: no text.
    """
    path = opened.path.partition("?")[0]
    return opened.capture_content is not False and any(fnmatchcase(path, route) for route in routes)


StreamRecord = Opened | Request | Frames | Closed | Lost
"""What belongs to one stream."""
AnyRecord = StreamRecord | Alive | Damaged

_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(list[AnyRecord])
_raw_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_record_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
decode = _record_decoder.decode
"""The record that `encode` made these bytes of. Raises msgspec.DecodeError."""


class _Own(threading.local):
    """What a thread has of its own: a decompressor serves one at a time, and making one costs as much as a small entry."""

    def __init__(self) -> None:
        self.decompressor = zstandard.ZstdDecompressor()


_own = _Own()


class Poison(msgspec.Struct, frozen=True):
    """Something in the log that is not a record of ours: counted and set aside, never raised."""

    reason: str
    size: int
    payload: bytes


encode = _encoder.encode
"""One record as it stands in an entry."""
OPENED = b"\xdc\x00%c\xa6opened" % (len(Opened.__struct_fields__) + 1)
"""How each encoded `Opened` begins: an array of more than 15, its tag first."""


def pack(records: Sequence[AnyRecord], *, compress: bool) -> bytes:
    """Pack records into one entry."""
    return _entry(_encoder.encode(records), compress=compress)


def pack_encoded(encoded: list[bytes]) -> bytes:
    """Pack records that `encode` made into one entry."""
    count = b"\xdd" + len(encoded).to_bytes(4, "big")  # MessagePack's array 32
    return _entry(count + b"".join(encoded), compress=True)


def _entry(body: bytes, *, compress: bool) -> bytes:
    return ZSTD + zstandard.ZstdCompressor(level=1).compress(body) if compress else PLAIN + body


def pack_damage(partition: str, first: int, end: int, reason: str) -> bytes:
    """An entry that stands for the entries [first, end) of a local log's partition, which cannot be read."""
    return DAMAGE + msgspec.msgpack.encode((partition, first, end, reason))


def unpack(payload: bytes) -> tuple[list[AnyRecord], list[Poison]]:
    """Unpack an entry: its records, and whatever in it is not one. Never raises on bad bytes."""
    form, body = payload[:1], payload[1:]
    if form == ZSTD:
        try:
            # What a frame says of its size is taken at its word, and memory made ready for it, whatever the limit.
            if 0 <= zstandard.frame_content_size(body) > MAX_ENTRY_BYTES:
                return [], [Poison("too_large", len(payload), payload)]
            body = _own.decompressor.decompress(body, max_output_size=MAX_ENTRY_BYTES)
        except zstandard.ZstdError:
            return [], [Poison("bad_compression", len(payload), payload)]
    elif form == DAMAGE:
        return [], [_damage(payload)]
    elif form != PLAIN:
        return [], [Poison("unknown_format", len(payload), payload)]
    try:
        return _batch_decoder.decode(body), []
    except (msgspec.DecodeError, UnicodeDecodeError):
        return _unpack_one_by_one(body)


def read_damage(payload: bytes) -> tuple[str, int, int] | None:
    """Partition, first and end of what an entry of the format `DAMAGE` stands for; None if it is none."""
    try:
        partition, first, end, _ = msgspec.msgpack.decode(payload[1:], type=tuple[str, int, int, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (partition, first, end) if payload[:1] == DAMAGE and 0 <= first <= end < 2**62 else None


def _damage(payload: bytes) -> Poison:
    """Its size is the number of entries that it stands for."""
    found = read_damage(payload)
    if found is None:
        return Poison("unknown_format", len(payload), payload)
    return Poison("damaged_segment", found[2] - found[1], payload)


def _unpack_one_by_one(body: bytes) -> tuple[list[AnyRecord], list[Poison]]:
    try:
        raws = _raw_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return [], [Poison("not_messagepack", len(body), body)]
    records: list[AnyRecord] = []
    poison: list[Poison] = []
    for raw in raws:
        try:
            records.append(_record_decoder.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError):
            poison.append(Poison("not_a_record", len(raw), bytes(raw)))
    return records, poison
