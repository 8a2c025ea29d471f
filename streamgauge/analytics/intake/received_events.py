"""What coding agents report over OTLP: log records and metrics, reduced to rows of `agent_events` without text.

Rules
1. Stored are the events of `KINDS` and the metric `EDITED_LINES`, with the attributes of `_ATTRIBUTES`: names, ids, numbers, decisions.
   Everything else is dropped, such as prompts, answers, arguments and output of tools, accounts, and the resource, which can contain
   the command line. Other records and metrics are accepted and counted as ignored.
2. A token or a cost that an agent reports as an event and as a metric is stored once: as the event. It is never added to the tokens of
   `streams`.
3. The session is hashed as that of a request, under the same key, so both are equal where the agent sends it to the provider, too.
4. The id of a row is a hash of its content: a sender may send it again.
5. An event without a time, or more than an hour in the future, is rejected and counted.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import duckdb
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.metrics.v1.metrics_pb2 import AGGREGATION_TEMPORALITY_DELTA

from streamgauge.analytics.intake.commit_queue import CommitQueue, stored_once
from streamgauge.analytics.intake.otlp_messages import AHEAD_NS, Received, Row, parse, scalar, service
from streamgauge.analytics.schema.tables import AGENT_EVENTS
from streamgauge.analytics.telemetry.semconv import OPERATION_DETAILS, PROFILES
from streamgauge.ingest import identifiers
from streamgauge.ingest.keyed_ids import session_hash

TOOL_RESULT, TOOL_DECISION, API_REQUEST, API_ERROR, COMPACTION, EDIT = (
    "tool_result", "tool_decision", "api_request", "api_error", "compaction", "edit",
)  # fmt: skip
KINDS = {
    "claude_code.tool_result": TOOL_RESULT,
    "claude_code.tool_decision": TOOL_DECISION,
    "claude_code.api_request": API_REQUEST,
    "claude_code.api_error": API_ERROR,
    "claude_code.compaction": COMPACTION,
    "codex.tool_result": TOOL_RESULT,
    "codex.tool_decision": TOOL_DECISION,
    "codex.sse_event": API_REQUEST,
    "codex.compaction": COMPACTION,
    "gemini_cli.tool_call": TOOL_RESULT,
    "gemini_cli.api_response": API_REQUEST,
    "gemini_cli.api_error": API_ERROR,
    "gemini_cli.chat_compression": COMPACTION,
}
"""Name of an event of Claude Code, Codex or Gemini CLI → `agent_events.kind`."""
EDITED_LINES = "claude_code.lines_of_code.count"
_PREFIX = "claude_code."
"""Claude Code has it in the body only."""
_COMPLETED = "response.completed"
"""The event of Codex that has tokens."""

_Values = Mapping[str, str | int | float | bool | None]


def _number(value: Any) -> float | None:
    """Agents send some numbers as text."""
    try:
        found = math.nan if value is None or isinstance(value, bool) else float(value)
    except ValueError:
        return None
    return found if math.isfinite(found) and 0 <= found < 2**53 else None


def _count(value: Any) -> int | None:
    found = _number(value)
    return None if found is None else int(found)


def _milliseconds(value: Any) -> int | None:
    found = _number(value)
    return None if found is None else round(found * 1e6)


def _id(value: Any) -> str | None:
    return identifiers.identifier(value) if isinstance(value, str) else None


def _name(value: Any) -> str | None:
    return identifiers.name(str(value)) if isinstance(value, str | int) else None


def _flag(value: Any) -> bool | None:
    return {"true": True, "false": False}.get(str(value).lower())


_ATTRIBUTES: dict[str, tuple[Callable[[Any], Any], tuple[str, ...]]] = {
    "prompt_id": (_id, ("prompt.id", "prompt_id")),
    "tool": (_name, ("tool_name", "function_name")),
    "call_id": (_id, ("tool_use_id", "call_id")),
    "duration_ns": (_milliseconds, ("duration_ms",)),
    "success": (_flag, ("success",)),
    "decision": (_name, ("decision",)),
    "decision_source": (_name, ("source",)),
    "model": (_name, ("model",)),
    "request_id": (_id, ("request_id",)),
    "input_tokens": (_count, ("input_tokens", "input_token_count")),
    "output_tokens": (_count, ("output_tokens", "output_token_count")),
    "cost": (_number, ("cost_usd",)),
    "tokens_before": (_count, ("pre_tokens", "tokens_before")),
    "tokens_after": (_count, ("post_tokens", "tokens_after")),
    "error_type": (_name, ("error_type", "status_code")),
}
"""Column → what stores its value, and its attributes at the agents."""
_ADDED = {
    "input_tokens": ("cache_read_tokens", "cache_creation_tokens"),
    "output_tokens": ("thoughts_token_count",),
}
"""Counts that an agent reports beside a column and that the column of `streams` has in it: Claude Code, Gemini CLI."""


def parse_logs(body: bytes, *, is_json: bool, now_ns: int, max_items: int, session_key: bytes) -> Received:
    """The rows of a request to `/v1/logs`, at most `max_items`. Raises NotOtlp."""
    found = Received()
    rows = _Rows(found, session_key, now_ns, max_items)
    for resource in parse(body, ExportLogsServiceRequest, is_json=is_json).resource_logs:
        agent = service(resource.resource.attributes)
        for scope in resource.scope_logs:
            for record in scope.log_records:
                values = {one.key: scalar(one.value) for one in record.attributes}
                kind = _kind(values, record)
                if kind is not None:
                    columns = {name: of(_first(values, names)) for name, (of, names) in _ATTRIBUTES.items()}
                    rows.add(agent, kind, _time_ns(record, values), values, columns)
                elif not rows.complete(values):
                    found.ignored += 1
    rows.end()
    return found


def parse_metrics(body: bytes, *, is_json: bool, now_ns: int, max_items: int, session_key: bytes) -> Received:
    """The rows of a request to `/v1/metrics`, at most `max_items`. Raises NotOtlp.

    Only differences are stored: a total since the start of the agent would count twice what is sent twice.
    """
    found = Received()
    rows = _Rows(found, session_key, now_ns, max_items)
    for resource in parse(body, ExportMetricsServiceRequest, is_json=is_json).resource_metrics:
        agent = service(resource.resource.attributes)
        for metric in (metric for scope in resource.scope_metrics for metric in scope.metrics):
            if (
                metric.name != EDITED_LINES
                or metric.sum.aggregation_temporality != AGGREGATION_TEMPORALITY_DELTA
            ):
                found.ignored += 1
                continue
            for point in metric.sum.data_points:
                values = {one.key: scalar(one.value) for one in point.attributes}
                lines = _count(point.as_double if point.HasField("as_double") else point.as_int)
                columns = {f"lines_{values.get('type')}": lines, "model": _name(values.get("model"))}
                rows.add(agent, EDIT, point.time_unix_nano, values, columns)
    rows.end()
    return found


def _first(values: _Values, names: tuple[str, ...]) -> Any:
    return next((values[name] for name in names if values.get(name) is not None), None)


def _kind(values: _Values, record: LogRecord) -> str | None:
    name = values.get("event.name")
    kind = KINDS.get(str(name)) or KINDS.get(
        f"{_PREFIX}{name}" if record.body.string_value.startswith(_PREFIX) else ""
    )
    return None if name == "codex.sse_event" and values.get("event.kind") != _COMPLETED else kind


def _time_ns(record: LogRecord, values: _Values) -> int:
    """The time of the event. Codex has it in an attribute only, beside that of the export."""
    if not record.time_unix_nano:
        with contextlib.suppress(ValueError, OverflowError):
            return (
                round(datetime.fromisoformat(str(values.get("event.timestamp"))).timestamp() * 1000) * 10**6
            )
    return record.time_unix_nano or record.observed_time_unix_nano


class _Rows:
    """Adds rows of one request."""

    def __init__(self, found: Received, session_key: bytes, now_ns: int, max_items: int) -> None:
        self._found, self._key, self._until_ns, self._max = found, session_key, now_ns + AHEAD_NS, max_items
        self._rows: list[dict[str, Any]] = []
        self._last: tuple[Any, ...] = ()

    def add(self, agent: str, kind: str, at_ns: int, values: _Values, columns: dict[str, Any]) -> None:
        if not 0 < at_ns <= self._until_ns:
            self._found.rejected["with invalid or future times"] += 1
            return
        if len(self._rows) >= self._max:
            self._found.rejected[f"more than {self._max} events in one request"] += 1
            return
        session = values.get("session.id") or values.get("conversation.id")
        for column, names in _ADDED.items():
            if columns.get(column) is not None:
                columns[column] += sum(_count(values.get(name)) or 0 for name in names)
        if kind != API_ERROR:
            columns["error_type"] = _name(values.get("error_type"))
        if kind in (TOOL_RESULT, TOOL_DECISION):
            columns["model"] = None
        row = {
            "occurred_at": at_ns // 1000, "agent": agent, "kind": kind,
            "session_id": session_hash(str(session), self._key) if session else None,
        }  # fmt: skip
        self._rows.append(columns | row)
        self._last = (session, values.get("event.timestamp"))

    def complete(self, values: _Values) -> bool:
        """Take the id of the response from the record that Gemini CLI writes after the one of the request. False: it is no such record."""
        response_id = _id(values.get(PROFILES["1.41"].response_id))
        if values.get("event.name") != OPERATION_DETAILS or response_id is None or not self._rows:
            return False
        if (
            self._last == (values.get("session.id"), values.get("event.timestamp"))
            and self._rows[-1]["kind"] == API_REQUEST
        ):
            self._rows[-1]["response_id"] = response_id
        return True

    def end(self) -> None:
        names = [name for name in AGENT_EVENTS.types if name != "event_id"]
        for row in self._rows:
            values = tuple(row.get(name) for name in names)
            event_id = hashlib.blake2b(
                repr(values).encode("utf-8", "surrogatepass"), digest_size=12
            ).hexdigest()
            self._found.rows.append((event_id, *values))


QUEUE_EVENTS = 20_000


def event_queue(
    new_cursor: Callable[[], duckdb.DuckDBPyConnection], *, max_events: int = QUEUE_EVENTS
) -> CommitQueue[Row]:
    """The queue of the events of agents. `new_cursor` returns a new connection to the store's tables."""
    counters = ("received", "stored", "doubled", "refused", "turned_away", "ignored")
    return CommitQueue(
        AGENT_EVENTS.name,
        stored_once(AGENT_EVENTS, new_cursor),
        name=AGENT_EVENTS.name,
        counters=counters,
        max_items=max_events,
    )
