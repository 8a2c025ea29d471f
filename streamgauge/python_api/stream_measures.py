"""The measures of one stream from its events. No I/O, no clock.

docs/explanation/measurement.md has the definitions. All times are ns since the request. None means unknown or undefined.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import polars as pl

from streamgauge.analytics.decoding.decoded_body import DecodedBody
from streamgauge.analytics.decoding.stream_output import EventColumns
from streamgauge.analytics.dialects.events import OUTPUT_KINDS
from streamgauge.analytics.measures import stream_latency
from streamgauge.analytics.measures.measure import add_chunks, add_first_times, add_tokens, empty_row
from streamgauge.analytics.measures.outcome import Verdict
from streamgauge.analytics.schema.stall_limit import StallLimit
from streamgauge.analytics.schema.stream_columns import StreamRow

_DEFAULT_STALL = StallLimit()
_REQUIRED = ("at_ns", "kind")
_READ = ("seq", "read_seq", "at_ns", "kind", "choice", "tokens", "bytes")


class UnmeasurableEvents(ValueError):
    """Events that `measure` cannot measure. The message says what to do."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event, with the columns of table `events`."""

    at_ns: int | None
    """Arrival of the read that completed the event. None if it was not recorded."""
    kind: str
    """`text`, `reasoning`, `refusal`, `tool_call`, `audio` and `image` are output; others are `start`, `finish`, `usage`, `terminal`, …"""
    seq: int = 0
    read_seq: int = 0
    """Number of the read. Events of one read share a time."""
    event_name: str | None = None
    choice: int | None = None
    chars: int | None = None
    tokens: int | None = None
    """Where the server lists them. None otherwise: a chunk is not a token."""
    bytes: int | None = None
    finish_reason: str | None = None

    @classmethod
    def of_columns(cls, columns: EventColumns, *, is_timed: bool) -> tuple[Event, ...]:
        """The events of a decoder, in order."""
        of: dict[str, Sequence[Any]] = {
            name: getattr(columns, name) for name in cls.__struct_fields__ if name != "seq"
        }
        of["event_name"] = [name or None for name in columns.event_name]
        if not is_timed:
            of["at_ns"] = [None] * len(columns)
        rows = enumerate(zip(*of.values(), strict=True))
        return tuple(cls(seq=seq, **dict(zip(of, row, strict=True))) for seq, row in rows)


class Measures(msgspec.Struct, frozen=True, kw_only=True):
    """The measures of one stream, with the names and meanings of the columns of `streams`. None means unknown or undefined."""

    event_count: int
    output_event_count: int
    ttfc_ns: int | None
    ttft_ns: int | None
    ttfo_ns: int | None
    ttst_ns: int | None
    last_output_ns: int | None
    output_tokens: int | None
    """Tokens of the rates: as passed, reported by the server or listed by every output event."""
    itl_ns: float | None
    tps_user: float | None
    tps_e2e: float | None
    icl_p50_ns: float | None
    icl_p95_ns: float | None
    icl_p99_ns: float | None
    icl_max_ns: int | None
    stall_count: int | None
    """Gaps longer than 500 ms and 5 times the median gap."""
    stalled_ns: int | None
    burstiness: float | None


def measure(events: Any, *, output_tokens: int | None = None) -> Measures:
    """Compute the measures of one stream from its events.

    `events` are `Event`s, such as `read(…).events`, mappings, or rows of table `events` in any form: a DuckDB relation, a
    polars or pandas DataFrame, an Arrow table. `at_ns` and `kind` are required. `choice`, `tokens`, `bytes` and `read_seq` are
    used if present, and rows are sorted by `seq`. `output_tokens` is the server's count; without it the rates need events that
    list their tokens.

    The result is equal to the row in `streams`, except for streams that waited for the client or the tap (`output_waits`)
    and events with output for several choices: both are not part of `events`.

    Raises `UnmeasurableEvents` if times are missing, or if the rows belong to several streams.

    >>> import streamgauge as sg
    >>> events = [
    ...     sg.Event(at_ns=180_000_000, kind="start"),
    ...     sg.Event(at_ns=200_000_000, kind="text"),
    ...     sg.Event(at_ns=220_000_000, kind="text"),
    ...     sg.Event(at_ns=260_000_000, kind="text"),
    ... ]
    >>> found = sg.measure(events, output_tokens=4)
    >>> found.ttft_ns, found.ttst_ns, found.icl_max_ns
    (200000000, 20000000, 40000000)
    >>> found.itl_ns, found.tps_user
    (20000000.0, 50.0)
    """
    columns = _columns_of(_rows_of(events))
    chunks = stream_latency.chunk_latencies(columns, _DEFAULT_STALL)
    tokens = chunks.listed_tokens or None if output_tokens is None else output_tokens
    row = empty_row()
    last_ns = row["last_output_ns"] = stream_latency.last_output_ns(columns)
    row["output_tokens"] = tokens
    if tokens and last_ns is not None:
        rates = stream_latency.token_rates(tokens, last_ns, chunks.output_span_ns)
        row["itl_ns"], row["tps_user"], row["tps_e2e"] = rates
    return _measures(columns, chunks, row)


def measures_of_body(body: DecodedBody, verdict: Verdict) -> Measures:
    """The measures of a decoded response with times."""
    chunks, row = stream_latency.chunk_latencies(body.events, _DEFAULT_STALL), empty_row()
    row["last_output_ns"] = stream_latency.last_output_ns(body.events)
    add_tokens(row, body, chunks, ended_ok=verdict.outcome == "ok")
    return _measures(body.events, chunks, row)


def _measures(columns: EventColumns, chunks: stream_latency.ChunkLatencies, row: StreamRow) -> Measures:
    row["event_count"] = len(columns)
    row["output_event_count"] = sum(map(OUTPUT_KINDS.__contains__, columns.kind))
    add_first_times(row, columns)
    add_chunks(row, chunks)
    values: Mapping[str, Any] = row
    return Measures(**{name: values[name] for name in Measures.__struct_fields__})


def _rows_of(events: Any) -> list[Mapping[str, Any]]:
    """The events as mappings, sorted by `seq` if rows of a table have it."""
    # Data frames and Arrow tables are iterables as well, but of columns or batches.
    if isinstance(events, Iterable) and not hasattr(events, "__arrow_c_stream__"):
        found = list(events)
        if all(isinstance(event, Event) for event in found):
            return [msgspec.structs.asdict(event) for event in found]
        if not all(isinstance(event, Mapping) for event in found):
            raise UnmeasurableEvents(
                "cannot measure: the events are neither streamgauge.Event nor rows of table `events`. "
                "Pass `read(…).events`, a DataFrame or a DuckDB relation."
            )
        return _in_order(found)
    try:
        table = pl.DataFrame(events)
    except (TypeError, ValueError) as e:
        raise UnmeasurableEvents(
            f"cannot measure {type(events).__name__}: {e}. Pass a list of events, a DataFrame or a DuckDB relation."
        ) from None
    if missing := [name for name in _REQUIRED if name not in table.columns]:
        raise _without(missing)
    if "stream_id" in table.columns and (streams := table["stream_id"].n_unique()) > 1:
        raise _of_several(streams)
    rows: list[Mapping[str, Any]] = []
    # Only these columns: a column of text would make Python objects of the whole answer.
    rows += table.select([name for name in _READ if name in table.columns]).to_dicts()
    return _in_order(rows)


def _in_order(rows: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    # SQL gives rows without ORDER BY in any order. Events of one read share a time, so that only `seq` has their order.
    if rows and all(row.get("seq") is not None for row in rows):
        rows.sort(key=lambda row: row["seq"])
    return rows


def _columns_of(rows: Sequence[Mapping[str, Any]]) -> EventColumns:
    if missing := [name for name in _REQUIRED if any(name not in row for row in rows)]:
        raise _without(missing)
    if (streams := len({str(row["stream_id"]) for row in rows if "stream_id" in row})) > 1:
        raise _of_several(streams)
    if any(row["at_ns"] is None for row in rows):
        raise UnmeasurableEvents(
            "cannot measure: the events have no times, as those of a file. "
            "Pass timed reads to `read`, or rows of table `events`."
        )
    columns = EventColumns()
    for i, row in enumerate(rows):
        read_seq = row.get("read_seq")
        # Without read numbers each event counts as a read of its own, which is what the burstiness of separate reads needs.
        columns.read_seq.append(i if read_seq is None else read_seq)
        columns.at_ns.append(row["at_ns"])
        columns.kind.append(row["kind"])
        columns.event_name.append("")
        columns.choice.append(row.get("choice"))
        columns.chars.append(0)
        columns.tokens.append(row.get("tokens"))
        columns.bytes.append(row.get("bytes") or 0)
        columns.finish_reason.append(None)
    return columns


def _without(missing: Sequence[str]) -> UnmeasurableEvents:
    return UnmeasurableEvents(
        f"cannot measure: the events have no {' and no '.join(missing)}. Select all columns of table `events`."
    )


def _of_several(streams: int) -> UnmeasurableEvents:
    return UnmeasurableEvents(
        f"cannot measure: the events belong to {streams} streams. "
        "Filter by one stream_id; table `streams` has the measures of all."
    )
