"""What a request body says about its conversation, besides its structure. Pure; the state is bounded.

`streamgauge.ingest.condensed_body` walks over a body, and calls the reader at each name, value and container. It does so before it
removes long strings: texts are hashed here, and ids of tool calls are read here.

A message of the user has its role, text, and no result of a tool. Its hash covers its texts alone, as they stand in the body, because
agents move cache marks from message to message.
"""

from __future__ import annotations

import hashlib

from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.keyed_ids import keyed_hasher
from streamgauge.ingest.records import RequestAnatomy

MAX_USER_MESSAGES = 4
"""The first ones. Gemini CLI and Qwen Code begin each conversation with the same message about the machine."""
MAX_CALL_IDS = 32
"""The last ones, with results."""
MAX_ID_BYTES = 256
_LIST, _REQUEST, _ROLE, _PARTS, _TEXT, _CALL_ID, _RESPONSE, _ID = range(1, 9)
_NAMES = {
    b"messages": _LIST, b"input": _LIST, b"contents": _LIST, b"request": _REQUEST, b"role": _ROLE, b"parts": _PARTS,
    b"text": _TEXT, b"content": _TEXT, b"tool_call_id": _CALL_ID, b"call_id": _CALL_ID, b"tool_use_id": _CALL_ID,
    b"toolUseId": _CALL_ID, b"functionResponse": _RESPONSE, b"function_response": _RESPONSE, b"id": _ID,
}  # fmt: skip
"""`request` has the list of messages in bodies of Code Assist."""
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_MOST_MESSAGES, _MOST_IDS, _MOST_BYTES = MAX_USER_MESSAGES, MAX_CALL_IDS, MAX_ID_BYTES


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

    def anatomy(self) -> RequestAnatomy:
        """What was read so far."""
        return RequestAnatomy(self._user_messages, self._call_ids, self._results)

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
        if not self._list_depth:
            if is_value and depth == 2 and self._name == _REQUEST:
                self._in_request = True
            elif is_value and is_array and self._name == _LIST and depth == 2 + self._in_request:
                self._list_depth = depth
        elif depth == self._list_depth + 1:
            self._is_user = self._has_role = self._has_parts = self._has_result = False
            self._hasher = None
        elif is_value and self._name == _RESPONSE:
            self._response_depth = depth
            self._has_result = True
            self._results += 1

    def closes(self, depth: int) -> None:
        """The array or object whose members have this depth ends."""
        if depth == self._list_depth:
            self._list_depth = 0
        elif self._list_depth and depth == self._list_depth + 1:
            self._message_ends()
        elif depth == 2:
            self._in_request = False
        if depth == self._response_depth:
            self._response_depth = 0

    def value_begins(self, depth: int) -> bool:
        """A text begins as the value of the last name. Whether `read` and `value_ends` are to follow."""
        name, in_message = self._name, depth - self._list_depth
        self._reading = 0
        if not self._list_depth:
            if name == _LIST and depth == 1 + self._in_request:
                self._hasher = None
                self._reading = name
        elif in_message > 0 and (
            (name == _ROLE and in_message == 1)
            or (name == _CALL_ID and in_message <= 4)
            or (name == _ID and depth == self._response_depth)
            or (name == _TEXT and in_message <= 3 and self._may_be_user())
        ):
            self._reading = name
        self._value = b""
        return self._reading != 0

    def _may_be_user(self) -> bool:
        return (self._is_user or not self._has_role) and len(self._user_messages) < _MOST_MESSAGES

    def read(self, part: bytes) -> None:
        """The next bytes of a value."""
        if self._reading in (_TEXT, _LIST):
            if self._hasher is None:
                self._hasher = keyed_hasher(self._key, kind=b"user_message")
            self._hasher.update(part)
        elif len(self._value) <= _MOST_BYTES:
            self._value += part[: _MOST_BYTES + 1]

    def value_ends(self) -> None:
        if self._reading == _LIST:
            self._is_user, self._has_result = True, False
            self._message_ends()
        elif self._reading == _ROLE:
            self._has_role, self._is_user = True, self._value.lower() == b"user"
        elif self._reading != _TEXT:
            self._has_result = True
            self._results += self._reading == _CALL_ID
            call_id = identifier(self._value.decode("utf-8", "replace"))
            if call_id is not None and len(self._value) <= _MOST_BYTES and call_id not in self._call_ids:
                self._call_ids.append(call_id)
                del self._call_ids[:-_MOST_IDS]

    def _message_ends(self) -> None:
        is_user = self._is_user or (not self._has_role and self._has_parts)
        if is_user and not self._has_result and self._hasher is not None:
            self._user_messages.append(self._hasher.hexdigest())
            del self._user_messages[_MOST_MESSAGES:]
        self._hasher = None
