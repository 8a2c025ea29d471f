"""What a request body says about its conversation, besides its structure. Pure; the state is bounded.

`streamgauge.ingest.condensed_body` walks over a body, and calls the reader at each name, value and container. It does so before it
removes long strings: texts are hashed here, and ids of tool calls are read here.

A message of the user has its role, text, and no result of a tool. Its hash covers its texts alone, as they stand in the body, because
agents move cache marks from message to message.

A tool call has a name and arguments, and the result that follows it has the call's id. Without ids, results are those of the calls in
order (Gemini, Ollama). Calls are equal if their names, arguments and results are, as they stand in the body. They are compared by
checksum and size, which stay in this object. A message of the user begins a new turn, in which nothing is repeated yet.
"""

from __future__ import annotations

import hashlib
import re
from zlib import crc32

import msgspec

from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.identifiers import name as name_of
from streamgauge.ingest.keyed_ids import keyed_hasher
from streamgauge.ingest.records import RequestAnatomy, Segment

MAX_USER_MESSAGES = 4
"""The first ones. Gemini CLI and Qwen Code begin each conversation with the same message about the machine."""
MAX_CALL_IDS = 32
"""The last ones, with results."""
MAX_ID_BYTES = 256
MAX_OPEN_CALLS = 256
"""Calls without a result. The oldest is forgotten."""
MAX_KINDS = 1024
"""Different calls of a turn that are counted."""
_LIST, _REQUEST, _ROLE, _PARTS, _TEXT, _CALL_ID, _RESPONSE, _ID, _CONTENT, _TOOL, _ARGUMENTS, _RESULT = range(
    1, 13
)
_CALL, _FUNCTION = range(13, 15)
_NAMES = {
    b"messages": _LIST, b"input": _LIST, b"contents": _LIST, b"request": _REQUEST, b"role": _ROLE, b"parts": _PARTS,
    b"text": _TEXT, b"content": _CONTENT, b"tool_call_id": _CALL_ID, b"call_id": _CALL_ID, b"tool_use_id": _CALL_ID,
    b"toolUseId": _CALL_ID, b"functionResponse": _RESPONSE, b"function_response": _RESPONSE, b"id": _ID,
    b"name": _TOOL, b"arguments": _ARGUMENTS, b"args": _ARGUMENTS, b"output": _RESULT, b"response": _RESULT,
    b"functionCall": _FUNCTION, b"function_call": _FUNCTION, b"function": _FUNCTION,
}  # fmt: skip
"""`request` has the list of messages in bodies of Code Assist. `input` of a message has the arguments of a call."""
MAX_CACHE_MARK_BYTES = 256
"""A longer mark is part of the result."""
_CACHE_MARK = re.compile(
    rb',\s*"cache_control"\s*:\s*\{[^{}]*\}|"cache_control"\s*:\s*\{[^{}]*\}\s*,\s*(?=\S)'
)
_encode = msgspec.msgpack.Encoder().encode
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_MOST_MESSAGES, _MOST_IDS, _MOST_BYTES = MAX_USER_MESSAGES, MAX_CALL_IDS, MAX_ID_BYTES
_MOST_OPEN, _MOST_KINDS, _MOST_MARK = MAX_OPEN_CALLS, MAX_KINDS, MAX_CACHE_MARK_BYTES


class AnatomyReader:
    """Reads the anatomy of one body. The depth of the body's own members is 1."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._name = self._reading = 0
        """What the last name means, and the value that is being read."""
        self._in_request = self._is_user = self._has_role = self._has_parts = self._has_result = False
        self._list_depth = self._response_depth = 0
        """Of the open list of messages, and of the open result of a function. 0: none."""
        self._hasher: hashlib.blake2b | None = None
        """Of the texts of the open message."""
        self._value = b""
        self._user_messages: list[str] = []
        self._call_ids: list[str] = []
        self._results = 0
        self.raw_depth = 0
        """Of the members of the open container whose bytes are summed. 0: none."""
        self._summed = self._sum = self._sum_bytes = 0
        """What the value is that is being summed (`_ARGUMENTS`, `_RESULT` or 0), its checksum and size."""
        self._raw = b""
        """The last bytes of the container at `raw_depth`, which are not summed yet: a cache mark may begin in them."""
        self._is_tool = self._has_response = self._hashes = False
        self._item_id = self._item_tool = b""
        self._item_call: tuple[int, int] | None = None
        self._item_result: tuple[int, int] | None = None
        """Of the open call or result."""
        self._calls: dict[bytes, tuple[bytes, int, int]] = {}
        """Calls without a result by id. Those without an id have numbers."""
        self._loose_calls = self._loose_results = 0
        self._repeats: dict[tuple[tuple[bytes, int, int], tuple[int, int]], int] = {}
        """Times of each call with its result in this turn."""
        self._most = 0
        self._most_tool = b""
        """Of the results after the last call: the highest number of times, and the tool."""

    def anatomy(self, segments: list[Segment], left_out: int) -> RequestAnatomy:
        """What was read so far, with what `streamgauge.ingest.prompt_skeleton` has read."""
        tool = name_of(self._most_tool.decode("utf-8", "replace")) if self._most else None
        return RequestAnatomy(
            self._user_messages,
            self._call_ids,
            self._results,
            self._most,
            tool,
            msgspec.Raw(_encode(segments)),
            left_out,
        )

    def reads_name(self, depth: int) -> bool:
        """Whether names with this depth have a meaning."""
        return self._list_depth + 4 >= depth if self._list_depth else depth <= 2

    def name(self, name: bytes, depth: int) -> None:
        """A member's name, or a string in an array, which no value follows."""
        self._name = _NAMES.get(name, 0)
        if self._name == _PARTS and depth == self._list_depth + 1:
            self._has_parts = True

    def opens(self, depth: int, is_array: bool, is_value: bool) -> None:
        """An array or an object begins. `depth`: of its members. `is_value`: it is that of the last name."""
        if self.raw_depth:
            return
        if not self._list_depth:
            if is_value and depth == 2 and self._name == _REQUEST:
                self._in_request = True
            elif is_value and is_array and self._name == _LIST and depth == 2 + self._in_request:
                self._list_depth = depth
        elif depth == self._list_depth + 1:
            self._is_user = self._has_role = self._has_parts = self._has_result = self._is_tool = False
            self._hasher = None
            self._begin_item()
        elif is_value and self._name == _RESPONSE:
            self._response_depth = depth
            self._has_result = self._has_response = True
            self._results += 1
        elif is_value and self._name == _FUNCTION and depth == self._list_depth + 4:
            self._item_call = 0, 0  # arguments may be missing or null
        elif is_value:
            self._begin_sum(depth - 1, True)
            if self._summed:
                self.raw_depth = depth
        elif depth == self._list_depth + 3:
            self._begin_item()

    def closes(self, depth: int) -> None:
        """The array or object whose members have this depth ends."""
        if self.raw_depth:
            if depth == self.raw_depth:
                self.raw_depth = 0
                self._sum_raw(len(self._raw))
                self._sum_ends()
            return
        if depth == self._list_depth:
            self._list_depth = 0
        elif self._list_depth and depth == self._list_depth + 1:
            self._item_ends()
            self._message_ends()
        elif self._list_depth and depth == self._list_depth + 3:
            self._item_ends()
        elif depth == 2:
            self._in_request = False
        if depth == self._response_depth:
            self._response_depth = 0

    def value_begins(self, depth: int) -> bool:
        """A text begins as the value of the last name. Whether `read` and `value_ends` are to follow."""
        name, in_message = self._name, depth - self._list_depth
        if self.raw_depth:
            return False
        self._reading = self._summed = 0
        self._hashes = False
        if not self._list_depth:
            if name == _LIST and depth == 1 + self._in_request:
                self._hasher = None
                self._reading, self._hashes = name, True
        elif name and in_message > 0:
            if (
                (name == _ROLE and in_message == 1)
                or (name in (_CALL_ID, _TOOL) and in_message <= 4)
                or (name == _ID and depth == self._response_depth)
            ):
                self._reading = name
            elif name == _ID and 3 <= in_message <= 4:
                self._reading = _CALL
            else:
                self._begin_sum(depth, False)
                self._hashes = name in (_TEXT, _CONTENT) and in_message <= 3 and self._may_be_user()
                if self._hashes or self._summed:
                    self._reading = name
        self._value = b""
        return self._reading != 0

    def _may_be_user(self) -> bool:
        return (self._is_user or not self._has_role) and len(self._user_messages) < _MOST_MESSAGES

    def read(self, part: bytes) -> None:
        """The next bytes of a value."""
        if self._summed:
            self._sum = crc32(part, self._sum)
            self._sum_bytes += len(part)
        if self._hashes:
            if self._hasher is None:
                self._hasher = keyed_hasher(self._key, kind=b"user_message")
            self._hasher.update(part)
        elif not self._summed and len(self._value) <= _MOST_BYTES:
            self._value += part[: _MOST_BYTES + 1]

    def read_raw(self, part: bytes) -> None:
        """The next bytes of the container at `raw_depth`."""
        self._raw += part
        if b'"cache_control"' in self._raw:  # it moves from result to result
            self._raw = _CACHE_MARK.sub(b"", self._raw)
        if len(self._raw) > _MOST_MARK:
            self._sum_raw(len(self._raw) - _MOST_MARK)

    def _sum_raw(self, size: int) -> None:
        self._sum = crc32(self._raw[:size], self._sum)
        self._sum_bytes += size
        self._raw = self._raw[size:]

    def value_ends(self) -> None:
        if self._summed:
            self._sum_ends()
        elif self._reading == _LIST:
            self._is_user, self._has_result = True, False
            self._message_ends()
        elif self._reading == _ROLE:
            self._has_role, self._is_user = True, self._value.lower() == b"user"
            self._is_tool = self._value in (b"tool", b"function")
        elif self._reading == _TOOL:
            self._item_tool = self._value
        elif self._reading == _CALL:
            self._item_id = self._value
        elif self._reading != _TEXT and self._reading != _CONTENT:
            self._item_id = self._value
            self._has_result = True
            self._results += self._reading == _CALL_ID
            call_id = identifier(self._value.decode("utf-8", "replace"))
            if call_id is not None and len(self._value) <= _MOST_BYTES and call_id not in self._call_ids:
                self._call_ids.append(call_id)
                del self._call_ids[:-_MOST_IDS]

    def _begin_sum(self, depth: int, is_container: bool) -> None:
        """Begin to sum the value of the last name, which has this depth, if it has the arguments or the result of a call."""
        name, in_message = self._name, depth - self._list_depth
        self._summed = self._sum = self._sum_bytes = 0
        if not 1 <= in_message <= 4:  # names of deeper members are not read
            return
        if name in (_ARGUMENTS, _LIST):
            self._summed = _ARGUMENTS
        elif name == _RESULT:
            self._summed = _RESULT if in_message == 1 or depth == self._response_depth else 0
        elif name == _CONTENT:
            # A list at the first level has results in its blocks, unless the message itself is one.
            is_result = self._is_tool or self._item_id != b"" or not (is_container or self._has_role)
            self._summed = _RESULT if 3 <= in_message <= 4 or (in_message == 1 and is_result) else 0

    def _sum_ends(self) -> None:
        if self._summed == _RESULT:
            self._item_result = self._sum, self._sum_bytes
        else:
            self._item_call = self._sum, self._sum_bytes
        self._summed = 0

    def _begin_item(self) -> None:
        self._item_id = self._item_tool = b""
        self._item_call = self._item_result = None
        self._has_response = False

    def _item_ends(self) -> None:
        """A call or its result is complete, or an object that is neither."""
        if self._item_result is not None:
            call_id = self._item_id
            if not call_id and (self._has_response or self._is_tool):
                call_id = b"%d" % self._loose_results
                self._loose_results += 1
            call = self._calls.pop(call_id, None)
            if call is not None:
                kind = call, self._item_result
                times = self._repeats.get(kind, 0) + 1
                if times > 1 or len(self._repeats) < _MOST_KINDS:
                    self._repeats[kind] = times
                if times > self._most:
                    self._most, self._most_tool = times, call[0]
        elif self._item_call is not None and self._item_tool:
            call_id = self._item_id
            if not call_id:
                call_id = b"%d" % self._loose_calls
                self._loose_calls += 1
            if len(self._calls) >= _MOST_OPEN:
                del self._calls[next(iter(self._calls))]
            self._calls[call_id] = self._item_tool, self._item_call[0], self._item_call[1]
            self._most = 0
        self._begin_item()

    def _message_ends(self) -> None:
        is_user = self._is_user or (not self._has_role and self._has_parts)
        if is_user and not self._has_result:
            self._calls, self._repeats = {}, {}
            self._most = self._loose_calls = self._loose_results = 0
        if is_user and not self._has_result and self._hasher is not None:
            self._user_messages.append(self._hasher.hexdigest())
            del self._user_messages[_MOST_MESSAGES:]
        self._hasher = None
