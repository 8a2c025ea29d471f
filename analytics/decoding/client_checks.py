"""Find the rules of strict clients that a stream breaks (`streamgauge.analytics.schema.strict_clients`). No I/O, no clock.

Input: the events of one stream with their kinds. Nearly all of them are output, and alike: they differ in their text only. So of
successive outputs the first `OUTPUTS_AFTER_OTHERS` are checked, and of the next `MAX_CHECKED` those that differ from these in more
than their text; and all other events, up to `MAX_CHECKED`. Errors inside a stream break no rule, because every client reports them.

The state that the checks keep is the state of the clients: their lists of choices, blocks and output items, and what of them is open.
The types of members are in `streamgauge.analytics.schema.client_types`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeGuard

import msgspec

from streamgauge.analytics.dialects.events import OUTPUT_KINDS, RawEvent
from streamgauge.analytics.dialects.tolerant_json import FAULTS, json_or_none, member_of, string_of
from streamgauge.analytics.schema import client_types
from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES, RULES

OUTPUTS_AFTER_OTHERS = 2
MAX_CHECKED = 256

_decode = msgspec.json.Decoder().decode


_Shared = tuple[bytes, Sequence[bytes], bytes]
"""What outputs share around strings and numbers that differ: their start, pieces between two of these, and their end."""


class ClientChecks:
    """The checks of one stream. A subclass has the rules of one dialect."""

    dialect = ""
    outputs_left = OUTPUTS_AFTER_OTHERS
    """Output events that are checked before the next other event."""
    has_mark = False
    """The stream begins with a byte order mark."""
    _checked = 0
    _compared = 0  # outputs since the last other event
    _done_seen = _error_seen = False  # `[DONE]` or an error was seen
    _typed: Any = None
    """The current event, if its members have their types."""

    def __init__(self) -> None:
        self._found: set[str] = set()
        self._decode_typed = _TYPED[self.dialect].decode
        self._before_last = self._last = b""  # outputs that were checked, since the last other event
        self._shared: _Shared | None = None

    def check(
        self,
        events: Sequence[RawEvent],
        kinds: Sequence[str],
        chars: Sequence[int],
        finish_reasons: Sequence[str | None],
    ) -> None:
        """Check the next events. `kinds`, `chars` and `finish_reasons`: those of their rows in `events`."""
        of_rows = zip(kinds, finish_reasons, strict=True)
        is_output = [reason is None and kind in OUTPUT_KINDS for kind, reason in of_rows]
        if "tool_call" in kinds and 0 in chars:
            is_output = [of and bool(size) for of, size in zip(is_output, chars, strict=True)]
        is_output.append(False)
        at = one_by_one = 0
        while at < len(events):
            event = events[at]
            data = event.data
            if not is_output[at]:  # among them a tool call without characters, which begins
                self.outputs_left = OUTPUTS_AFTER_OTHERS
                self._before_last = self._last = b""
                self._compared = 0
                if kinds[at] == "error":
                    self._error_seen = True
                    at += 1
                    continue
            elif self.outputs_left:
                self.outputs_left -= 1
                self._before_last, self._last, self._shared = self._last, data, None
            else:
                end = is_output.index(False, at) if at >= one_by_one else at + 1
                if self.alike(events[at:end]):
                    at = end
                    continue
                one_by_one = max(end, one_by_one)
                if end > at + 1 and self.alike(events[at : at + 1]):
                    at += 1
                    continue
                self._before_last, self._last, self._shared = self._last, data, None
            at += 1
            if self._checked <= MAX_CHECKED:
                self._checked += 1
                if data[:1] == b"[" or not self.accepts(event.name, data):
                    self._check(event.name, data)

    def alike(self, events: Sequence[RawEvent]) -> bool:
        """Whether output events differ from those that were checked last in their text alone."""
        if self._compared == MAX_CHECKED:
            return True
        if self._shared is None:
            self._shared = _shared(self._before_last, self._last) if self._before_last else _NOTHING_SHARED
        start, middles, end = self._shared
        if not end:
            return self._checked > MAX_CHECKED
        data = [event.data for event in events[: MAX_CHECKED - self._compared]]
        texts = list(map(itemgetter(slice(len(start), -len(end))), data))
        # One comparison and one search of all events, in C: six times as fast as of each.
        if start + (end + start).join(texts) + end != b"".join(data):
            return False
        between = b"".join(texts) if middles else b""
        are_alike = all(between.count(middle) >= len(data) for middle in middles)
        self._compared += len(data) if are_alike else 0
        return are_alike

    def violations(self, *, ended: bool, framing: Iterable[str], arguments: Mapping[Any, str]) -> list[str]:
        """Codes of the broken rules, sorted.

        `framing`: those that the lines show. `ended`: the stream is complete. `arguments`: of each tool call, by its key.
        """
        found = self._found.union(framing)
        if ended and self._checked <= MAX_CHECKED:
            found.update(code for code, broken in self.lacks(arguments).items() if broken)
        return sorted(code for code in found if self.dialect in RULES[code].clients) if found else []

    def lacks(self, arguments: Mapping[Any, str]) -> dict[str, Any]:
        """Rule → whether the stream breaks it if it ends now."""
        raise NotImplementedError

    def accepts(self, name: str, data: bytes) -> bool:
        """Whether an event breaks no rule, if that shows without `event`, which costs three times as much."""
        try:
            self._typed = typed = self._decode_typed(data)
        except FAULTS:
            self._typed = None
            return False
        # In skipped members, the decoder does not check UTF-8.
        return not self._done_seen and data.isascii() and self._accepts(name, typed)

    def _accepts(self, name: str, event: Any) -> bool:
        return False

    def add(self, *codes: str) -> None:
        self._found.update(codes)

    def add_if(self, **codes: Any) -> None:
        """Add the codes whose value is true."""
        if any(codes.values()):  # rarely
            self._found.update(code for code, broken in codes.items() if broken)

    def _check(self, name: str, data: bytes) -> None:
        if data[:6] == b"[DONE]":
            self._done_seen = True
            self.add_if(named_done=name, padded_done=data != b"[DONE]")
            return
        try:
            value = _decode(data)
        except FAULTS:
            if not data.strip():
                self.add("empty_data")
                return
            value = json_or_none(data)
            if value is None and self.dialect == MESSAGES and name in ("", "ping"):
                self.add("invalid_ping")  # the other clients skip events without a name, and pings
                return
            if value is not None:
                self.add_if(invalid_utf8=not _is_utf8(data))
                self._typed = _converted(value, client_types.EVENTS[self.dialect])
        if isinstance(value, dict):
            self.event(name, value)
        else:
            self.add("invalid_json")

    def event(self, name: str, value: dict[str, Any]) -> None:
        """Check one event that is a JSON object."""
        raise NotImplementedError


_TYPED = {dialect: msgspec.json.Decoder(of) for dialect, of in client_types.EVENTS.items()}


def _converted(value: Any, of: Any) -> Any:
    """The value as this type. None if it differs."""
    try:
        return msgspec.convert(value, of)
    except msgspec.ValidationError:
        return None


_NOTHING_SHARED: _Shared = (b"", (), b"")
_MAX_PIECES = 8
_MAX_MIDDLE_BYTES = 64
_STRING_REST = re.compile(rb'(?:[^"\\]|\\.)*')
_NUMBER_REST = re.compile(rb"[-+.0-9eE]*")


def _shared(first: bytes, second: bytes) -> _Shared:
    """What two outputs share, if they have the same members, and the same indices."""
    pieces: list[bytes] = []
    while len(pieces) < _MAX_PIECES:
        piece = _shared_start(first, second)
        if piece == first == second:
            longest = max(pieces[1:], key=len, default=b"")
            middles = [
                piece[-_MAX_MIDDLE_BYTES:] for piece in pieces[1:] if piece == longest or b'index"' in piece
            ]
            if not pieces:  # the same bytes
                return piece[:-1], (), piece[-1:]
            return (pieces[0], middles, piece) if piece else _NOTHING_SHARED
        before_number = piece.rstrip(b"-+.0123456789eE")
        is_number = before_number.rstrip()[-1:] in (b":", b",", b"[")
        piece = before_number if is_number else piece[: piece.rfind(b'"') + 1]
        if len(piece) < 2 or (is_number and b'index"' in piece[-9:]):
            break
        rest = _NUMBER_REST if is_number else _STRING_REST
        first, second = (
            event[found.end() :] for event in (first, second) if (found := rest.match(event, len(piece)))
        )
        pieces.append(piece)
    return _NOTHING_SHARED


def _shared_start(first: bytes, second: bytes) -> bytes:
    count = min(len(first), len(second))
    unlike_bits = int.from_bytes(first[:count]) ^ int.from_bytes(second[:count])
    return first[: count - (unlike_bits.bit_length() + 7) // 8]


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_whole(value: Any) -> TypeGuard[int]:
    return isinstance(value, int)  # and so may be a boolean, as in Python


def _is_true(value: Any) -> bool:
    """Whether JavaScript takes the value as true."""
    return bool(value) or isinstance(value, (list, dict))


def _list_of(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


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


class _Chat(ClientChecks):
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
        node_reads = _is_true(value.get("id")) or not self._chunks
        readers = {"python": is_chunk, "node": node_reads and "usage" in value}
        named = frozenset(name for name, reads in readers.items() if reads)
        self._usage_kept_by = named if has_usage else (self._usage_kept_by or frozenset()) - named
        self.add_if(missing_id=has_usage and not node_reads)

    def _choice(self, choice: dict[str, Any], places: int, *, python_reads: bool) -> None:
        """`places`: the SDK for Python has a place for the choices below this index."""
        index, delta = choice.get("index"), choice.get("delta")
        if not _is_whole(index):
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
        self.add_if(wrong_tool_calls=_is_true(calls) and not isinstance(calls, (list, str)))
        for call in _list_of(calls):
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
                    indexed = all(_is_whole(member_of(entry, "index")) for entry in value)
                    self.add_if(
                        unindexed_list=not indexed and any(isinstance(e, (dict, list)) for e in first)
                    )

    def _tool_call(self, state: _ChoiceState, call: dict[str, Any]) -> None:
        index, function, kind = call.get("index"), call.get("function"), call.get("type")
        if not _is_whole(index):
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
        known.has_function |= _is_true(function)
        self._text(known.joined, "arguments", member_of(function, "arguments"))


def _carries(choice: Any) -> bool:
    """Whether a choice has a finish reason or anything that a client reads."""
    delta = member_of(choice, "delta")
    read = ("content", "refusal", "tool_calls")
    return bool(member_of(choice, "finish_reason") or any(member_of(delta, member) for member in read))


_TEXT_OF = {
    "text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking"), "compaction_delta": ("compaction", "content"),
}  # fmt: skip
"""Delta → the type of its block, and its member."""
_TOOLS = ("tool_use", "server_tool_use")
_OF_TEXT = ("text", "compaction")
_OPENS = {"text": _OF_TEXT, "compaction": _OF_TEXT, "thinking": ("thinking", "redacted_thinking")}
"""Text of a type → the blocks that the AI SDK adds it to."""


class _Messages(ClientChecks):
    """Events of Anthropic's Messages."""

    dialect = MESSAGES
    _message_id: Any = None
    _started = _open = _stopped = _finished = _early_finish = False
    _content = False
    """`content` of `message_start` is a list."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: list[Any] = []
        """Types of the blocks in the order of their starts, which is the index of the SDKs."""
        self._places: dict[int, int] = {}  # index → place in `_blocks`
        self._without_text: set[int] = set()  # places of blocks that started without a text
        self._active: dict[int, Any] = {}
        """Index of a block that has not stopped → its type, as the AI SDK keeps it."""
        self._early: set[int] = set()  # blocks that started before the message
        self._with_input: set[int] = set()  # indices with a part of an input
        self._reused: set[int] = set()  # of them, those of another block since
        self._skipped: defaultdict[int, list[str]] = defaultdict(list)
        """Index → parts of the input that the SDKs skip."""
        self._late: set[int] = set()  # blocks that stopped before a part of their input
        self._after_stop: set[str] = set()  # kinds of events after the last `message_stop`

    def lacks(self, arguments: Mapping[Any, str]) -> dict[str, Any]:
        faults = [_json_fault(self._read_input(*of)) for of in arguments.items() if self._is_tool(of[0])]
        return {
            "missing_message_stop": not self._stopped,
            "missing_message_start": not self._started or (self._early_finish and not self._finished),
            "unstopped_tool": "tool_use" in self._active.values(),
            "delta_after_block": any(not _json_fault(arguments.get(index, "]")) for index in self._late),
            "finish_after_stop": "message_delta" in self._after_stop,
            "content_after_stop": "content_block_delta" in self._after_stop,
            "malformed_input": any(faults),
            "unparsable_input": any(of and "trailing" not in of and "','" not in of for of in faults),
        }

    def _read_input(self, index: int, text: str) -> str:
        """The input of a tool call without the parts that the SDKs skip."""
        for part in self._skipped[index]:
            text = text.replace(part, "", 1)
        return text

    def _is_tool(self, index: Any) -> bool:
        """Whether the SDKs add deltas of this index to a tool call."""
        return self._places.get(index) == index and self._blocks[index] in _TOOLS

    def _accepts(self, name: str, event: Any) -> bool:
        """Accept a message in the order that the API documents: each block at the next index, and its deltas while it is open."""
        kind = event.__struct_config__.tag
        if self._stopped or self._started == (kind == "message_start") or not name:
            return False
        if kind == "message_start":
            return self._accepts_start(event.message)
        if kind == "message_delta":
            self._finished |= bool(event.delta.stop_reason)
            return bool(event.delta.stop_reason) and not isinstance(event.usage.input_tokens, float)
        if kind == "message_stop":
            self._stopped, self._open = not self._active, bool(self._active)
            return self._stopped
        return kind != "ping" and self._accepts_block(kind, event)

    def _accepts_start(self, message: Any) -> bool:
        if message.content or self._places:
            return False
        self._started = self._open = True
        self._content = message.content == []
        self._message_id = message.id or None
        return True

    def _accepts_block(self, kind: str, event: Any) -> bool:
        index = int(event.index)
        if index != event.index:
            return False
        if kind == "content_block_start":
            if index != len(self._blocks):
                return False
            self.add_if(start_without_content=not self._content)
            self._places[index], self._active[index] = index, event.content_block.__struct_config__.tag
            self._blocks.append(self._active[index])
            return True
        if index not in self._active or self._places[index] != index or index in self._without_text:
            return False
        of = self._active[index]
        if kind == "content_block_stop":
            del self._active[index]
            return True
        delta = event.delta.__struct_config__.tag
        if delta == "input_json_delta":
            self._with_input.add(index)
            return of in _TOOLS
        return delta in _TEXT_OF and _TEXT_OF[delta][0] == of

    def event(self, name: str, value: dict[str, Any]) -> None:
        kind = value.get("type")
        self.add_if(wrong_type=self._typed is None and isinstance(kind, str))
        if not isinstance(kind, str):
            self.add("missing_type")
            self._skip(value.get("index"), value.get("delta"))
            return
        if kind == "ping":
            return
        if self._stopped and not (kind == "message_delta" and self._finished):
            self._after_stop.add(kind)
        self.add_if(missing_event_name=not name)
        if kind == "message_start":
            self._start(value.get("message"))
        elif kind[:13] == "content_block":
            self._block(kind, value)
        elif kind == "message_delta":
            self._message_delta(value.get("delta"), value.get("usage"))
        elif kind == "message_stop":
            self._stopped, self._open = True, False
            self._after_stop.clear()
            self.add_if(unstopped_block=any(of != "tool_use" for of in self._active.values()))
        else:
            self.add("foreign_event")

    def _start(self, message: Any) -> None:
        message_id, usage = member_of(message, "id"), member_of(message, "usage")
        self.add_if(
            repeated_message_start=self._started,
            second_message=self._open and message_id != self._message_id,
            message_without_usage=not isinstance(usage, dict),
            start_without_usage=member_of(usage, "input_tokens") is None,
        )
        if not self._started:
            content = member_of(message, "content")
            self._blocks = [member_of(block, "type") for block in _list_of(content)]
            self._content = isinstance(content, list)
            self._early, self._places = set(self._places), {}
        self._started = self._open = True
        self._message_id = message_id

    def _message_delta(self, delta: Any, usage: Any) -> None:
        reason, count = member_of(delta, "stop_reason"), member_of(usage, "input_tokens")
        if not self._started:
            self._early_finish = True
            return
        self.add_if(
            missing_delta=not isinstance(delta, dict),
            null_delta=delta is None or usage is None,
            delta_without_usage=not isinstance(usage, dict),
            uncounted_delta=isinstance(usage, dict) and usage.get("output_tokens") is None,
            finish_overwritten=self._finished and not reason,
            wrong_count=count is not None and type(count) is not int,
        )
        self._finished = bool(reason)

    def _block(self, kind: str, value: dict[str, Any]) -> None:
        index = value.get("index")
        if kind == "content_block_start":
            self._block_start(index if _is_whole(index) else None, value.get("content_block"))
        elif not _is_whole(index):
            self.add("block_without_index")
            self._skip(0, value.get("delta"))
        elif kind == "content_block_delta":
            self._delta(index, value.get("delta"))
        else:
            self.add_if(
                stop_without_block=self._started and not -len(self._blocks) <= index < len(self._blocks)
            )
            self._active.pop(index, None)

    def _block_start(self, index: int | None, block: Any) -> None:
        kind = member_of(block, "type")
        self.add_if(
            start_without_content=self._started and not self._content,
            start_without_block=not isinstance(block, dict),
            missing_message_start=not self._started and kind == "tool_use",
            reopened_tool=index is not None and self._active.get(index) == "tool_use",
        )
        if kind in ("text", "thinking") and not isinstance(text := block.get(kind), str):
            self.add_if(block_without_text=True, block_without_thinking=_is_true(text) and text != [])
            self._without_text.add(len(self._blocks))
        if index is not None:
            if index in self._with_input:
                self._reused.add(index)
            self._places[index] = len(self._blocks)
            self._active[index] = kind
        self._blocks.append(kind)

    def _delta(self, index: int, delta: Any) -> None:
        kind, place = member_of(delta, "type"), self._places.get(index)
        count = len(self._blocks)
        read_from = self._blocks[index] if -count <= index < count else None
        self.add_if(
            missing_delta=not isinstance(delta, dict),
            null_delta=delta is None,
            delta_without_type=isinstance(delta, dict) and not isinstance(kind, str),
            delta_without_block=self._started and not -count <= index < count,
            delta_before_blocks=self._started and not count,
            missing_message_start=(place is None and index in self._early)
            if self._started
            else place is not None,
        )
        text: Any = ""
        of: tuple[str, ...] = ()
        if kind == "input_json_delta":
            text, of = delta.get("partial_json"), _TOOLS
            if place is not None and index not in self._active:
                self._late.add(index)
        elif isinstance(kind, str) and kind in _TEXT_OF:
            block, member = _TEXT_OF[kind]
            text, of = delta.get(member), (block,)
            if self._active.get(index) not in _OPENS[block]:  # the AI SDK has no open block for it
                was_open = place is not None and index not in self._active and self._blocks[place] == block
                self.add("delta_after_block" if was_open else "inactive_block")
        elif kind == "signature_delta":
            self.add_if(inactive_block=self._active.get(index) not in _OPENS["thinking"])
        if not self._started or of != _TOOLS:
            self._skip(index, delta)
        carried = place is not None and self._blocks[place] in of
        reads = read_from in of
        self.add_if(
            text_not_string=reads and of != _TOOLS and not isinstance(text, str) and text != [],
            unjoined_text=reads and not isinstance(text, str),
            block_index_gap=carried and place != index and (not reads or index in self._reused),
            block_without_thinking=reads and read_from == "thinking" and index in self._without_text,
        )
        if of == _TOOLS:
            self._with_input.add(index)

    def _skip(self, index: Any, delta: Any) -> None:
        """See a part of an input that the SDKs skip. Without an index, the accumulator takes it for the first block."""
        self._skipped[index if _is_whole(index) else 0].append(string_of(member_of(delta, "partial_json")))


def _json_fault(text: str) -> str:
    """What makes a text neither JSON nor the start of it; "" if it is."""
    try:
        _decode(text or "{}")
    except (*FAULTS, UnicodeEncodeError) as e:
        return "" if "truncated" in str(e) else str(e)
    return ""


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
        parts = [*_list_of(content), *_list_of(summary)]
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


class _Responses(ClientChecks):
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
                for item in _list_of(output)
            ),
            incomplete_response=kind == "incomplete",
        )
        if kind == "completed" and not response_id:
            self.add("completed_without_id")
        elif response_id != self._response_id:
            self.add("response_id_changes")
        self._places = [_Item(item) for item in _list_of(output)]
        if not self._began:
            self._items = {index: _Item(item) for index, item in enumerate(_list_of(output))}
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
                self.add_if(summary_part_not_added=not (_is_whole(at) and 0 <= at < (place.summaries or 0)))
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


CHECKS: dict[str, type[ClientChecks]] = {of.dialect: of for of in (_Chat, _Messages, _Responses)}
"""Dialect → its checks."""
