"""The segments of a prompt, read from a request body while it streams. Pure; the state is bounded.

`streamgauge.ingest.condensed_body` parses a body, and calls the reader at each name, string and container that is a direct member of the
innermost relevant container (`watched` is the depth of its members). Everything below is only hashed.

- A segment is a string, or a container with its brackets. Its hash covers its bytes in the body, without cache marks (`cache_control` or
  `prompt_cache_breakpoint`, and the adjacent comma). A `cachePoint` marks the segment before it.
- A block with only a text is the same segment as a string, because clients send a block to set a cache mark, and a string later.
- An element of `input` without parts, such as a call of the Responses API, is one segment with all of its bytes.
"""

from __future__ import annotations

from streamgauge.ingest.prompt_formats import (  # isort: skip
    BODY, BODY_NAMES, CONTAINERS, CONTENT, DECLARATIONS, DEEP, GROUP, ID, INNER, KINDS_BY_NAME, LAST, MARK, MESSAGE, MESSAGE_NAMES,
    MESSAGES, MIME, NAME, NONE, PART_NAMES, POINT, ROLE, SEGMENT, SETTING, STRINGS, SYSTEM_OBJECT, TEXT, TOOLS, TTL, TYPE,
)  # fmt: skip
from streamgauge.ingest.prompt_segments import MAX_NAME_BYTES, PromptSegments
from streamgauge.ingest.records import Segment
from streamgauge.ingest.segment_hash import SegmentHash, hash_keys

MAX_SCALAR_BYTES = 64
MAX_DEPTH = 7
"""Maximum depth of relevant names. `streamgauge.ingest.condensed_body` keeps no deeper ones from read to read."""

_SPACE, _COMMA = b" ,"
_NOTHING = ((NONE, None), (NONE, None))
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_MOST_NAME, _MOST_SCALAR, _DEEPEST = MAX_NAME_BYTES, MAX_SCALAR_BYTES, MAX_DEPTH


class PromptSkeleton:
    """Reads the segments of one body. `key`: key of the hashes."""

    def __init__(self, key: bytes) -> None:
        self.watched = 0
        """Depth of the members of the innermost relevant container. 0: before the body."""
        self._frames = bytearray(MAX_DEPTH + 2)
        """Kind of the open container at each depth."""
        self._name = 0
        self._name_text = b""
        """The last name: its meaning and its text."""
        self._data = b""
        self._from = self._base = 0
        """The current read, its first byte that is not hashed yet, and the number of bytes before the read."""
        keys = hash_keys(key)
        self._hash = SegmentHash(keys)
        self._rest = SegmentHash(keys)
        """Hash of the open message without its segments."""
        self._text_hash = SegmentHash(keys)
        self._in_text = False
        """Hash of the member `text` of the open segment, and whether this text is open."""
        self._is_plain = False
        """The open segment has only a `type`, a text and cache marks. It is the same as a string."""
        self._before = SegmentHash(keys)
        """Hash of the open segment up to the last comma, if a cache mark may follow."""
        self._depth = self._began = 0
        """The open segment: depth of its members (−1: a string, 0: none is open), position of its first byte."""
        self._kind = ""
        """Kind of the open segment by its position. "": `_type` and `_shape` determine it."""
        self._setting = b""
        self._type = self._tool = self._id = self._mime = self._mark = b""
        self._shape = ""
        self._is_point = self._is_first = self._skips = self._drops_comma = False
        """The segment is a `cachePoint`; the open container has no member yet; a cache mark is open; the next comma belongs to a mark."""
        self._scalar_from, self._scalar = -1, b""
        """Start of the scalar value of a setting, and its bytes from earlier reads. −1: no such value is open."""
        self._found = PromptSegments()
        self._role = self._item_type = self._item_tool = self._item_id = self._item_mark = b""
        self._body_mark = b""

    def segments(self) -> tuple[list[Segment], int]:
        """The segments so far, and the number of segments omitted at the end."""
        return self._found.all(self._body_mark)

    # -- reads ---------------------------------------------------------------------------------------------------------

    def begin_read(self, data: bytes) -> None:
        self._data, self._from = data, 0

    def end_read(self, name_from: int) -> None:
        """`name_from`: start of a name that is incomplete at the end of the read. −1: no string is open. −2: another string is open."""
        size = len(self._data)
        if self._scalar_from >= 0:
            text = self._data
            self._scalar = (self._scalar + text[self._scalar_from : size])[:_MOST_SCALAR]
            self._scalar_from = 0
        if self._depth or self._found.in_message:
            if self._depth > 0 and name_from >= -1:
                at = self._mark_from(size if name_from < 0 else name_from)
                if at or self._is_first:
                    self._flush(at)
                    self._before.set_to(self._hash)
            self._flush(size)
        self._base += size
        self._data = b""

    def _mark_from(self, at: int) -> int:
        """The first byte to omit for a cache mark whose name starts at `at`: the comma before it, unless it is the first member.
        0: the comma may be in an earlier read."""
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
        frame, name, kind = self._frames[self.watched], self._name if is_value else 0, ""
        if not is_value:
            if self._scalar_from >= 0:
                self._scalar_ends(at)
            elif self._skips and frame != MARK:  # the value of the mark was not an object
                self._skips, self._from = False, at
        elif frame == BODY:
            self._scalar_from = -1
        if frame < DEEP:
            kind = STRINGS.get(frame << 8 | name, "")
        elif frame == SEGMENT and name == TEXT and self._is_plain:
            self._flush(at + 1)
            self._in_text = True
            self._text_hash.begin()
        if kind:
            if not self._found.in_message and kind == "text" and name != LAST:
                self._found.messages_begun += 1
            self._begin(at + 1, -1, kind)

    def string_ends(self, held: bytes, string_from: int, at: int, is_value: bool) -> None:
        """`held`: the part of the string from earlier reads. The rest is in [`string_from`, `at`), with the first quote unless `held`."""
        frame = self._frames[self.watched]
        if self._depth < 0:
            if frame == TOOLS:
                self._tool = self._text(held, string_from, at)
            self._end(at)
        elif is_value:
            if self._in_text:
                self._flush(at)
                self._in_text = False
                self._hash.feed(self._text_hash.digest(), 0, 8)
            elif frame >= MESSAGE and self._name >= ROLE:
                self._value(frame, self._name, self._text(held, string_from, at))
        elif frame in (BODY, SYSTEM_OBJECT, MESSAGE) or frame >= SEGMENT:
            self._name_ends(frame, self._text(held, string_from, at), string_from if not held else -1, at)

    def _text(self, held: bytes, string_from: int, at: int) -> bytes:
        text = self._data  # in compiled code a pointer, whose slices are cheap
        return held[1:] + text[string_from:at] if held else text[string_from + 1 : at]

    def _value(self, frame: int, name: int, text: bytes) -> None:
        if len(text) > _MOST_NAME:
            text = text[: _MOST_NAME + 1]
        if frame == MESSAGE:
            if name == ROLE:
                self._role = text
            elif name == TYPE:
                self._item_type = text
            elif name == NAME:
                self._item_tool = text
            elif name == ID and (not self._item_id or self._name_text != b"id"):
                self._item_id = text
        elif frame == MARK:
            if name == TTL or (name == TYPE and not self._mark):
                self._mark = text
        elif frame in (SEGMENT, INNER):
            if name == TYPE and frame == SEGMENT:
                self._type = text
            elif name == NAME and (not self._tool or self._name_text == b"name"):
                self._tool = text
            elif name == ID:
                self._id = text
            elif name == MIME:
                self._mime = text

    def _name_ends(self, frame: int, text: bytes, string_from: int, at: int) -> None:
        """`string_from`: −1 if it starts in an earlier read."""
        if frame == BODY:
            self._name = BODY_NAMES.get(text, 0)
            if self._name == SETTING:
                self._scalar_from, self._scalar = at + 1, b""
        elif frame in (MESSAGE, SYSTEM_OBJECT):
            self._name = MESSAGE_NAMES.get(text, 0)
        else:
            self._name = PART_NAMES.get(text, 0)
            if frame == SEGMENT:
                if self._name not in (TYPE, TEXT, MARK):
                    self._is_plain = False
                if not self._shape or text == b"thought":
                    self._shape = KINDS_BY_NAME.get(text, "")
                if self._name == DECLARATIONS and self._kind == "tool":  # a list of tools
                    self._depth, self._frames[self.watched] = 0, GROUP
                elif self._name == POINT:
                    self._is_point = True
            if self._name == MARK and self._depth > 0:
                self._mark_begins(string_from)
        self._name_text = text
        self._is_first = False

    def _mark_begins(self, string_from: int) -> None:
        """Exclude the following cache mark from the hash, with the comma before it, or after it if it is the first member."""
        at = self._mark_from(string_from) if string_from >= 0 else -1
        if at > 0 or (at == 0 and self._is_first):
            self._flush(at)
        else:
            self._hash.set_to(self._before)
        self._skips, self._drops_comma = True, self._is_first

    # -- containers ----------------------------------------------------------------------------------------------------

    def opens(self, depth: int, at: int, is_array: bool, is_value: bool) -> None:
        """A container begins in the watched one. `depth`: depth of its members. `is_value`: it is the value of the last name."""
        frame, name, new = self._frames[depth - 1], self._name if is_value else 0, BODY
        if depth == 1:
            new = NONE if is_array else BODY
        else:
            if frame == BODY:
                self._scalar_from = -1
            opened = CONTAINERS.get(frame << 8 | name, _NOTHING)[1 if is_array else 0]
            new = opened[0]
            if new == MESSAGE:
                self._message_begins(at)
            elif opened[1] is not None:
                if frame == MESSAGES:
                    self._found.messages_begun += 1
                self._begin(at, depth, opened[1])
            elif new == CONTENT and self._kind == "tool":
                new = NONE
        if new == MARK:
            self._mark = b""
        if new and (depth <= _DEEPEST or self._depth == depth):
            self._frames[depth] = new if depth <= _DEEPEST else DEEP
            self.watched, self._name, self._is_first = depth, 0, True

    def closes(self, at: int) -> None:
        """The watched container ends."""
        depth, frame = self.watched, self._frames[self.watched]
        if self._scalar_from >= 0:
            self._scalar_ends(at)
        elif self._skips and frame != MARK:
            self._skips, self._from = False, at
        self.watched = depth - 1
        if frame == MARK:
            before, self._mark = self._frames[depth - 1], self._mark or b"explicit"
            if before == BODY:
                self._body_mark = self._mark
            elif before == MESSAGE:
                self._item_mark = self._mark
            elif self._skips:
                self._skips, self._from = False, at + 1
        elif depth == self._depth:
            self._end(at + 1)
        elif frame == MESSAGE:
            self._message_ends(at + 1)
        self._name, self._is_first = 0, False

    # -- segments ------------------------------------------------------------------------------------------------------

    def _begin(self, at: int, depth: int, kind: str) -> None:
        if self._found.in_message:
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
            self._found.mark_last(self._mark)
        else:
            self._flush(at)
            if not kind:
                kind = self._found.kind_of(self._type) if self._type else self._shape or "other"
                if self._mime:
                    by_mime = self._mime.partition(b"/")[0]
                    kind = "image" if by_mime == b"image" else "audio" if by_mime == b"audio" else "file"
            elif kind == "tool":
                name = name or self._type or self._name_text
            elif kind in ("model", "settings"):
                name = self._setting
            one = self._hash
            if self._is_plain and kind in ("text", "system") and self._text_hash.size:
                one = self._text_hash
                size = one.size
            self._found.add(
                self._kind, kind, name, self._id, size, one.digest(), self._mark, self._name == LAST
            )
        self._depth, self._from = 0, at

    def _scalar_ends(self, at: int) -> None:
        text = (self._scalar + self._data[self._scalar_from : at])[:_MOST_SCALAR].strip(b" \t\r\n:,")
        self._scalar_from = -1
        if text and text != b"null":
            self._hash.begin()
            self._hash.feed(text, 0, len(text))
            self._depth = 0
            self._found.add("", "settings", self._name_text, b"", len(text), self._hash.digest(), b"", False)

    # -- messages ------------------------------------------------------------------------------------------------------

    def _message_begins(self, at: int) -> None:
        self._found.message_begins()
        self._from = at
        self._rest.begin()
        self._role = self._item_type = self._item_tool = self._item_id = self._item_mark = b""

    def _message_ends(self, at: int) -> None:
        self._flush(at)
        self._found.message_ends(
            self._role, self._item_type, self._item_tool, self._item_id, self._item_mark, self._rest.size, self._rest.digest()
        )  # fmt: skip
