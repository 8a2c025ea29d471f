"""The segments of a prompt, read from a request body while it streams. Pure; the state is bounded.

`streamgauge.ingest.condensed_body` walks over a body, and calls the reader at each name, string and container directly in the container
whose members matter (`watched` is their depth). Everything below is only hashed.

- Segments stand in the order in which the model reads them, whatever the order of the body's members: model, settings by name, tools,
  system text, messages. Within a message: reasoning, content, calls.
- A segment is a string, or a container with its brackets. Its hash covers its bytes as they stand in the body, without cache marks:
  `cache_control` with the comma beside it. A `cachePoint` marks the segment before it.
- A block that has only a text is the same segment as a string: clients send a block where they set a cache mark, and later a string.
- An element of `input` without parts is a segment itself, like a call of the Responses API: all of its bytes.
- Settings are the parameters that belong to the cached prefix by the vendors' documentation. Parameters of sampling are none.
- A result has the name of the tool that its call names.
"""

from __future__ import annotations

import msgspec

from streamgauge.ingest.identifiers import name as name_of
from streamgauge.ingest.records import Segment
from streamgauge.ingest.segment_hash import SegmentHash, hash_keys

MAX_SEGMENTS = 2048
"""Of each of these: settings, tools, system text, messages; and of all together."""
MAX_NAME_BYTES = 256
MAX_SCALAR_BYTES = 64
MAX_OPEN_CALLS = 256
"""Calls whose names are kept for their results. The oldest is forgotten."""
MAX_DEPTH = 7
"""Of names that matter. `streamgauge.ingest.condensed_body` keeps no deeper ones from read to read."""

# What an open container is.
(_NONE, _BODY, _TOOLS, _SYSTEM, _SYSTEM_OBJECT, _MESSAGES, _MESSAGE, _PARTS, _CALLS, _IMAGES, _THOUGHTS, _DEEP, _SEGMENT, _INNER,
 _CONTENT, _BLOCK, _MARK, _GROUP) = range(18)  # fmt: skip
# What a name means. Several of them are names in the body and in a message.
(_MODEL, _SETTING, _PROMPT, _WRAPPER, _TEXT, _INPUT, _ROLE, _TYPE, _NAME, _ID, _AUDIO, _FUNCTION, _POINT, _TTL, _MIME, _LAST,
 _DECLARATIONS) = range(20, 37)  # fmt: skip
_BODY_NAMES = {
    **dict.fromkeys([b"model", b"modelId", b"model_id"], _MODEL),
    **dict.fromkeys([
        b"tool_choice", b"toolChoice", b"function_call", b"functionCallingConfig", b"function_calling_config", b"parallel_tool_calls",
        b"response_format", b"format", b"output_format", b"output_config", b"thinking", b"think", b"enable_thinking", b"reasoning",
        b"reasoning_effort", b"speed", b"context_management", b"mcp_servers", b"web_search_options", b"cachedContent",
        b"cached_content", b"chat_template_kwargs", b"cache_salt", b"prompt_cache_key", b"safety_mode", b"documents",
        b"additionalModelRequestFields",
    ], _SETTING),
    **dict.fromkeys([b"tools", b"functions", b"integrations"], _TOOLS),
    **dict.fromkeys([
        b"system", b"instructions", b"system_prompt", b"systemInstruction", b"system_instruction", b"preamble", b"additional_instructions",
    ], _SYSTEM),
    **dict.fromkeys([b"messages", b"contents", b"chat_history", b"additional_messages", b"item"], _MESSAGES),
    **dict.fromkeys([b"prompt", b"inputs", b"input_prefix"], _PROMPT),
    **dict.fromkeys([b"request", b"toolConfig", b"tool_config", b"parameters", b"session", b"response", b"thread"], _WRAPPER),
    b"input": _INPUT, b"text": _TEXT, b"message": _LAST, b"cache_control": _MARK,
}  # fmt: skip
"""`request` is of Code Assist, `input` and `parameters` of DashScope, `session` and `response` of the Realtime API."""
_MESSAGE_NAMES = {
    b"role": _ROLE, b"type": _TYPE, b"name": _NAME, b"tool_name": _NAME, b"tool_call_id": _ID, b"call_id": _ID, b"id": _ID,
    b"content": _CONTENT, b"parts": _CONTENT, b"message": _CONTENT, b"refusal": _CONTENT, b"tool_calls": _CALLS,
    b"function_call": _FUNCTION, b"images": _IMAGES, b"audio": _AUDIO, b"reasoning_content": _THOUGHTS, b"reasoning": _THOUGHTS,
    b"thinking": _THOUGHTS, b"tool_plan": _THOUGHTS, b"tools": _TOOLS, b"cache_control": _MARK,
}  # fmt: skip
_PART_NAMES = {
    b"type": _TYPE, b"name": _NAME, b"server_label": _NAME, b"id": _ID, b"call_id": _ID, b"tool_use_id": _ID, b"toolUseId": _ID,
    b"mimeType": _MIME, b"mime_type": _MIME, b"content": _CONTENT, b"cache_control": _MARK, b"cachePoint": _POINT,
    b"functionDeclarations": _DECLARATIONS, b"function_declarations": _DECLARATIONS, b"ttl": _TTL, b"text": _TEXT,
    **dict.fromkeys([
        b"function", b"functionCall", b"function_call", b"functionResponse", b"function_response", b"toolUse", b"toolResult",
        b"toolSpec", b"inlineData", b"inline_data", b"fileData", b"file_data",
    ], _FUNCTION),
}  # fmt: skip
_KINDS_BY_NAME = {
    b"text": "text", b"thought": "reasoning", b"reasoningContent": "reasoning", b"image": "image", b"video": "file", b"document": "file",
    b"audio": "audio", b"functionCall": "tool_call", b"function_call": "tool_call", b"toolUse": "tool_call", b"executableCode": "tool_call",
    b"functionResponse": "tool_result", b"function_response": "tool_result", b"toolResult": "tool_result",
    b"codeExecutionResult": "tool_result",
}  # fmt: skip
"""Of parts without a `type`."""
_KINDS_BY_TYPE = {
    **dict.fromkeys([b"text", b"input_text", b"output_text", b"refusal", b"message"], "text"),
    **dict.fromkeys([b"image", b"image_url", b"input_image", b"computer_screenshot"], "image"),
    **dict.fromkeys([b"audio", b"input_audio", b"audio_url", b"output_audio"], "audio"),
    **dict.fromkeys([b"file", b"input_file", b"document", b"video", b"video_url", b"container_upload"], "file"),
    **dict.fromkeys([b"thinking", b"redacted_thinking", b"reasoning", b"reasoning_text", b"summary_text", b"thought"], "reasoning"),
}  # fmt: skip
_RANKS = {"reasoning": 0, "tool_call": 2, "item": 3}
"""Of what a message has besides its content."""
_SETTING_KINDS = frozenset({"model", "settings"})
_SYSTEM_ROLES, _TOOL_ROLES = frozenset({"system", "developer"}), frozenset({"tool", "function"})
_SPACE, _COMMA = b" ,"
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_MOST, _MOST_NAME, _MOST_SCALAR, _MOST_OPEN, _DEEPEST = (
    MAX_SEGMENTS, MAX_NAME_BYTES, MAX_SCALAR_BYTES, MAX_OPEN_CALLS, MAX_DEPTH
)  # fmt: skip
_known_names: dict[bytes, str] = {}
"""Names that may be stored as they are. Others may be secrets, and are not kept."""


def _named(raw: bytes) -> str | None:
    found = _known_names.get(raw)
    if found is None and raw:
        text = raw[:_MOST_NAME].decode("utf-8", "replace")
        found = name_of(text)
        if found == text and len(_known_names) < _MOST:
            _known_names[raw] = found
    return found


def _kind_of_type(kind: bytes) -> str:
    found = _KINDS_BY_TYPE.get(kind)
    if found is None:
        is_call = kind.endswith((b"_call", b"tool_use"))
        found = (
            "tool_call"
            if is_call
            else "tool_result"
            if kind.endswith((b"_output", b"tool_result"))
            else "other"
        )
    return found


class PromptSkeleton:
    """Reads the segments of one body. `key`: of the hashes."""

    def __init__(self, key: bytes) -> None:
        self.watched = 0
        """Depth of the members of the innermost container whose members matter. 0: before the body."""
        self._frames = bytearray(MAX_DEPTH + 2)
        """By depth: what the container is."""
        self._name = 0
        self._name_text = b""
        """The last name, and what it means."""
        self._data = b""
        self._from = self._base = 0
        """The read, its first byte that is not hashed, and the bytes before the read."""
        keys = hash_keys(key)
        self._hash = SegmentHash(keys)
        self._rest = SegmentHash(keys)
        """Of the open message without its segments."""
        self._text_hash = SegmentHash(keys)
        self._in_text = False
        """Of the member `text` of the open segment, and whether it is open."""
        self._is_plain = False
        """The open segment has only a `type`, a text and cache marks. It is the same as a string."""
        self._before = SegmentHash(keys)
        """Of the open segment before a comma, if a cache mark may follow."""
        self._depth = self._began = 0
        """Of the open segment: the depth of its members (−1: a string, 0: none is open), its first byte."""
        self._kind = ""
        """Given by its place, else "": `_type` and `_shape` decide."""
        self._setting = b""
        self._type = self._tool = self._id = self._mime = self._mark = b""
        self._shape = ""
        self._is_point = self._is_first = self._skips = self._drops_comma = False
        """It is a `cachePoint`; nothing precedes in the open container; a cache mark is open; the next comma belongs to one."""
        self._scalar_from, self._scalar = -1, b""
        """Where the value of a setting begins, and what earlier reads have of it. −1: it is none, or a string or a container."""
        self._messages_begun = 0
        self._in_message = False
        self._role = self._item_type = self._item_tool = self._item_id = self._item_mark = b""
        self._pending: list[tuple[int, str, bytes, int, bytes, bytes]] = []
        """Segments of the open message: rank, kind, tool, size, hash, mark."""
        self._last: list[Segment] = []
        """Where the last segment is."""
        self._body_mark = b""
        self._calls: dict[bytes, bytes] = {}
        """Tools by the ids of calls without a result."""
        self._settings: list[Segment] = []
        self._tools: list[Segment] = []
        self._system: list[Segment] = []
        self._messages: list[Segment] = []
        self._current: list[Segment] = []
        """Cohere's current message."""
        self._left_out = 0

    def segments(self) -> tuple[list[Segment], int]:
        """What was read so far, and how many segments are left out at the end."""
        settings = sorted(self._settings, key=_order_of_settings)
        current = [msgspec.structs.replace(one, message=self._messages_begun) for one in self._current]
        found = [*settings, *self._tools, *self._system, *self._messages, *current]
        left_out = self._left_out + max(0, len(found) - _MOST)
        del found[_MOST:]
        if self._body_mark and found and found[-1].mark is None:
            found[-1] = msgspec.structs.replace(found[-1], mark=_named(self._body_mark))
        return found, left_out

    # -- reads ---------------------------------------------------------------------------------------------------------

    def begin_read(self, data: bytes) -> None:
        self._data, self._from = data, 0

    def end_read(self, name_from: int) -> None:
        """`name_from`: where a name begins that this read does not end. −1: no string is open. −2: another string is."""
        size = len(self._data)
        if self._scalar_from >= 0:
            text = self._data
            self._scalar = (self._scalar + text[self._scalar_from : size])[:_MOST_SCALAR]
            self._scalar_from = 0
        if self._depth or self._in_message:
            if self._depth > 0 and name_from >= -1:
                at = self._mark_from(size if name_from < 0 else name_from)
                if at or self._is_first:
                    self._flush(at)
                    self._before.set_to(self._hash)
            self._flush(size)
        self._base += size
        self._data = b""

    def _mark_from(self, at: int) -> int:
        """The first byte that a cache mark takes away whose name begins at this byte: the comma before it, unless it is the first
        member. 0: an earlier read may have the comma."""
        text, start = self._data, self._from
        while not self._is_first and at > start and (text[at - 1] <= _SPACE or text[at - 1] == _COMMA):
            at -= 1
        return at

    def _flush(self, to: int) -> None:
        """Hash the bytes before `to`."""
        if self._skips:
            return
        if self._drops_comma:
            text = self._data
            while self._from < to and (text[self._from] <= _SPACE or text[self._from] == _COMMA):
                self._from += 1
            self._drops_comma = self._from == to
        one = self._text_hash if self._in_text else self._hash if self._depth else self._rest
        one.feed(self._data, self._from, to)
        self._from = to

    # -- strings -------------------------------------------------------------------------------------------------------

    def string_begins(self, at: int, is_value: bool) -> None:
        """A string begins in the watched container: a name, the value of the last name, or an element of an array."""
        frame, name, kind = self._frames[self.watched], self._name, ""
        if not is_value:
            if self._scalar_from >= 0:
                self._scalar_ends(at)
            elif self._skips and frame != _MARK:  # the value of the mark was no object
                self._skips, self._from = False, at
            if frame == _TOOLS:
                kind = "tool"
            elif frame == _SYSTEM:
                kind = "system"
            elif frame in (_MESSAGES, _PARTS):
                kind = "text"
            elif frame == _IMAGES:
                kind = "image"
            elif frame == _THOUGHTS:
                kind = "reasoning"
        elif frame == _BODY:
            self._scalar_from = -1
            if name == _SETTING:
                kind = "settings"
            elif name == _MODEL:
                kind = "model"
            elif name == _SYSTEM:
                kind = "system"
            elif name in (_INPUT, _PROMPT, _TEXT, _LAST, _MESSAGES):
                kind = "text"
        elif frame == _MESSAGE:
            if name == _CONTENT:
                kind = "text"
            elif name == _THOUGHTS:
                kind = "reasoning"
        elif frame == _SEGMENT and name == _TEXT and self._is_plain:
            self._flush(at + 1)
            self._in_text = True
            self._text_hash.begin()
        if kind:
            if not self._in_message and kind == "text" and name != _LAST:
                self._messages_begun += 1
            self._begin(at + 1, -1, kind)

    def string_ends(self, held: bytes, string_from: int, at: int, is_value: bool) -> None:
        """`held`: what earlier reads have of the string. The rest is in [`string_from`, `at`), with its first quote if nothing is held."""
        frame = self._frames[self.watched]
        if self._depth < 0:
            if frame == _TOOLS:
                self._tool = self._text(held, string_from, at)
            self._end(at)
        elif is_value:
            if self._in_text:
                self._flush(at)
                self._in_text = False
                self._hash.feed(self._text_hash.digest(), 0, 8)
            elif frame >= _MESSAGE and self._name >= _ROLE:
                self._value(frame, self._name, self._text(held, string_from, at))
        elif frame in (_BODY, _SYSTEM_OBJECT, _MESSAGE) or frame >= _SEGMENT:
            self._name_ends(frame, self._text(held, string_from, at), string_from if not held else -1, at)

    def _text(self, held: bytes, string_from: int, at: int) -> bytes:
        text = self._data  # in compiled code a pointer, whose slices are cheap
        return held[1:] + text[string_from:at] if held else text[string_from + 1 : at]

    def _value(self, frame: int, name: int, text: bytes) -> None:
        if len(text) > _MOST_NAME:
            text = text[: _MOST_NAME + 1]
        if frame == _MESSAGE:
            if name == _ROLE:
                self._role = text
            elif name == _TYPE:
                self._item_type = text
            elif name == _NAME:
                self._item_tool = text
            elif name == _ID and (not self._item_id or self._name_text != b"id"):
                self._item_id = text
        elif frame == _MARK:
            if name == _TTL or (name == _TYPE and not self._mark):
                self._mark = text
        elif frame in (_SEGMENT, _INNER):
            if name == _TYPE and frame == _SEGMENT:
                self._type = text
            elif name == _NAME and (not self._tool or self._name_text == b"name"):
                self._tool = text
            elif name == _ID:
                self._id = text
            elif name == _MIME:
                self._mime = text

    def _name_ends(self, frame: int, text: bytes, string_from: int, at: int) -> None:
        """`string_from`: −1 if an earlier read has its start."""
        if frame == _BODY:
            self._name = _BODY_NAMES.get(text, 0)
            if self._name == _SETTING:
                self._scalar_from, self._scalar = at + 1, b""
        elif frame in (_MESSAGE, _SYSTEM_OBJECT):
            self._name = _MESSAGE_NAMES.get(text, 0)
        else:
            self._name = _PART_NAMES.get(text, 0)
            if frame == _SEGMENT:
                if self._name not in (_TYPE, _TEXT, _MARK):
                    self._is_plain = False
                if not self._shape or text == b"thought":
                    self._shape = _KINDS_BY_NAME.get(text, "")
                if self._name == _DECLARATIONS and self._kind == "tool":  # a list of tools
                    self._depth, self._frames[self.watched] = 0, _GROUP
                elif self._name == _POINT:
                    self._is_point = True
            if self._name == _MARK and self._depth > 0:
                self._mark_begins(string_from)
        self._name_text = text
        self._is_first = False

    def _mark_begins(self, string_from: int) -> None:
        """Do not hash the cache mark that follows, nor the comma before it; of a first member, the one after it."""
        at = self._mark_from(string_from) if string_from >= 0 else -1
        if at > 0 or (at == 0 and self._is_first):
            self._flush(at)
        else:
            self._hash.set_to(self._before)
        self._skips, self._drops_comma = True, self._is_first

    # -- containers ----------------------------------------------------------------------------------------------------

    def opens(self, depth: int, at: int, is_array: bool, is_value: bool) -> None:
        """A container begins in the watched one. `depth`: of its members. `is_value`: it is that of the last name."""
        frame, name, new = self._frames[depth - 1], self._name if is_value else 0, _NONE
        if depth == 1:
            new = _NONE if is_array else _BODY
        elif frame == _BODY:
            self._scalar_from = -1
            new = self._in_body(depth, at, name, is_array)
        elif frame == _TOOLS:
            self._begin(at, depth, "tool")
            new = _SEGMENT
        elif frame == _SYSTEM:
            self._begin(at, depth, "system")
            new = _SEGMENT
        elif frame == _SYSTEM_OBJECT:
            new = _SYSTEM if is_array else _SEGMENT
            if name != _CONTENT:
                new = _NONE
            elif not is_array:
                self._begin(at, depth, "system")
        elif frame == _MESSAGES:
            if is_array:
                self._messages_begun += 1
                self._begin(at, depth, "text")
                new = _SEGMENT
            else:
                self._message_begins(at)
                new = _MESSAGE
        elif frame == _MESSAGE:
            new = self._in_the_message(depth, at, name, is_array)
        elif _PARTS <= frame <= _THOUGHTS:
            kind = (
                "tool_call"
                if frame == _CALLS
                else "image"
                if frame == _IMAGES
                else "reasoning"
                if frame == _THOUGHTS
                else ""
            )
            self._begin(at, depth, kind)
            new = _SEGMENT
        elif frame == _GROUP:
            new = _TOOLS if name == _DECLARATIONS else _NONE
        elif frame in (_SEGMENT, _INNER):
            if name in (_MARK, _POINT):
                new = _MARK
            elif name == _FUNCTION and frame == _SEGMENT and not is_array:
                new = _INNER
            elif name == _CONTENT and is_array and self._kind != "tool":
                new = _CONTENT
        elif frame == _CONTENT:
            new = _BLOCK
        elif frame == _BLOCK and name == _MARK:
            new = _MARK
        if new == _MARK:
            self._mark = b""
        if new and (depth <= _DEEPEST or self._depth == depth):
            self._frames[depth] = new if depth <= _DEEPEST else _DEEP
            self.watched, self._name, self._is_first = depth, 0, True

    def _in_body(self, depth: int, at: int, name: int, is_array: bool) -> int:
        if name == _TOOLS and is_array:
            return _TOOLS
        if name == _SYSTEM:
            return _SYSTEM if is_array else _SYSTEM_OBJECT
        if is_array and name in (_MESSAGES, _INPUT, _PROMPT, _TEXT):
            return _MESSAGES
        if name == _MESSAGES:
            self._message_begins(at)
            return _MESSAGE
        if name in (_WRAPPER, _INPUT, _TEXT):
            return _BODY
        if name == _MARK:
            return _MARK
        if name in (_SETTING, _PROMPT):
            self._begin(at, depth, "settings")
            return _SEGMENT
        return _NONE

    def _in_the_message(self, depth: int, at: int, name: int, is_array: bool) -> int:
        if is_array:
            return (
                _PARTS
                if name == _CONTENT
                else name
                if name in (_CALLS, _IMAGES, _THOUGHTS, _TOOLS)
                else _NONE
            )
        if name == _MARK:
            return _MARK
        if name in (_CONTENT, _FUNCTION, _AUDIO, _THOUGHTS):
            self._begin(
                at, depth, "tool_call" if name == _FUNCTION else "audio" if name == _AUDIO else "reasoning" if name == _THOUGHTS else ""
            )  # fmt: skip
            return _SEGMENT
        return _NONE

    def closes(self, at: int) -> None:
        """The watched container ends."""
        depth, frame = self.watched, self._frames[self.watched]
        if self._scalar_from >= 0:
            self._scalar_ends(at)
        elif self._skips and frame != _MARK:
            self._skips, self._from = False, at
        self.watched = depth - 1
        if frame == _MARK:
            before = self._frames[depth - 1]
            if before == _BODY:
                self._body_mark = self._mark
            elif before == _MESSAGE:
                self._item_mark = self._mark
            elif self._skips:
                self._skips, self._from = False, at + 1
        elif depth == self._depth:
            self._end(at + 1)
        elif frame == _MESSAGE:
            self._message_ends(at + 1)
        self._name, self._is_first = 0, False

    # -- segments ------------------------------------------------------------------------------------------------------

    def _begin(self, at: int, depth: int, kind: str) -> None:
        if self._in_message:
            self._flush(at)
        self._hash.begin()
        self._from, self._began, self._depth, self._kind = at, self._base + at, depth, kind
        self._setting = self._name_text
        self._type = self._tool = self._id = self._mime = self._mark = b""
        self._shape = ""
        self._is_point = self._drops_comma = self._in_text = False
        self._is_plain = depth > 0 and kind in ("", "system")
        self._text_hash.begin()

    def _end(self, at: int) -> None:
        """The open segment ends before this byte."""
        kind, name, size = self._kind, self._tool, self._base + at - self._began
        if self._is_point:
            self._mark_last()
        else:
            self._flush(at)
            if not kind:
                kind = _kind_of_type(self._type) if self._type else self._shape or "other"
                if self._mime:
                    by_mime = self._mime.partition(b"/")[0]
                    kind = "image" if by_mime == b"image" else "audio" if by_mime == b"audio" else "file"
            elif kind == "tool":
                name = name or self._type or self._name_text
            elif kind in _SETTING_KINDS:
                name = self._setting
            one = self._hash
            if self._is_plain and kind in ("text", "system") and self._text_hash.size:
                one = self._text_hash
                size = one.size
            self._add(kind, name, size, one.digest())
        self._depth, self._from = 0, at

    def _add(self, kind: str, name: bytes, size: int, digest: bytes) -> None:
        if kind == "tool_call":
            if self._id and name:
                if len(self._calls) >= _MOST_OPEN:
                    del self._calls[next(iter(self._calls))]
                self._calls[self._id] = name
        elif kind == "tool_result":
            name = self._calls.pop(self._id, name)
        if self._in_message:
            rank = _RANKS.get(self._kind, 1)
            if len(self._pending) < _MOST:
                self._pending.append((rank, kind, name, size, digest, self._mark))
            else:
                self._left_out += 1
            return
        target = (
            self._settings if kind in _SETTING_KINDS
            else self._tools if kind == "tool"
            else self._system if kind == "system"
            else self._current if self._name == _LAST
            else self._messages
        )  # fmt: skip
        message = self._messages_begun - 1 if target is self._messages else -1
        self._store(target, kind, _named(name), message, size, digest, None, _named(self._mark))

    def _store(
        self, target: list[Segment], kind: str, name: str | None, message: int, size: int, digest: bytes, role: str | None, mark: str | None
    ) -> None:  # fmt: skip
        if len(target) < _MOST:
            target.append(Segment(kind, name, message, size, digest, role, mark))  # type: ignore[arg-type]
            self._last = target
        else:
            self._left_out += 1

    def _mark_last(self) -> None:
        """The open segment is the cache mark of the one before it."""
        if self._in_message and self._pending:
            self._pending[-1] = (*self._pending[-1][:5], self._mark)
        elif self._last:
            self._last[-1] = msgspec.structs.replace(self._last[-1], mark=_named(self._mark))

    def _scalar_ends(self, at: int) -> None:
        text = (self._scalar + self._data[self._scalar_from : at])[:_MOST_SCALAR].strip(b" \t\r\n:,")
        self._scalar_from = -1
        if text and text != b"null":
            self._hash.begin()
            self._hash.feed(text, 0, len(text))
            self._mark, self._depth = b"", 0
            self._add("settings", self._name_text, len(text), self._hash.digest())

    # -- messages ------------------------------------------------------------------------------------------------------

    def _message_begins(self, at: int) -> None:
        self._messages_begun += 1
        self._in_message, self._from = True, at
        self._rest.begin()
        self._role = self._item_type = self._item_tool = self._item_id = self._item_mark = b""
        self._pending = []

    def _message_ends(self, at: int) -> None:
        self._flush(at)
        pending, role, message = self._pending, _named(self._role), self._messages_begun - 1
        kind = _kind_of_type(self._item_type) if self._item_type else "text"
        is_result = role in _TOOL_ROLES
        if self._item_type and (not pending or kind in ("reasoning", "tool_call", "tool_result")):
            self._id, self._mark, self._kind = self._item_id, b"", "item"
            self._add(kind, self._item_tool, self._rest.size, self._rest.digest())
        elif is_result:
            self._item_tool = self._calls.pop(self._item_id, self._item_tool)
        self._in_message = False
        pending.sort(key=_rank)
        if self._item_mark and pending:
            pending[-1] = (*pending[-1][:5], self._item_mark)
        for _, kind, name, size, digest, mark in pending:
            if is_result and kind in ("text", "file", "other"):
                kind, name = "tool_result", self._item_tool
            elif kind == "text" and role in _SYSTEM_ROLES:
                kind = "system"
            self._store(self._messages, kind, _named(name), message, size, digest, role, _named(mark))


def _rank(one: tuple[int, str, bytes, int, bytes, bytes]) -> int:
    return one[0]


def _order_of_settings(one: Segment) -> tuple[bool, str]:
    return one.kind != "model", one.name or ""
