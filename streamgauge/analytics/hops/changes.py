"""What a gateway changed: the differences between the two streams of a hop. Pure code on rows of `streams`.

Where the formats (dialects) of the two streams differ, what follows from the format is no difference: equivalent finish reasons,
end markers, and events without output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from streamgauge.analytics.schema.finish_reasons import meanings

Row = Mapping[str, Any]

CHANGES = {
    # hop_changes.what → column of streams that is compared, if it is one column
    "request_model": "request_model", "model": "response_model",
    "status": "http_status", "outcome": "outcome", "error": "error_type",
    "finish_reason": "finish_reason", "streamed": "streamed",
    "input_tokens": "input_tokens", "output_tokens": "output_tokens",
    "reasoning_tokens": "reasoning_tokens", "cached_input_tokens": "cached_input_tokens",
    "text_chars": "text_chars", "reasoning_chars": "reasoning_chars", "text": "output_fingerprint",
    "tool_calls": "tool_call_count", "tool_arguments": "tool_fingerprint", "choices": "choice_count",
    "refusal": None, "audio": None, "image": None, "annotations": None, "progress": None, "other_events": None,
    "malformed": "malformed_events", "heartbeats": None, "done": None,
}  # fmt: skip
"""docs/explanation/measurement.md explains the words."""

CHANGE_COLUMNS = (*filter(None, CHANGES.values()), "dialect", "comment_count", "terminator_ns")
"""Columns of `streams` that `changes` reads."""

_IF_BOTH_KNOWN = (
    "model", "streamed", "text_chars", "reasoning_chars", "tool_calls", "tool_arguments", "choices",
)  # fmt: skip
_ALSO_IF_ONE_IS_NULL = ("status", "outcome", "error", "input_tokens", "output_tokens")
_NULL_IS_ZERO = ("reasoning_tokens", "cached_input_tokens")
_OUTPUT_KINDS = {"refusal": "refusal", "audio": "audio", "image": "image"}
_KINDS_OF_ONE_DIALECT = {"annotations": "annotation", "progress": "progress", "other_events": "other"}
_NOT_RECEIVED = frozenset({"client_abort", "tap_lost", "refused"})


class Change(NamedTuple):
    """One difference. The values are text; None: the stream does not have it."""

    what: str
    outer_value: str | None
    inner_value: str | None


def changes(
    outer: Row, inner: Row, outer_kinds: Mapping[str, int], inner_kinds: Mapping[str, int]
) -> list[Change]:
    """The differences, in the order of `CHANGES`. The kinds are the numbers of events by `events.kind`.

    If the client left or records are lost, only the requested model is compared.
    """
    found: dict[str, tuple[Any, Any]] = {}
    if None not in (models := (outer["request_model"], inner["request_model"])):
        found["request_model"] = models
    if outer["outcome"] not in _NOT_RECEIVED and inner["outcome"] != "tap_lost":
        found.update(_columns(outer, inner))
        found.update(_events(outer, inner, outer_kinds, inner_kinds))
    return [
        Change(what, _text(found[what][0]), _text(found[what][1]))
        for what in CHANGES
        if what in found and found[what][0] != found[what][1]
    ]


def same_finish(outer: str | None, inner: str | None) -> bool:
    """Whether two finish reasons are equal or mean the same in their dialects."""
    if outer == inner:
        return True
    return bool(outer and inner and meanings(outer) & meanings(inner))


def _columns(outer: Row, inner: Row) -> Iterator[tuple[str, tuple[Any, Any]]]:
    one_dialect = outer["dialect"] == inner["dialect"]
    compared_if_known = {
        **dict.fromkeys(_IF_BOTH_KNOWN, True),
        "text": outer["text_chars"] == inner["text_chars"],
        "malformed": one_dialect,
    }
    for what, column in CHANGES.items():
        if column is None:
            continue
        values = outer[column], inner[column]
        if what == "finish_reason":
            if not same_finish(*values):
                yield what, values
        elif what in _NULL_IS_ZERO:
            yield what, (values[0] or 0, values[1] or 0)
        elif what in _ALSO_IF_ONE_IS_NULL or (None not in values and compared_if_known.get(what)):
            yield what, values


def _events(
    outer: Row, inner: Row, outer_kinds: Mapping[str, int], inner_kinds: Mapping[str, int]
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    one_dialect = outer["dialect"] == inner["dialect"]
    for what, kind in _OUTPUT_KINDS.items():  # their number depends on how the gateway splits chunks
        if (kind in outer_kinds) != (kind in inner_kinds):
            yield what, (outer_kinds.get(kind, 0), inner_kinds.get(kind, 0))
    if not (outer["streamed"] and inner["streamed"]):
        return
    if one_dialect:
        for what, kind in _KINDS_OF_ONE_DIALECT.items():
            yield what, (outer_kinds.get(kind, 0), inner_kinds.get(kind, 0))
    heartbeats = [
        (row["comment_count"] or 0) + kinds.get("ping", 0)
        for row, kinds in ((outer, outer_kinds), (inner, inner_kinds))
    ]
    if one_dialect or heartbeats[0] > heartbeats[1]:
        yield "heartbeats", (heartbeats[0], heartbeats[1])
    markers = [None if row["terminator_ns"] is None else "sent" for row in (outer, inner)]
    if one_dialect or (markers[0] and inner["outcome"] != "ok"):
        yield "done", (markers[0], markers[1])


def _text(value: Any) -> str | None:
    return None if value is None else str(value).lower() if isinstance(value, bool) else str(value)
