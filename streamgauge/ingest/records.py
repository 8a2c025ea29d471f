"""Records of the record log: the contract between the tap, which writes them, and analytics, which reads them.

Every record except `Alive` and `Damaged` belongs to one stream and has `(stream, seq)`. `seq` counts the records of its
stream from 0 without a gap. So a reader detects gaps, and drops duplicates by that pair. `Opened` is seq 0 and `Closed` the
last record.

Clocks. Fields named `*_ns` are durations in ns since the stream's t0: the tap has read the request's head and starts to
forward it. `wall_ns` (Unix time) and `mono_ns` (CLOCK_MONOTONIC) are clock readings taken together, in `Opened` at t0.

No record holds Authorization, API keys or cookies: headers are allow-listed (`streamgauge.ingest.header_fields`).

An entry of a log is a packed batch of records of many streams: one format byte, then a MessagePack array of the records,
plain (`PLAIN`) or zstd-compressed (`ZSTD`). In Kafka it is the value of a message. An entry of the format `DAMAGE` has no
records: it names a range of entries of a local log that `ship` could not read.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from fnmatch import fnmatchcase
from typing import Literal

import msgspec
import zstandard

PLAIN, ZSTD, DAMAGE = b"\x01", b"\x02", b"\x03"
MAX_ENTRY_BYTES = 64 * 2**20
"""Limit for the unpacked size of an entry. Our writers stay below it."""
_COMPRESSED_FROM_BYTES = 512
"""Smaller entries are not compressed: it would be a fifth of the work of an append."""

Cause = Literal[
    "complete",  # the response ended as HTTP requires
    "client_left",  # the client closed or reset first
    "upstream_reset",  # the upstream closed or reset before the response was complete
    "connect_error",  # DNS, TCP or TLS to the upstream failed
    "connect_timeout",  # the tap's limit for connecting was reached
    "headers_timeout",  # no response head within the tap's limit
    "idle_bytes",  # no byte of the response within the tap's limit
    "idle_output",  # only heartbeats for longer than the tap's limit
    "bad_upstream",  # the upstream's response was not HTTP
    "bad_request",  # the tap refused the request; the detail is a `Refusal`
    "tap_stopped",  # the tap stopped and its drain time was over
]

Refusal = Literal[
    "bad_request",  # not acceptable HTTP/1.x
    "body_too_large",
    "headers_too_large",
    "http2",  # HTTP/2 without TLS
    "request_timeout",  # the head or the body did not arrive within the tap's limit
    "target_too_long",
    "tls",  # TLS on a port without TLS
    "unknown_upstream",  # the request names no configured upstream
    "websocket",  # an upgrade, with --websockets refuse
]
"""Why the tap refused a request. Also the code in its error response."""

CodingFault = Literal[
    "broken",  # unknown coding or invalid bytes: decoding stopped
    "bomb",  # the decoded size is out of proportion
]


Times = Literal["reads", "exchange", "none"]
"""What is timed: each read of the body, only the start, the head and the end (a HAR file), or nothing (a recorded body)."""

SpeechEnd = Literal["server", "client", "audio"]
"""Source of the end of the user's speech: an event of the server, a signal of the client, or the loudness of the client's audio."""

WaitedFor = Literal["client", "tap"]
Wait = tuple[int, int, WaitedFor]
"""(start, end, who delayed the exchange), in ns since t0: a wait for the client to send its request or to read the response,
or a delay by the tap."""


class Record(msgspec.Struct, array_like=True, frozen=True, gc=False, tag=lambda name: name.lower()):
    """Base of all records. New fields are appended, with defaults, so old logs stay readable."""


class OfStream(Record, frozen=True):
    """Base of the records that belong to one stream."""

    stream: str
    """Textual UUIDv7; its time is t0."""
    seq: int

    @property
    def last_seq(self) -> int:
        """The last number that the record takes."""
        return self.seq

    @property
    def ends_stream(self) -> bool:
        """No further record of the stream follows."""
        return isinstance(self, Closed) or (isinstance(self, Lost) and self.last)

    def lost(self, cause: str, at_wall_ns: int, size_bytes: int) -> Lost:
        """What takes the place of this record if it is lost."""
        return Lost(self.stream, self.seq, self.last_seq, cause, at_wall_ns, size_bytes, self.ends_stream)


class ResponseHeaders(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Status and allow-listed headers of the upstream's response, names in lower case."""

    status: int
    headers: list[tuple[str, str]]
    headers_ns: int
    """When the final (not 1xx) response head was complete."""


SegmentKind = Literal[
    "model",  # the model's name
    "settings",  # a parameter that is part of the cached prefix, such as `tool_choice` or `thinking`
    "tool",  # a tool's definition
    "system",  # a block of the system text or of the instructions
    "text",  # of a message
    "image",
    "audio",
    "file",
    "reasoning",
    "tool_call",
    "tool_result",
    "other",
]


class Segment(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One part of a prompt, without its text. Segments are in the order in which the model reads them."""

    kind: SegmentKind
    name: str | None
    """Name of the tool, the called tool or the parameter."""
    message: int
    """Number of its message from 0. −1: before the messages."""
    size: int
    """Bytes in the body. For a block with only a text, the bytes of the text."""
    hash: bytes
    """Keyed hash of its bytes without cache marks: 8 bytes."""
    role: str | None = None
    """Role of its message."""
    mark: str | None = None
    """Its cache mark: the `ttl`, or the type of a mark without one."""


NO_SEGMENTS = msgspec.Raw(msgspec.msgpack.encode(None))
_segments_decoder: msgspec.msgpack.Decoder[list[Segment] | None] = msgspec.msgpack.Decoder(
    list[Segment] | None
)


class RequestAnatomy(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """What a request body says about its conversation in texts and ids (`streamgauge.ingest.request_anatomy`)."""

    user_messages: list[str] = []
    """Keyed hashes of the texts of the user's first messages."""
    call_ids: list[str] = []
    """The last tool calls whose results it has."""
    results: int = 0
    """Number of results of tools."""
    repeats: int = 0
    """Of the tool calls that its last results answer: how often the turn has the one that it repeats most, with the same arguments and
    result. 1: no repetition. 0: unknown."""
    repeated_tool: str | None = None
    """The name of that tool."""
    encoded_segments: msgspec.Raw = NO_SEGMENTS
    """The list of `Segment`, because most of them are equal to those of an earlier request, which is decoded already."""
    left_out: int = 0
    """Number of segments omitted at the end, because there are too many."""

    @property
    def segments(self) -> list[Segment] | None:
        """The prompt. None: unknown. Raises msgspec.DecodeError."""
        return _segments_decoder.decode(self.encoded_segments)


class Conversation(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """The conversation that a request body names, without text."""

    session: str | None = None
    """Session id (`streamgauge.ingest.keyed_ids`)."""
    turns: int | None = None
    """Turns in its messages: runs of user messages. None: unknown."""
    previous_response_id: str | None = None
    """The response that it continues."""
    has_history: bool = True
    """The messages are the whole conversation. False: the server keeps the earlier ones."""
    can_be_continued: bool = True
    """The server may keep the response, so that a later request can continue it."""
    has_tools: bool | None = None
    """The model may call tools. None: unknown."""
    traceparent: str | None = None
    """Of the caller, in a message of MCP or over a WebSocket."""
    tool: str | None = None
    """The tool that a message of MCP calls."""
    labels: dict[str, str] | None = None
    """The labels of the body (`streamgauge.ingest.labels`), as they may be stored."""
    parent: str | None = None
    """Id of the session whose subagent sent the request."""
    by_cache_key: bool = False
    """The session is named only by the key of the prompt cache, which agents of one run may share."""
    anatomy: RequestAnatomy | None = None
    """None: unknown. A request without tools has only the segments."""


class Opened(OfStream, frozen=True):
    """The tap has read a request's head and starts to forward it, or refuses the request. Always seq 0.

    A request that is refused before it has an upstream has no `gateway`, no `server_address` and port 0. Its method and path
    are empty if its first line is not valid.
    """

    tap: str
    """Name of the tap (the host name unless configured)."""
    tap_worker: int
    """Number of the tap's worker process, from 0."""
    incarnation: str
    """UUID of this run of the worker. A newer incarnation supersedes it."""
    gateway: str
    """Name of the chosen upstream."""
    server_address: str
    """Host of the upstream."""
    server_port: int
    method: str
    path: str
    """Path sent upstream, without the query (it may contain keys). Only `?alt=sse` is kept; see also `query_model`."""
    wall_ns: int
    mono_ns: int
    client_start_ns: int
    """First byte of the request at the tap: ≤ 0."""
    trace_id: str
    """32 hex digits, from the caller or created by the tap."""
    span_id: str
    """16 hex digits, created by the tap and sent upstream as the parent span."""
    parent_span_id: str | None
    """The caller's span. None: the tap started the trace."""
    trace_flags: int
    """Flags of W3C Trace Context."""
    client_id: str | None
    """Keyed hash of the client's API key. None: the request had no key."""
    headers: list[tuple[str, str]]
    """Allow-listed request headers, names in lower case."""
    capture_content: bool | None = None
    """False: the client sent `x-streamgauge-capture: none`. None: no such header."""
    query_model: str | None = None
    """The model that the query names (`streamgauge.ingest.identifiers.query_model`)."""
    clock_id: str | None = None
    """Clock of `mono_ns`: records with the same id can be compared. None in old logs: the clock of this incarnation."""
    times: Times = "reads"
    """Other times are not those of the events, and are not stored as such."""
    connection_id: str | None = None
    """The WebSocket of this answer (`streamgauge.ingest.websockets`). None: a request of HTTP, or a WebSocket itself."""
    response_index: int | None = None
    """Number of this answer on its WebSocket, from 0."""
    speech_end: SpeechEnd | None = None
    """Its t0 is the end of the user's speech, from this source. None: t0 is another message."""

    @property
    def asks_for_websocket(self) -> bool:
        return any(name == "upgrade" and value.lower() == "websocket" for name, value in self.headers)


class Request(OfStream, frozen=True):
    """The request's body. A longer one than 64 KiB (by default) is condensed if it is JSON, else cut."""

    body: bytes
    truncated: bool
    """The body is longer, or its end was not seen."""
    decoded: bool = False
    """The content coding was decoded: by `streamgauge.ingest.redaction`, or of a body that is condensed."""
    conversation: Conversation | None = None
    """Read by `streamgauge.ingest.redaction` before it removed the text. None: not read."""
    condensed: bool = False
    """Long strings and what is nested deeply are empty (`streamgauge.ingest.condensed_body`)."""
    anatomy: RequestAnatomy | None = None
    """Of a condensed body. None: not read, or an exception."""


class Frames(OfStream, frozen=True):
    """Reads of the response's body, in order of arrival. Transfer coding is removed, content coding kept.

    Those of a WebSocket are the bytes of both directions after its head, as they arrived.

    Only the first `Frames` of a stream has `response`. A response without a body has one `Frames` without frames.
    """

    frames: list[tuple[int, bytes]]
    """(arrival of the read in ns since t0, its body bytes)."""
    response: ResponseHeaders | None = None
    uncaptured_bytes: int = 0
    """Body bytes not captured by rule (kind of the body, size limit): not a loss."""
    wire_bytes: list[int] | None = None
    """Received size of each read, if `streamgauge.ingest.redaction` decoded the content coding. Else None."""
    coding_fault: CodingFault | None = None
    """Fault of the content coding found so far, if it was decoded."""
    from_client: list[int] | None = None
    """In a WebSocket, the indexes of the frames that the client sent. Else None."""


class Closed(OfStream, frozen=True):
    """The exchange ended. Always the last seq of its stream."""

    cause: Cause
    detail: str | None
    """Class name of the exception, or a `Refusal`. Never text from the network."""
    end_ns: int
    """tE: end of the response's body, or time of the failure."""
    connected_ns: int | None
    """When the connection to the upstream was open (≈ 0 for a reused one). None: never."""
    request_sent_ns: int | None
    """When the request's last byte was written upstream. None: never."""
    request_bytes: int
    """Body bytes received from the client."""
    response_bytes: int
    """Body bytes received from the upstream."""
    delivered_bytes: int
    """Body bytes written to the client's socket, minus those known to be undelivered."""
    client_drain_ns: int | None
    """When the client's socket had accepted the last byte. None: not observed."""
    client_left_ns: int | None = None
    """When the tap detected that the client had disconnected. None: it had not."""
    reused_connection: bool = False
    """The connection to the upstream had served an earlier request."""
    tunnel: bool = False
    """An upgraded connection. Only a WebSocket has frames; of other protocols, only bytes are counted."""
    refused_status: int | None = None
    """Status of the tap's own response to a refused request. 505 for HTTP/2, which gets a GOAWAY. None: not refused."""
    first_byte_ns: int | None = None
    """When the first byte of the body arrived if no frame has it: in a tunnel, or not captured by rule."""
    waits: list[Wait] | None = None
    """Disjoint and sorted. In the rest of [0, end_ns] the tap waited for the upstream. None: unknown (tunnels, old logs)."""
    delivered_ns: int | None = None
    """When the client's kernel had acknowledged the last byte, observed by polls of the tap's kernel up to 0.2 s apart. The time of
    the write if the last byte left with it. None: unknown."""


class Lost(OfStream, frozen=True):
    """A gap in one stream: its records [seq, last_seq] will never arrive."""

    last_seq: int
    cause: str
    """queue_full | log_full | log_aged | log_error | record_too_large | recording_failed | redaction_state_lost
    | packets_missing | capture_evicted"""
    at_wall_ns: int
    """When the loss was recorded."""
    bytes: int = 0
    """Captured body bytes that were lost."""
    last: bool = False
    """The stream's `Closed` is lost too: no further record will arrive."""


class Alive(Record, frozen=True):
    """Heartbeat of a tap worker, every few seconds and to every partition of a Kafka topic."""

    tap: str
    tap_worker: int
    incarnation: str
    wall_ns: int
    mono_ns: int
    started_wall_ns: int
    stopping: bool = False
    """The last `Alive` of a clean stop: all streams of this incarnation are closed."""
    counters: dict[str, int] = {}
    """Totals since the start of the incarnation, as on the tap's `/ledger`: streams_opened, records, lost_bytes …"""
    waiting_for_client: list[str] = []
    """Open streams whose client does not read the response, has not received all of it, or still sends the request. At most
    `MAX_WAITING_FOR_CLIENT`."""


class Damaged(Record, frozen=True):
    """Entries of a local log are unreadable: records of streams of these incarnations may never arrive. Sent like `Alive`."""

    incarnations: list[str]
    reason: str
    at_wall_ns: int


MAX_WAITING_FOR_CLIENT = 500

AMAZON_EVENT_STREAM = "vnd.amazon.eventstream"


def body_coding(content_type: str, content_encoding: str) -> str:
    """The content codings of a response, the outermost last. Amazon's binary event stream counts as one: it contains SSE."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind != f"application/{AMAZON_EVENT_STREAM}":
        return content_encoding
    return f"{AMAZON_EVENT_STREAM}, {content_encoding}" if content_encoding else AMAZON_EVENT_STREAM


CODING_STARTS = {"gzip": b"\x1f\x8b", "zstd": b"\x28\xb5\x2f\xfd"}
"""Content coding → the first bytes of what it has coded."""


def coding_of(start: bytes) -> str | None:
    """The content coding of bytes that begin like this. Tools that save a body may keep its coding without a name."""
    return next((coding for coding, first in CODING_STARTS.items() if start.startswith(first)), None)


def captures(opened: Opened, routes: Sequence[str]) -> bool:
    """Whether text of this stream may be kept: its path matches a glob and its client did not opt out."""
    path = opened.path.partition("?")[0]
    return opened.capture_content is not False and any(fnmatchcase(path, route) for route in routes)


StreamRecord = Opened | Request | Frames | Closed | Lost
"""Records that belong to one stream."""
AnyRecord = StreamRecord | Alive | Damaged

_encoder = msgspec.msgpack.Encoder()
_batch_decoder = msgspec.msgpack.Decoder(list[AnyRecord])
_raw_decoder = msgspec.msgpack.Decoder(list[msgspec.Raw])
_record_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)
decode = _record_decoder.decode
"""Decode one record encoded by `encode`. Raises msgspec.DecodeError."""


class _PerThread(threading.local):
    """Compressors and decompressors are not thread-safe. Creating one takes as long as processing a small entry."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_per_thread = _PerThread()


class Poison(msgspec.Struct, frozen=True):
    """Data in the log that is not a record. It is counted and kept as a dead letter, never raised."""

    reason: str
    size: int
    payload: bytes


encode = _encoder.encode
"""Encode one record as MessagePack."""
OPENED = b"\xdc\x00%c\xa6opened" % (len(Opened.__struct_fields__) + 1)
"""First bytes of every encoded `Opened`: an array of more than 15 elements, the tag first."""
_LOST = encode(Lost("-" * 36, 0, 0, "", 0))
_FIRST_RECORDS, _LOST_SEQ_AT = (OPENED, _LOST[:8]), _LOST.index(b"-" * 36) + 36


def streams_begun(encoded: Sequence[bytes]) -> int:
    """How many encoded records are the first ones of their streams: `Opened`, or a `Lost` that stands for it."""
    return sum(r.startswith(OPENED) or r[_LOST_SEQ_AT] == 0 for r in encoded if r.startswith(_FIRST_RECORDS))


def pack(records: Sequence[AnyRecord], *, compress: bool) -> bytes:
    """Pack records into one entry."""
    return _entry(_encoder.encode(records), compress=compress)


def _array(count: int) -> bytes:
    """MessagePack's array 32, before its elements."""
    return b"\xdd" + count.to_bytes(4, "big")


FRAME_HEAD = _encoder.encode((2**64 - 1, bytes(2**16)))[: -(2**16)]
"""MessagePack of a frame before its bytes: of its arrival (uint 64) and size (bin 32), which `native_relay` overwrites."""
_START = _encoder.encode(("frames", "-" * 36, 2**64 - 1, ()))[:-1]  # the other fields have their defaults
_FRAMES_HEAD = (_START + _array(0)).split(b"-" * 36)


def frames_head(stream: str) -> bytes:
    """The MessagePack of a `Frames` before its first frame. `native_relay` overwrites `seq` (uint 64) and the number of frames."""
    return stream.encode().join(_FRAMES_HEAD)


def pack_encoded(encoded: list[bytes]) -> bytes:
    """Pack encoded records into one entry."""
    body = _array(len(encoded)) + b"".join(encoded)
    return _entry(body, compress=len(body) >= _COMPRESSED_FROM_BYTES)


def _entry(body: bytes, *, compress: bool) -> bytes:
    return ZSTD + _per_thread.compressor.compress(body) if compress else PLAIN + body


def pack_damage(partition: str, first: int, end: int, reason: str) -> bytes:
    """Make an entry that reports the entries [first, end) of a local log's partition as unreadable."""
    return DAMAGE + msgspec.msgpack.encode((partition, first, end, reason))


def unpack(payload: bytes) -> tuple[list[AnyRecord], list[Poison]]:
    """(records of an entry, data in it that is not a record). Never raises on invalid bytes."""
    form, body = payload[:1], payload[1:]
    if form == ZSTD:
        try:
            # The library allocates the size in the frame header before it applies the limit: check it first.
            if 0 <= zstandard.frame_content_size(body) > MAX_ENTRY_BYTES:
                return [], [Poison("too_large", len(payload), payload)]
            body = _per_thread.decompressor.decompress(body, max_output_size=MAX_ENTRY_BYTES)
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


def without_streams(payload: bytes, stream_ids: Set[str], *, is_read: bool) -> tuple[bytes, int]:
    """(the entry without these streams, number of removed records). The same object if it stays as it is.

    If the entry `is_read`, data that is not a record is removed, too: it may be theirs.
    """
    if payload[:1] == DAMAGE:
        return payload, 0
    records, poison = unpack(payload)
    kept: list[bytes] = []
    removed, is_changed = 0, bool(poison and is_read)
    for record in records:
        if isinstance(record, Alive) and not stream_ids.isdisjoint(record.waiting_for_client):
            is_changed = True
            waiting = [stream for stream in record.waiting_for_client if stream not in stream_ids]
            record = msgspec.structs.replace(record, waiting_for_client=waiting)
        elif not isinstance(record, Alive | Damaged) and record.stream in stream_ids:
            removed += 1
            continue
        kept.append(encode(record))
    if not (removed or is_changed):
        return payload, 0
    kept += (one.payload for one in poison if not is_read)
    return pack_encoded(kept), removed


def read_damage(payload: bytes) -> tuple[str, int, int] | None:
    """(partition, first, end) of an entry of the format `DAMAGE`. None: the entry is invalid."""
    try:
        partition, first, end, _ = msgspec.msgpack.decode(payload[1:], type=tuple[str, int, int, str])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return (partition, first, end) if payload[:1] == DAMAGE and 0 <= first <= end < 2**62 else None


def _damage(payload: bytes) -> Poison:
    """`Poison` for an entry of the format `DAMAGE`. Its size is the number of unreadable entries."""
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
