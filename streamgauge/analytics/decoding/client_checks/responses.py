"""The rules of clients that read events of the Responses API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamgauge.analytics.decoding.client_checks.base import ClientChecks, is_whole, list_of
from streamgauge.analytics.dialects.tolerant_json import member_of, string_of
from streamgauge.analytics.schema import client_types
from streamgauge.analytics.schema.strict_clients import RESPONSES

_LIFECYCLE = frozenset({"created", "queued", "in_progress", "completed", "incomplete", "failed"})
_COUNTS = ("input_tokens", "output_tokens", "total_tokens")
_DETAILS = (("input_tokens_details", "cached_tokens"), ("output_tokens_details", "reasoning_tokens"))
_ARGUMENTS = {"function_call": "arguments", "custom_tool_call": "input"}
_PART_OF = {
    # events → type of their item, type of their part
    "output_text": ("message", "output_text"), "refusal": ("message", "refusal"), "reasoning_text": ("reasoning", "reasoning_text"),
}  # fmt: skip
_INDEXED = frozenset({
    "output_item.added", "output_item.done", "content_part.added", "output_text.delta", "output_text.done",
    "function_call_arguments.delta",
})  # fmt: skip
"""Events whose output index the SDK for Python reads."""
_WITHOUT_ITEM = ("audio", "mcp_list_tools", "output_item")
_KNOWN = (
    "output_item.", "content_part.", "output_text.", "refusal.", "reasoning_text.", "reasoning_summary_part.", "reasoning_summary_text.",
    "function_call_arguments.", "custom_tool_call_input.", "mcp_call", "code_interpreter_call", "file_search_call.", "web_search_call.",
    "image_generation_call.", "mcp_list_tools.", "audio.",
)  # fmt: skip
"""How the types of all events begin that the SDK for Node knows."""


class _Item:
    """What clients know of an output item."""

    def __init__(self, item: Any) -> None:
        of = item if isinstance(item, dict) else {}
        self.type, self.id, self.call_id = of.get("type"), of.get("id"), of.get("call_id")
        content, summary, arguments = of.get("content"), of.get("summary"), of.get("arguments")
        self.parts = [member_of(part, "type") for part in content] if isinstance(content, list) else None
        self.summaries = len(summary) if isinstance(summary, list) else None
        parts = [*list_of(content), *list_of(summary)]
        self.has_text = any(
            string_of(member_of(part, text)) for part in parts for text in ("text", "refusal")
        )
        self.joins = isinstance(arguments, str)
        member = _ARGUMENTS.get(string_of(self.type), "")
        self.called = bool(member) and isinstance(of.get("name"), str)
        self.is_call = self.called and isinstance(of.get(member), str)

    @property
    def identity(self) -> tuple[Any, ...]:
        """What must stay the same for the SDK for Python."""
        has_call_id = self.type in ("function_call", "custom_tool_call", "shell_call", "shell_call_output")
        return str(self.type), None if has_call_id else str(self.id), str(self.call_id)


class ResponsesChecks(ClientChecks):
    """Events of the Responses API."""

    dialect = RESPONSES
    _began = _completed = False
    _final_text = False
    _response_id: Any = None

    def __init__(self) -> None:
        super().__init__()
        self._items: dict[int, _Item] = {}  # output index → item, as the SDK for Python keeps them
        self._places: list[_Item] = []  # as the SDK for Node keeps them
        self._done: dict[int, _Item] = {}
        self._undone: set[str] = set()
        """Ids of messages and calls without `response.output_item.done`."""
        self._messages: set[Any] = set()  # ids of messages that are not done
        self._reasoning: dict[Any, dict[Any, bool]] = {}
        """Id of reasoning → its parts, and whether each is open."""
        self._streamed: set[str] = set()  # types of items with output
        self._has_deltas = False
        self._called: set[str] = set()  # ids of tool calls
        self._calls_done: set[str] = set()
        self._after_completed: set[Any] = set()
        """What followed `response.completed` and changes the response of the SDK for Node: output indices and others."""

    def lacks(self, arguments: Mapping[Any, str]) -> dict[str, Any]:
        return {
            "call_without_done": self._called - self._calls_done,
            "text_without_delta": self._final_text and not self._has_deltas,
            "event_after_completed": self._after_completed,
        }

    def event(self, name: str, value: dict[str, Any]) -> None:
        kind, index = value.get("type"), value.get("output_index")
        if not self._began:
            self.add_if(missing_response_created=kind != "response.created")
            self._response_id = member_of(value.get("response"), "id")
        if not isinstance(kind, str):
            self.add("missing_type")
            return
        self.add_if(
            usage_after_done=self._done_seen and not self._completed,
            unknown_output_index=isinstance(index, (list, dict)) and kind[9:] in _INDEXED,
        )
        if kind[:9] != "response.":
            self.add_if(foreign_event=kind not in ("keepalive", "error"))
            return
        if type(index) is not int:
            index = None
        item, short = value.get("item"), kind[9:]
        if self._typed is None and kind in client_types.RESPONSE_TYPES:
            item_type = member_of(item, "type")
            unknown = isinstance(item_type, str) and item_type not in client_types.ITEM_TYPES
            self.add_if(incomplete_event=not unknown)
        if short in _LIFECYCLE:
            self._lifecycle(short, value.get("response"))
        elif short == "done":
            self.add("missing_response_completed")
        elif not short.startswith(_KNOWN):
            self.add("foreign_event")
        elif short == "output_item.added":
            self._added(index, item)
        elif short == "output_item.done":
            self._item_done(index, item)
        elif not short.startswith(_WITHOUT_ITEM) and short != "image_generation_call.partial_image":
            self._of_item(short, index, value)
        self._began = True

    def _lifecycle(self, kind: str, response: Any) -> None:
        response_id, output = member_of(response, "id"), member_of(response, "output")
        self.add_if(
            missing_output=not isinstance(output, list),
            item_without_content=any(
                member_of(item, "type") == "message" and not isinstance(item.get("content"), list)
                for item in list_of(output)
            ),
            incomplete_response=kind == "incomplete",
        )
        if kind == "completed" and not response_id:
            self.add("completed_without_id")
        elif response_id != self._response_id:
            self.add("response_id_changes")
        self._places = [_Item(item) for item in list_of(output)]
        if not self._began:
            self._items = {index: _Item(item) for index, item in enumerate(list_of(output))}
        if kind in ("completed", "incomplete"):
            self._completed = True
            self._after_completed = set()
            self._final(kind, response)
        elif self._completed:
            self._after_completed.add(kind)

    def _final(self, kind: str, response: Any) -> None:
        status, usage, output = (member_of(response, member) for member in ("status", "usage", "output"))
        final = {item.identity: item for item in self._places}
        calls = max(sum(item.called for item in of.values()) for of in (self._items, self._done))
        streamed = self._streamed | {string_of(item.type) for item in self._done.values() if item.has_text}
        lost = {"message", "reasoning"} & streamed - {item.type for item in self._places if item.has_text}
        self._final_text |= any(item.type == "message" and item.has_text for item in self._places)
        self._called |= {str(item.call_id) for item in self._places if item.called}
        self.add_if(
            wrong_status=status != kind,
            missing_item_done=self._undone,
            empty_final_output=isinstance(output, list)
            and (lost or sum(item.is_call for item in self._places) < calls),
            unfinished_item=any(
                index not in self._done and final.get(item.identity, _NONE).id != item.id
                for index, item in self._items.items()
            ),
            item_id_changes=any(final.get(item.identity, item).id != item.id for item in self._done.values()),
            missing_usage=member_of(usage, "input_tokens") is None,
        )
        if isinstance(usage, dict):
            details = (member_of(usage[of], k) for of, k in _DETAILS if usage.get(of) is not None)
            counts = [*(usage.get(count) for count in _COUNTS), *details]
            self.add_if(incomplete_usage=not all(isinstance(count, int) for count in counts))

    def _added(self, index: int | None, item: Any) -> None:
        self.add_if(null_item=item is None, missing_item=item is not None and not isinstance(item, dict))
        if item is None:
            return
        known = _Item(item)
        self._places.append(_Item(item))
        if not isinstance(item, dict):
            return
        self.add_if(
            output_index_reused=index in self._items,
            item_without_content=known.type == "message" and known.parts is None,
        )
        if self._completed:
            self._after_completed.add("item")
        if index is not None:
            self._items[index] = known
        if known.called or known.type == "message":
            self._undone.add(str(known.id))
        if known.called:
            self._called.add(str(known.call_id))
        if known.type == "message":
            self._messages.add(str(known.id))
        elif known.type == "reasoning":
            self._reasoning[str(known.id)] = {0: True}

    def _item_done(self, index: int | None, item: Any) -> None:
        done = _Item(item)
        added = self._items.get(index, done) if index is not None else done
        call_id = str(done.call_id)
        self.add_if(
            null_item=item is None,
            missing_item=not isinstance(item, dict),
            item_id_changes=added.identity != done.identity
            or (added.id != done.id and not (added.id is None and done.type in _ARGUMENTS)),
            item_id_repeats=any(
                at != index and known.identity == done.identity for at, known in self._done.items()
            ),
            item_done_again=done.called and call_id in self._calls_done,
            message_not_open=done.type == "message" and str(done.id) not in self._messages,
            reasoning_not_open=done.type == "reasoning" and str(done.id) not in self._reasoning,
            item_without_content=done.type == "message" and done.parts is None,
            call_without_id=done.type == "function_call" and not isinstance(done.call_id, str),
            output_index_gap=index is None or not 0 <= index < len(self._places),
        )
        if index is not None and 0 <= index < len(self._places):
            self._places[index] = done
        if index is not None:
            self._done[index] = done
        if done.called:
            self._called.add(call_id)
            self._calls_done.add(call_id)
        self._undone -= {str(done.id), str(added.id)}
        self._messages.discard(str(done.id))
        self._reasoning.pop(str(done.id), None)

    def _of_item(self, kind: str, index: int | None, value: dict[str, Any]) -> None:
        """Check an event that belongs to an output item."""
        family, _, act = kind.rpartition(".")
        item = self._items.get(index) if index is not None else None
        place = self._places[index] if index is not None and 0 <= index < len(self._places) else None
        delta = value.get("delta")
        python_reads = kind in _INDEXED
        if item is None and place is None:
            self.add("item_not_added" if python_reads else "output_index_gap")
        else:
            self.add_if(output_index_gap=place is None, unknown_output_index=item is None and python_reads)
        if act == "delta":
            self._see_delta(family, delta)
            if item is not None and python_reads:
                self._python_delta(item, family, delta)
        text, at = family.partition(".")[0], value.get("content_index")
        if family == "content_part":
            self._content_part(act, item, place, value.get("part"), at)
        elif text in _PART_OF:
            self._part(text, item if python_reads else None, place, at)
        elif family[:18] == "reasoning_summary_":
            self._summary(family, act, place, value)
        if family in ("output_text", "refusal") and act == "delta":
            self.add_if(delta_of_other_item=str(value.get("item_id")) not in self._messages)

    def _see_delta(self, family: str, delta: Any) -> None:
        if not isinstance(delta, str) or not delta:
            return
        if family in ("output_text", "refusal"):
            self._has_deltas = True
            self._streamed.add("message")
        elif family in ("reasoning_text", "reasoning_summary_text"):
            self._streamed.add("reasoning")

    def _python_delta(self, item: _Item, family: str, delta: Any) -> None:
        """Check a delta that the SDK for Python appends."""
        of = "message" if family == "output_text" else "function_call"
        is_text = isinstance(delta, str) and (item.joins or item.type != "function_call")
        self.add_if(delta_of_other_type=item.type != of, text_not_string=not is_text)

    def _content_part(self, act: str, item: _Item | None, place: _Item | None, part: Any, at: Any) -> None:
        # A member that redaction hides is of any type.
        kind = part.get("type") if isinstance(part, dict) else ""
        if act == "added":
            text = member_of(part, "text")
            self.add_if(
                missing_part=not isinstance(part, dict)
                or (kind == "output_text" and not isinstance(text, str))
            )
            for known in (item, place):
                if known is not None and known.type == "message":
                    self.add_if(item_without_content=known.parts is None)
                if known is not None and (
                    kind is None or (known.type == "message") != (kind == "reasoning_text")
                ):
                    known.parts = [*(known.parts or []), kind]
        elif place is not None and not _has(place.parts, at):
            of_reasoning, of_message = kind in (None, "reasoning_text"), kind != "reasoning_text"
            self.add_if(unknown_part={"reasoning": of_reasoning, "message": of_message}.get(str(place.type)))

    def _part(self, text: str, item: _Item | None, place: _Item | None, at: Any) -> None:
        """Check that the part of a delta, or of the end of its text, was added and has its type."""
        of_item, of_part = _PART_OF[text]
        missing = [
            known is not None
            and known.type == of_item
            and not (_has(known.parts, at, back=back) and (known.parts or [])[at] in (None, of_part))
            for known, back in ((item, True), (place, False))
        ]  # fmt: skip
        if of_item == "reasoning":
            self.add_if(reasoning_part_not_added=missing[1])
        else:
            both = missing[0] and missing[1]
            self.add_if(
                part_not_added=both,
                part_of_other_type=missing[0] and not both,
                unknown_part=missing[1] and not both,
            )

    def _summary(self, family: str, act: str, place: _Item | None, value: dict[str, Any]) -> None:
        at, item_id = value.get("summary_index"), str(value.get("item_id"))
        if place is not None and place.type == "reasoning":
            if act == "added":
                self.add_if(summary_part_not_added=place.summaries is None)
                place.summaries = (place.summaries or 0) + 1
            else:
                self.add_if(summary_part_not_added=not (is_whole(at) and 0 <= at < (place.summaries or 0)))
        parts = self._reasoning.get(item_id)
        if (act == "added" and at == 0) or (act == "done" and family != "reasoning_summary_part"):
            return
        if act == "delta":
            self.add_if(reasoning_not_open=not isinstance(at, int) or parts is None or not parts.get(at))
        else:
            self.add_if(reasoning_not_open=parts is None)
        if parts is not None and act == "added":
            for before, is_open in parts.items():
                parts[before] = is_open is True
            parts[at] = True


_NONE = _Item(None)


def _has(parts: list[Any] | None, at: Any, *, back: bool = False) -> bool:
    """Whether a list has this index. `back`: also an index from its end."""
    return parts is not None and type(at) is int and (-len(parts) if back else 0) <= at < len(parts)
