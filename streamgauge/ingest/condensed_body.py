"""Condense a JSON body while it streams: its structure stays, long texts do not. Pure.

The result is JSON with the members of the body that analytics reads from a request: parameters, ids, the roles and kinds of its messages.
A long string becomes `""`, and a container that is nested deeper than `MAX_DEPTH` becomes empty. The result for bytes that are not JSON
is not JSON either. The state is bounded, and no byte is read twice.

The parser also calls the readers `streamgauge.ingest.request_anatomy` and `streamgauge.ingest.prompt_skeleton`, which receive long
strings, too. An exception in a reader affects only the result of the readers.
"""

from __future__ import annotations

import re

from streamgauge.ingest.content_coding import BodyDecoder
from streamgauge.ingest.prompt_skeleton import PromptSkeleton
from streamgauge.ingest.records import RequestAnatomy
from streamgauge.ingest.request_anatomy import AnatomyReader

MAX_DEPTH = 6
"""Gemini's Code Assist has the kind of a part at depth 6: `{"request": {"contents": [{"parts": [{"functionResponse": …`."""
MAX_STRING_BYTES = 32
"""Longer strings are removed, except from the first two levels, which have the ids. With both quotes."""
MAX_ID_BYTES = 1026
_ID_DEPTH = 2
_NAMED_DEPTH = MAX_DEPTH + 1
"""Maximum depth of the names that the readers receive."""

_TEXT = re.compile(rb'[^"\\]*(?:\\.[^"\\]*)*', re.DOTALL)
_MARK = re.compile(rb'["{}\[\]]')
# Typed in the .pxd. Compiled code reads other globals from the module's dict.
_QUOTE, _ESCAPE, _COLON, _SPACE = b'"\\: '
_BRACE, _END_BRACE, _BRACKET, _END_BRACKET = b"{}[]"
_DEEPEST, _SHORT, _LONG, _LEVELS, _NAMED = MAX_DEPTH, MAX_STRING_BYTES, MAX_ID_BYTES, _ID_DEPTH, _NAMED_DEPTH
_UNWATCHED = -(2**62)
_COMPILED = not __file__.endswith(".py")


class CondensedBody:
    """Condenses one body. `key`: of the hashes in its anatomy."""

    def __init__(self, key: bytes = b"") -> None:
        self._anatomy = AnatomyReader(key)
        self._skeleton = PromptSkeleton(key)
        self.error: Exception | None = None
        """Exception of a reader. The readers receive nothing after it."""
        self._depth = 0
        self._in_string = self._escaped = False
        self._is_value = self._is_read = False
        """Of the open string: it is a member's value, and the anatomy reads it."""
        self._after_colon = False
        """The last byte outside of strings, apart from spaces, is a colon."""
        self._held = b""
        """Start of a string that an earlier read has not ended."""

    @property
    def anatomy(self) -> RequestAnatomy | None:
        """Anatomy of the bytes so far. None after an `error`."""
        if self.error is None:
            try:
                segments, left_out = self._skeleton.segments()
                return self._anatomy.anatomy(segments, left_out)
            except Exception as e:
                self.error = e
        return None

    def feed(self, data: bytes) -> bytes:
        """The next bytes of the result. A string follows with the read that ends it."""
        if self.error is None:
            try:
                return self._walk(data, True)
            except Exception as e:
                self.error = e
        return self._walk(data, False)

    def _walk(self, data: bytes, reads: bool) -> bytes:
        """`reads`: for the anatomy, too. The state of this object changes at the end."""
        anatomy, skeleton, depth, in_string, held = (
            self._anatomy, self._skeleton, self._depth, self._in_string, self._held
        )  # fmt: skip
        is_value, is_read, after_colon = self._is_value, self._is_read and reads, self._after_colon
        text = data  # in compiled code a pointer, whose slices are cheap
        kept = bytearray()
        start = 0
        """Bytes before it are kept or dropped."""
        string_from = 0
        raw_from = 0
        """Bytes from it on are read as they stand, while `anatomy.raw_depth` is set."""
        at, size = 0, len(data)
        watched = _UNWATCHED
        if reads:
            skeleton.begin_read(data)
            watched = skeleton.watched
        escaped = self._escaped
        if escaped and size:
            escaped, at = False, 1
            if is_read:
                anatomy.read(text[0:1])
        while at < size:
            if in_string:
                text_from, at = at, _text_end(data, at, size)
                if is_read:
                    anatomy.read(text[text_from : min(at, size)])
                if at >= size:
                    escaped = at > size
                    break
                in_string = False
                if is_read:
                    anatomy.value_ends()
                elif reads and not is_value and anatomy.reads_name(depth):
                    anatomy.name(
                        held[1:] + text[string_from:at] if held else text[string_from + 1 : at], depth
                    )
                if depth == watched:
                    skeleton.string_ends(held, string_from, at, is_value)
                if depth <= _DEEPEST:
                    is_long = len(held) + at - string_from >= (_LONG if depth <= _LEVELS else _SHORT)
                    if is_long or held:
                        kept += text[start:string_from]
                        kept += b'""' if is_long else held + text[: at + 1]
                        start = at + 1
                held, after_colon = b"", False
            else:
                before, at = at, _mark(data, at, size)
                after_colon = _ends_with_colon(data, before, at, after_colon)
                if at == size:
                    break
                c = text[at]
                if c == _QUOTE:
                    in_string, string_from, is_value = True, at, after_colon
                    is_read = reads and is_value and anatomy.value_begins(depth)
                    if depth == watched:
                        skeleton.string_begins(at, is_value)
                elif c in (_BRACE, _BRACKET):
                    depth += 1
                    if depth == _DEEPEST + 1:
                        kept += text[start : at + 1]
                    if reads:
                        anatomy.opens(depth, c == _BRACKET, after_colon)
                        if depth == anatomy.raw_depth:
                            raw_from = at
                        if depth == watched + 1:
                            skeleton.opens(depth, at, c == _BRACKET, after_colon)
                            watched = skeleton.watched
                else:
                    if reads:
                        if depth == anatomy.raw_depth:
                            anatomy.read_raw(text[raw_from:at])
                        anatomy.closes(depth)
                        if depth == watched and depth:
                            skeleton.closes(at)
                            watched = skeleton.watched
                    depth -= 1
                    if depth == _DEEPEST:
                        start = at
                after_colon = False
            at += 1
        if reads:
            if anatomy.raw_depth:
                anatomy.read_raw(text[raw_from:size])
            skeleton.end_read(-1 if not in_string else -2 if is_value or held else string_from)
        if in_string and depth <= _NAMED:
            held = (held + text[string_from:size])[:_LONG]
        if depth <= _DEEPEST:
            kept += text[start : string_from if in_string else size]
        self._depth, self._in_string, self._escaped, self._held = depth, in_string, escaped, held
        self._is_value, self._is_read, self._after_colon = is_value, is_read, after_colon
        return bytes(kept)


class CodedBody(CondensedBody):
    """Condenses a body with a content coding."""

    def __init__(self, key: bytes, decoding: BodyDecoder) -> None:
        super().__init__(key)
        self.decoding = decoding

    def feed(self, data: bytes) -> bytes:
        """As `CondensedBody.feed`, after decoding. Bytes that cannot be decoded are missing."""
        return CondensedBody.feed(self, self.decoding.feed(data))


# Compiled loops are the fastest. The interpreter needs 5 ms for 70 kB in a loop, and 1 ms with expressions.


def _text_end(data: bytes, at: int, size: int) -> int:
    """Where a string ends. `size`: not in these bytes. `size` + 1: nor do they have the character that their last byte escapes."""
    if not _COMPILED:
        at = _TEXT.match(data, at).end()  # type: ignore[union-attr]
        return at if at == size or data[at] == _QUOTE else size + 1
    text, start = data, at  # in compiled code a pointer
    while True:
        # Most bytes are text, in which the C library finds a quote fastest. The bytes before a quote determine whether it is escaped.
        at = next_byte(text, _QUOTE, at, size)  # type: ignore # noqa: F821 - of the .pxd
        before = at
        while before > start and text[before - 1] == _ESCAPE:
            before -= 1
        if at == size or not (at - before) & 1:
            return at + ((at - before) & 1)
        at += 1
        start = at


def _mark(data: bytes, at: int, size: int) -> int:
    """The next quote, brace or bracket. `size`: none."""
    if not _COMPILED:
        found = _MARK.search(data, at)
        return found.start() if found is not None else size
    text = data
    while at < size and text[at] not in (_QUOTE, _BRACE, _END_BRACE, _BRACKET, _END_BRACKET):
        at += 1
    return at


def _ends_with_colon(data: bytes, start: int, end: int, before: bool) -> bool:
    """Whether the last byte in this range, apart from spaces, is a colon. `before`: the result for the bytes before it."""
    while end > start and data[end - 1] <= _SPACE:
        end -= 1
    return data[end - 1] == _COLON if end > start else before
