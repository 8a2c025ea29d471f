"""The tools as functions: SQL in, values of JSON out. Nothing here writes, and nothing depends on the protocol.

The annotations of arguments and answers are the schemas that agents read.

Statements of an agent run in the confined query pool of the SQL page, through its statement filter. `diagnose` and `stream` have
a pool of their own, as the pages have, so that no statement can take their memory. Answers are bounded, because an agent
reads them whole: at most `MAX_ROWS` rows and `MAX_ANSWER_BYTES` of JSON.
Errors are QueryError or ValueError with one line: what failed, why, and what to do.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, TypedDict, cast
from uuid import UUID

import polars as pl
from polars.exceptions import PanicException
from pydantic import Field

from streamgauge.analytics.diagnosis.diagnosis import State
from streamgauge.analytics.diagnosis.report import as_json, read_report
from streamgauge.analytics.query.child_process import MIB, UNTRUSTED
from streamgauge.analytics.query.query_errors import QueryRejected
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.render import json_value
from streamgauge.analytics.reports import blame, one_stream, prompt_context, table_columns
from streamgauge.analytics.reports.one_stream import phases
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.prompt_sizes import CONTEXT_PARTS
from streamgauge.analytics.storage.location import StoreLocation
from streamgauge.settings.values import parse_duration_s

MAX_ROWS = 1000
DEFAULT_ROWS = 100
MAX_ANSWER_BYTES = 48 * 1024
"""JSON of the rows of one answer: 12,000 to 20,000 tokens of a language model."""
MAX_CELL_CHARS = 2000
MAX_GROUPS = 20
MAX_STALLS = 50
MAX_TOOLS = 100
TIMEOUT_S = 20.0
LEAST_RANGE_S, MOST_RANGE_S = 60.0, 30 * 86400.0
OWN_ROWS = 20_000
"""Most rows of a query of the tools themselves."""
LIMITS = replace(UNTRUSTED, max_answer_bytes=16 * MIB, timeout_s=TIMEOUT_S)
CONTENT = ("output_text", "reasoning_text")
"""Columns of a stream with generated text, which can be long. `query` returns them."""
OPEN_STREAMS = "Streams in flight. At most half a second old."


def about(description: str, **limits: Any) -> Any:
    """What the schema of a tool says about an argument."""
    return Field(description=description, **limits)


class Tables(TypedDict):
    """Answer of `describe_tables`: `name, kind, comment, columns`. `columns` are names, or types and comments if asked for."""

    tables: list[dict[str, Any]]


class Rows(TypedDict):
    """Answer of `query`: each row has its values in the order of `columns`."""

    columns: list[str]
    rows: list[list[Any]]
    truncated: bool
    note: str | None


class Verdict(TypedDict):
    """Answer of `diagnose`."""

    state: State
    headline: str
    since: str
    until: str
    causes: list[dict[str, Any]]
    notes: list[str]
    objectives: list[dict[str, Any]]
    in_flight: int
    groups: list[dict[str, Any]]
    offenders_by: str
    offenders: list[dict[str, Any]]
    rate_limits: list[dict[str, Any]]
    note: str | None


class Stream(TypedDict):
    """Answer of `stream`."""

    state: one_stream.State
    row: dict[str, Any]
    phases: list[dict[str, Any]]
    stalls: list[dict[str, Any]]
    waited_for: dict[str, dict[str, int]]
    note: str | None


class Context(TypedDict):
    """Answer of `context`."""

    summary: str | None
    growth: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    servers: list[dict[str, Any]]
    note: str | None


class Tools:
    """The tools on one store. Threads may share it. The first call starts the query processes."""

    def __init__(self, location: StoreLocation, silence: Callable[[], str | None] = lambda: None) -> None:
        """`silence`: why newer rows are missing, without a full stop."""
        self._location, self._silence = location, silence
        self._lock = threading.Lock()
        self._pools: dict[bool, QueryPool] = {}
        """Untrusted and trusted, each from its first use on."""
        self._closed = False

    def close(self) -> None:
        """End the query processes. Running queries fail."""
        with self._lock:
            self._closed = True
        for pool in self._pools.values():
            pool.close()

    def describe_tables(
        self, tables: Annotated[list[str] | None, about("Names of tables or views.")] = None
    ) -> Tables:
        """All tables with the names of their columns, or some with types and comments. Raises QueryError, ValueError."""
        found = {row["name"]: row for row in table_columns.tables(self._untrusted)}
        wanted = [name.lower() for name in tables or ()]
        unknown = [name for name in wanted if name not in found]
        if unknown:
            raise ValueError(
                f"cannot describe {', '.join(map(repr, unknown))}: no such table. Call describe_tables without names to list all."
            )
        keys = ("name", "type", "comment")
        return {
            "tables": [
                row
                | {
                    "comment": row["comment"] or (OPEN_STREAMS if name == "open_streams" else ""),
                    "columns": [dict(zip(keys, c, strict=True)) if wanted else c[0] for c in row["columns"]],
                }
                for name, row in found.items()
                if not wanted or name in wanted
            ]
        }

    def query(
        self,
        sql: Annotated[str, about("One statement.")],
        max_rows: Annotated[int, about("Rows to return, at most.", ge=1, le=MAX_ROWS)] = DEFAULT_ROWS,
    ) -> Rows:
        """The first rows of one SELECT. Raises QueryError."""
        try:
            frame = self._untrusted(sql.strip().rstrip(";"), max_rows)
            return _bounded(frame, max_rows, self._silence_note())
        except UnicodeError:
            raise QueryRejected(
                "cannot run the statement: it is not valid Unicode. Correct the text."
            ) from None
        except (ArithmeticError, ValueError, TypeError, RecursionError, PanicException) as e:
            raise QueryRejected(
                f"cannot return the answer: a value has no equivalent in JSON ({type(e).__name__}). "
                "Cast the column to VARCHAR."
            ) from None

    def diagnose(
        self,
        range: Annotated[str, about("Length of the range before `until`, such as 15m, 2h or 7d.")] = "15m",
        since: Annotated[str | None, about("Begin of the range (ISO 8601, UTC), instead of `range`.")] = None,
        until: Annotated[str | None, about("End of the range (ISO 8601, UTC). Default: now.")] = None,
        models: Annotated[list[str] | None, about("Only these models.")] = None,
        gateways: Annotated[list[str] | None, about("Only these gateways.")] = None,
        clients: Annotated[list[str] | None, about("Only these clients, by id or name.")] = None,
        apps: Annotated[
            list[str] | None, about("Only these programs of clients, as in `client_app`.")
        ] = None,
        labels: Annotated[
            list[str] | None, about("Only streams with these labels: NAME=VALUE, as in `labels`.")
        ] = None,
    ) -> Verdict:
        """The diagnosis of a range of time. Raises QueryError, ValueError."""
        begin, end = _range(range, since, until)
        given = {"model": models, "gateway": gateways, "client": clients, "app": apps, "label": labels}
        chosen = {name: tuple(values or ()) for name, values in given.items()}
        selection = Selection(since=begin, until=end).filtered(chosen)
        report = as_json(read_report(self._query, selection))
        left_out = len(report["groups"]) - MAX_GROUPS
        cut = (
            f"{left_out} groups with fewer requests are left out: filter by model or gateway"
            if left_out > 0
            else None
        )
        shown = {
            "groups": [_known(group) for group in report["groups"][:MAX_GROUPS]],
            "offenders_by": report["offenders_by"],
            "offenders": [_known(offender) for offender in report["offenders"]],
            "rate_limits": [_known(row) for row in report["rate_limits"][:MAX_GROUPS]],
            "note": _note(cut, self._silence_note()),
        }
        return cast("Verdict", report | shown)

    def stream(self, stream_id: Annotated[str, about("UUID from `streams` or `open_streams`.")]) -> Stream:
        """One stream, finished or in flight. Raises QueryError, ValueError."""
        try:
            wanted = UUID(stream_id.strip())
        except ValueError:
            raise ValueError(
                f"cannot find the stream {stream_id[:80]!r}: it is not a UUID. Pass a stream_id of the table streams."
            ) from None
        found = one_stream.find(self._query, wanted)
        if found is None:
            raise ValueError(
                f"cannot find the stream {wanted}: it is not stored, or older than the retention. Check the id, or query streams."
            )
        state, row = found
        if state == "finished":
            return self._finished(wanted, row)
        return {
            "state": state, "row": _known(row), "phases": [], "stalls": [], "waited_for": {},
            "note": _note(self._silence_note()),
        }  # fmt: skip

    def _finished(self, stream_id: UUID, row: Mapping[str, Any]) -> Stream:
        stalls = one_stream.stalls(self._query, stream_id, most=MAX_STALLS).drop("stream_id")
        blamed = blame.of_streams(self._query, [stream_id]).get(str(stream_id), blame.Blame({}, {}, {}))
        waited = {"first_token_ns": dict(blamed.first_token), "whole_stream_ns": dict(blamed.whole)}
        if blamed.server:
            waited["server_ns"] = dict(blamed.server)
        text = None
        if any(row.get(name) for name in CONTENT):
            columns = ", ".join(CONTENT)
            text = (
                f"the generated text is stored: SELECT {columns} FROM streams WHERE stream_id = '{stream_id}'"
            )
        return {
            "state": "finished",
            "row": _known({name: value for name, value in row.items() if name not in CONTENT}),
            "phases": [
                {"name": p.name, "start_ns": p.start_ns, "duration_ns": p.length_ns, "meaning": p.meaning}
                for p in phases(row)
            ],
            "stalls": [_known(stall) for stall in stalls.iter_rows(named=True)],
            "waited_for": {name: parts for name, parts in waited.items() if parts},
            "note": _note(text, self._silence_note()),
        }

    def context(self, session_id: Annotated[str, about("session_id of the table streams.")]) -> Context:
        """What fills the context of a session. Raises QueryError, ValueError."""
        parts = prompt_context.parts(self._query, session_id, most=OWN_ROWS // len(CONTEXT_PARTS))
        if parts.is_empty():
            raise ValueError(
                f"cannot show the context of the session {session_id[:80]!r}: no prompt of it is known. Query streams for its session_id."
            )
        growth = parts.pivot(on="part", index=["request", "turn"], values="tokens", aggregate_function="sum")
        last_of_turn = growth.group_by("turn", maintain_order=True).last().sort("request")
        carried = prompt_context.carried(self._query, session_id)
        of = [
            prompt_context.tools(self._query, session_id, by, most=MAX_TOOLS)
            for by in (prompt_context.TOOL, prompt_context.SERVER)
        ]
        tools, servers = ([_known(row) for row in frame.iter_rows(named=True)] for frame in of)
        left_out = last_of_turn.height - MAX_GROUPS
        return {
            "summary": prompt_context.carried_text(carried) if carried is not None else None,
            "growth": [_known(row) for row in last_of_turn.tail(MAX_GROUPS).iter_rows(named=True)],
            "tools": tools,
            "servers": servers,
            "note": _note(
                f"{left_out} earlier turns are left out" if left_out > 0 else None, self._silence_note()
            ),
        }

    def _silence_note(self) -> str | None:
        silent = self._silence()
        return None if silent is None else f"{silent}: newer rows are missing"

    def _untrusted(self, sql: str, max_rows: int = OWN_ROWS) -> pl.DataFrame:
        """The first `max_rows` + 1 rows. The statement sees only what is public."""
        # Truncated, not refused: an agent that gets some rows and a note writes a better statement than one with an error.
        pool = self._pool(untrusted=True)
        return pool.query(sql, max_rows=max_rows, timeout_s=TIMEOUT_S, truncate=True)

    def _query(self, sql: str) -> pl.DataFrame:
        return self._pool(untrusted=False).query(sql, max_rows=OWN_ROWS, timeout_s=TIMEOUT_S)

    def _pool(self, *, untrusted: bool) -> QueryPool:
        with self._lock:
            if self._closed:
                raise QueryRejected("cannot run the query: the server stops. Start it again.")
            if untrusted not in self._pools:
                limits = LIMITS if untrusted else None
                self._pools[untrusted] = QueryPool(self._location, untrusted=untrusted, limits=limits)
            return self._pools[untrusted]


def _range(length: str, since: str | None, until: str | None) -> tuple[datetime, datetime]:
    end = datetime.now(UTC) if until is None else _instant("until", until)
    if since is not None:
        begin = _instant("since", since)
    else:
        try:
            length_s = parse_duration_s(length)
        except ValueError:
            length_s = None
        if length_s is None:
            raise ValueError(
                f"cannot diagnose the range {length!r}: it is not a duration. Pass one such as 15m, 2h or 7d."
            )
        if length_s > MOST_RANGE_S:
            raise ValueError(
                f"cannot diagnose the range {length!r}: it is longer than 30 days. Pass a shorter one."
            )
        begin = end - timedelta(seconds=length_s)
    if not LEAST_RANGE_S <= (end - begin).total_seconds() <= MOST_RANGE_S:
        raise ValueError(
            f"cannot diagnose from {begin:%Y-%m-%d %H:%M:%S} to {end:%Y-%m-%d %H:%M:%S} UTC: the range is not between one "
            "minute and 30 days. Pass another."
        )
    return begin, end


def _instant(name: str, text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text.strip())
        return (found if found.tzinfo else found.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(
            f"cannot read {name} {text[:80]!r}: it is not ISO 8601. Pass a time such as 2026-11-23T02:10:00Z."
        ) from None


def _bounded(frame: pl.DataFrame, max_rows: int, note: str | None) -> Rows:
    """The rows that fit into `MAX_ANSWER_BYTES`, at most `max_rows`."""
    rows: list[list[Any]] = []
    size, is_cut = 0, False
    for values in frame.head(max_rows).iter_rows():
        whole = [json_value(value) for value in values]
        row = [_shortened(value) for value in whole]
        size += len(json.dumps(row, ensure_ascii=False).encode(errors="replace"))
        if size > MAX_ANSWER_BYTES:
            break  # a shorter row behind it would look like the next one
        rows.append(row)
        is_cut |= row != whole
    missing = long = None
    if len(rows) < frame.height:
        total = f"more than {max_rows}" if frame.height > max_rows else str(frame.height)
        limit = f"{max_rows} rows" if len(rows) == max_rows else f"{MAX_ANSWER_BYTES // 1024} KiB"
        missing = (
            f"only the first {len(rows)} of {total} rows are shown, because the limit is {limit}: aggregate, add WHERE, or "
            "select fewer columns"
        )
    if is_cut:
        long = f"values of more than {MAX_CELL_CHARS:,} characters end with …: select parts with substring()"
    truncated = missing is not None
    return {
        "columns": frame.columns,
        "rows": rows,
        "truncated": truncated,
        "note": _note(missing, long, note),
    }


def _shortened(value: Any) -> Any:
    """Long texts are cut. Long lists and structs become text, which is cut."""
    if isinstance(value, list | dict):
        text = json.dumps(value, ensure_ascii=False)
        return value if len(text) <= MAX_CELL_CHARS else text[:MAX_CELL_CHARS] + "…"
    return value[:MAX_CELL_CHARS] + "…" if isinstance(value, str) and len(value) > MAX_CELL_CHARS else value


def _known(row: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not NULL, as JSON, long ones cut."""
    return {name: _shortened(json_value(value)) for name, value in row.items() if value is not None}


def _note(*sentences: str | None) -> str | None:
    found = [f"{sentence[0].upper()}{sentence[1:]}." for sentence in sentences if sentence]
    return " ".join(found) or None
