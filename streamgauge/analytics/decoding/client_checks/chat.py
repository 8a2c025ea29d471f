"""The rules of clients that read chunks of chat completions."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import msgspec

from streamgauge.analytics.decoding.client_checks.base import ClientChecks, is_true, is_whole, list_of
from streamgauge.analytics.dialects.tolerant_json import member_of, string_of
from streamgauge.analytics.schema.strict_clients import CHAT


class _ChoiceState:
    """What clients know of one choice."""

    def __init__(self) -> None:
        self.role: Any = None
        self.role_of_chunk: Any = None
        """A role that the SDK for Python reads."""
        self.finished = False
        self.joined: dict[Any, Any] = {}
        """Member → its first value that is not null. It decides whether the SDK for Python joins later ones to it."""
        self.calls: dict[int, _CallState] = {}
        self.current: int | None = None
        """The call of the last delta."""


class _CallState:
    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.type: Any = None
        self.named = self.has_function = False
        self.joined: dict[Any, Any] = {}


_BOTH = frozenset({"python", "node"})


class ChatChecks(ClientChecks):
    """Chunks of chat completions."""

    dialect = CHAT
    _usage_kept_by: frozenset[str] | None = None
    """Clients whose last usage is the one that was reported, of "python" and "node". None: no usage was reported."""
    _chunks = 0

    def __init__(self) -> None:
        super().__init__()
        self._choices: defaultdict[int, _ChoiceState] = defaultdict(_ChoiceState)
        self._named_calls: set[int] = set()  # indices of calls, of all choices, as the AI SDK keeps them

    def lacks(self, arguments: Mapping[Any, str]) -> dict[str, Any]:
        choices = [choice for index, choice in self._choices.items() if index >= 0]
        calls = [call for choice in choices for call in choice.calls.values()]
        kept = self._usage_kept_by
        return {
            "missing_role": any(choice.role != "assistant" for choice in choices),
            "missing_finish": any(not choice.finished for choice in choices),
            "missing_choice": 0 not in self._choices,
            "late_error": self._error_seen,
            "hidden_first_event" if self.has_mark else "wrong_object": any(
                choice.role == "assistant" and not choice.role_of_chunk for choice in choices
            ),
            "tool_call_without_type": not all(call.type and call.has_function for call in calls),
            "wrong_tool_type": any(call.type not in (None, "function") for call in calls),
            "usage_not_last": kept is not None and "python" not in kept,
            "usage_then_null": kept is not None and "node" not in kept,
        }

    def _accepts(self, name: str, event: Any) -> bool:
        """Accept text, the finish reason and the usage of one choice, and usage alone."""
        usage, choices = event.usage, event.choices
        if usage:
            if type(usage.prompt_tokens) is not int and type(usage.completion_tokens) is not int:
                return False
        elif self._usage_kept_by is not None or not choices:
            return False
        if not event.id or event.object != "chat.completion.chunk" or event.error is not msgspec.UNSET:
            return False
        if len(choices) > 1 or (self.has_mark and self._checked == 1):
            return False
        if choices and not self._accepts_choice(choices[0]):
            return False
        self._chunks += 1
        if usage:
            self._usage_kept_by = _BOTH
        return True

    def _accepts_choice(self, choice: Any) -> bool:
        delta, index, finish = choice.delta, choice.index, choice.finish_reason
        if not delta or choice.message is not msgspec.UNSET:
            return False
        if delta.reasoning_details or delta.annotations or delta.refusal or delta.tool_calls:
            return False
        if index != 0 and (index not in self._choices or index > len(self._choices) or not self._chunks):
            return False
        state = self._choices[int(index)]
        if finish and state.current is not None:
            return False
        if delta.role:
            state.role = state.role_of_chunk = delta.role
        if finish:
            state.finished = True
        # The SDK for Python joins text to the first value, if that is text, too.
        text = delta.content
        return not isinstance(text, str) or isinstance(state.joined.setdefault("content", text), str)

    def event(self, name: str, value: dict[str, Any]) -> None:
        choices, usage = value.get("choices"), value.get("usage")
        is_hidden = self.has_mark and self._checked == 1  # to the SDK for Python
        is_chunk = value.get("object") == "chat.completion.chunk" and not is_hidden
        if not isinstance(choices, list):
            if not self._done_seen:
                in_chunk = "wrong_choice" if isinstance(choices, str) else "missing_choices"
                # The SDK for Python reads an empty object as an empty list.
                self.add(in_chunk if is_chunk and choices != {} else "foreign_event")
            return
        has_usage = any(
            type(member_of(usage, count)) is int for count in ("prompt_tokens", "completion_tokens")
        )
        carries = has_usage or any(map(_carries, choices))
        after_done = (has_usage and self._usage_kept_by is None) or any(map(self._is_new, choices))
        self.add_if(
            usage_after_done=self._done_seen and after_done,
            hidden_first_event=carries and is_hidden,
            wrong_object=carries and not is_chunk and not is_hidden,
            null_error="error" in value and value["error"] is None,
            wrong_type=self._typed is None,
        )
        if not self._done_seen:
            self._see_usage(value, has_usage=has_usage, is_chunk=is_chunk)
        elif not after_done:
            return
        first = not self._chunks
        self._chunks += is_chunk
        for choice in choices:
            if isinstance(choice, dict):
                self._choice(choice, len(choices) if first else len(self._choices) + 1, python_reads=is_chunk)
            elif choice is None or is_chunk:
                self.add("missing_choices" if choice is None else "wrong_choice")

    def _is_new(self, choice: Any) -> bool:
        """Whether a choice carries more than a finish reason that was seen, or the first role."""
        if member_of(member_of(choice, "delta"), "role") and not any(c.role for c in self._choices.values()):
            return True
        finished = any(known.finished for known in self._choices.values())
        return _carries(choice) and not (finished and not _carries({"delta": member_of(choice, "delta")}))

    def _see_usage(self, value: dict[str, Any], *, has_usage: bool, is_chunk: bool) -> None:
        if not has_usage and self._usage_kept_by is None:
            return
        node_reads = is_true(value.get("id")) or not self._chunks
        readers = {"python": is_chunk, "node": node_reads and "usage" in value}
        named = frozenset(name for name, reads in readers.items() if reads)
        self._usage_kept_by = named if has_usage else (self._usage_kept_by or frozenset()) - named
        self.add_if(missing_id=has_usage and not node_reads)

    def _choice(self, choice: dict[str, Any], places: int, *, python_reads: bool) -> None:
        """`places`: the SDK for Python has a place for the choices below this index."""
        index, delta = choice.get("index"), choice.get("delta")
        if not is_whole(index):
            # The SDK for Node takes digits as the index of a choice, which does not finish.
            self.add_if(missing_index=python_reads, missing_finish=string_of(index).isdigit())
            return
        self.add_if(choice_index_gap=python_reads and index >= places)
        state = self._choices[index if type(index) is int else -1]
        state.finished |= bool(choice.get("finish_reason"))
        logprobs = choice.get("logprobs")
        self.add_if(
            wrong_logprobs=logprobs is not None and not isinstance(logprobs, dict),
            message_beside_delta="message" in choice and not member_of(choice["message"], "content"),
            missing_delta=python_reads and not isinstance(delta, dict),
        )
        if not isinstance(delta, dict):
            self.add_if(text_not_string=choice.get("text"))
            return
        role = delta.get("role")
        state.role = role or state.role
        state.role_of_chunk = state.role_of_chunk or (role if python_reads else None)
        self.add_if(wrong_role=role not in (None, "assistant"))
        for member in ("content", "refusal"):
            self._text(state.joined, member, delta.get(member))
        self._lists(state.joined, delta)
        calls = delta.get("tool_calls")
        self.add_if(wrong_tool_calls=is_true(calls) and not isinstance(calls, (list, str)))
        for call in list_of(calls):
            if isinstance(call, dict):
                self._tool_call(state, call)
            else:
                self.add("wrong_choice")
        if choice.get("finish_reason") and state.current is not None:
            self.add_if(tool_call_without_type=not state.calls[state.current].type)

    def _text(self, joined: dict[Any, Any], member: Any, value: Any) -> None:
        """Check text that clients append to what `joined` has of the member."""
        first = joined.setdefault(member, value) if value is not None else None
        is_text = isinstance(value, str)
        has_parts = isinstance(value, list) and any(member_of(part, "text") for part in value)
        self.add_if(
            text_not_string=not is_text and value not in (None, [], False, 0),
            unjoined_text=has_parts or (value and not isinstance(first, str)),
        )

    def _lists(self, joined: dict[Any, Any], delta: dict[str, Any]) -> None:
        """Check lists other than tool calls: the SDK for Python joins their entries by `index`."""
        for member, value in delta.items():
            if isinstance(value, list) and member not in ("tool_calls", "content"):
                first = joined.setdefault(member, value)
                if first is not value and isinstance(first, list):
                    indexed = all(is_whole(member_of(entry, "index")) for entry in value)
                    self.add_if(
                        unindexed_list=not indexed and any(isinstance(e, (dict, list)) for e in first)
                    )

    def _tool_call(self, state: _ChoiceState, call: dict[str, Any]) -> None:
        index, function, kind = call.get("index"), call.get("function"), call.get("type")
        if not is_whole(index):
            self.add("tool_call_without_index")
            return
        call_id, known = string_of(call.get("id")), state.calls.get(index)
        name = member_of(function, "name")
        self.add_if(
            tool_call_without_function=not isinstance(function, dict),
            tool_type_changes=kind == "custom"
            or (known is not None and known.type and "type" in call and kind != known.type),
            # The SDK for Node checks the type of a call when another one begins.
            tool_call_without_type=state.current not in (None, index) and not state.calls[state.current].type,
            tool_call_without_name=index not in self._named_calls and not string_of(name).strip(),
        )
        state.current = index
        self._named_calls.add(index)
        if known is None:
            self.add_if(tool_index_gap=index != len(state.calls))
            known = state.calls[index] = _CallState(call_id)
        elif name and isinstance(name, str) and known.named:
            self.add("tool_index_reused" if call_id and call_id != known.id else "repeated_tool_name")
        known.named |= bool(name)
        known.type = kind or known.type
        known.has_function |= is_true(function)
        self._text(known.joined, "arguments", member_of(function, "arguments"))


def _carries(choice: Any) -> bool:
    """Whether a choice has a finish reason or anything that a client reads."""
    delta = member_of(choice, "delta")
    read = ("content", "refusal", "tool_calls")
    return bool(member_of(choice, "finish_reason") or any(member_of(delta, member) for member in read))
