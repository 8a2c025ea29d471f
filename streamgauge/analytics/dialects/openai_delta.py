"""Decode a `delta` (or a `message`) of the OpenAI family: text, reasoning, refusal, audio, tool calls. Every type is checked.

`reasoning_content`, `reasoning`, `reasoning_text` and `thinking` are one channel. `reasoning_details` repeat it, and are
used only without the others. `content` may be a list of typed parts. Images are in `images` or in such parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.events import ChoiceDelta, ToolCallDelta
from streamgauge.analytics.dialects.tolerant_json import arguments_of, string_of

REASONING = ("reasoning_content", "reasoning", "reasoning_text", "thinking")
"""Members of a delta with its reasoning. The first with a text counts."""
PART_TEXTS = ("thinking", "reasoning", "summary", "content", "text")
"""Members of a part of `content` with its reasoning."""
LOOKED_UP = kept.members(
    text=" ".join((*REASONING, *PART_TEXTS, "custom image transcript data")), name="role", content="input"
)
IMAGE_PARTS = ("image", "image_url", "output_image")  # a tuple: what is looked up may not be hashable


def read_delta(delta: dict[str, Any], choice_delta: ChoiceDelta, calls: ToolCallKeys) -> None:
    """Add the content of a JSON `delta` to `choice_delta`."""
    content = delta.get("content")
    if isinstance(content, str):
        choice_delta.text = content
    elif isinstance(content, (list, dict)):
        _add_parts(content if isinstance(content, list) else [content], choice_delta)
    choice_delta.reasoning = _reasoning(delta) or choice_delta.reasoning
    choice_delta.refusal = string_of(delta.get("refusal")) or choice_delta.refusal
    audio = delta.get("audio")
    if isinstance(audio, dict):
        choice_delta.audio_chars = len(string_of(audio.get("transcript")))
        choice_delta.audio_data_chars = len(string_of(audio.get("data")))
    images = delta.get("images")
    if isinstance(images, list):
        choice_delta.images += len(images)
    choice_delta.tool_calls = calls.decode(choice_delta.choice, delta.get("tool_calls"))
    call = delta.get("function_call")
    if isinstance(call, dict) and not choice_delta.tool_calls:
        arguments = arguments_of(call.get("arguments"))
        choice_delta.tool_calls = [ToolCallDelta("function_call", "", string_of(call.get("name")), arguments)]


def token_count(choice: dict[str, Any]) -> int | None:
    """Tokens that the server lists for this event: `token_ids`, else `logprobs`."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    lists = [logprobs.get(key) for key in ("content", "refusal")]
    if not any(isinstance(found, list) for found in lists):
        lists = [logprobs.get("tokens")]
    total = sum(len(found) for found in lists if isinstance(found, list))
    return total or None


def _reasoning(delta: dict[str, Any]) -> str:
    for key in REASONING:
        found = delta.get(key)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, dict) and isinstance(found.get("content"), str):
            return str(found["content"])
    details = delta.get("reasoning_details")
    if not isinstance(details, list):
        return ""
    return "".join(
        string_of(d.get("text")) or string_of(d.get("summary")) for d in details if isinstance(d, dict)
    )


def _add_parts(parts: list[Any], choice_delta: ChoiceDelta) -> None:
    """`content` as a list of typed parts (Mistral, Databricks)."""
    for part in parts:
        if isinstance(part, str):
            choice_delta.text += part
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind in ("thinking", "reasoning"):
                choice_delta.reasoning += _nested_text(part)
            elif kind == "refusal":
                choice_delta.refusal += string_of(part.get("refusal"))
            elif kind in IMAGE_PARTS:
                choice_delta.images += 1
            elif isinstance(part.get("text"), str):
                choice_delta.text += part["text"]


def _nested_text(part: dict[str, Any]) -> str:
    for key in PART_TEXTS:
        inner = part.get(key)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, list):
            texts = (
                i if isinstance(i, str) else string_of(i.get("text"))
                for i in inner
                if isinstance(i, (str, dict))
            )
            return "".join(texts)
    return ""


class Function(msgspec.Struct, gc=False):
    name: kept.Name = None
    arguments: Annotated[str | None, kept.CONTENT] = None


class Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: kept.Word = None
    function: Function | None = None


class ToolCallKeys:
    """Assigns the pieces of tool calls of one stream to calls, in all choices.

    A call is identified by its index, or by its id where servers send no index (Mistral). Some servers reuse an index: a piece with
    another id and a name starts a new call. Without ids (Gemini's OpenAI endpoint), a whole call after a whole call is a new call.
    A piece that repeats the id or the name is not.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[int, int | str], tuple[str, str]] = {}  # (choice, index) → (id, key)
        self._last_key: dict[int, str] = {}
        self._whole: set[str] = set()  # keys of calls that came in one piece without an id
        self._generated_keys = 0

    def decode(self, choice: int, calls: Any) -> list[ToolCallDelta] | None:
        """Decode a JSON `tool_calls` of any type."""
        if isinstance(calls, dict):
            calls = [calls]
        if not isinstance(calls, list):
            return None
        return [self._decode_call(choice, call) for call in calls if isinstance(call, dict)] or None

    def decode_arguments(self, choice: int, calls: Sequence[Call]) -> list[ToolCallDelta] | None:
        """Decode arguments of calls that are known by index; None if there is more."""
        deltas: list[ToolCallDelta] = []
        for call in calls:
            function = call.function
            if call.index is None or call.id or function is None or function.name:
                return None
            known = self._known.get((choice, call.index))
            if known is None:
                return None
            deltas.append(ToolCallDelta(known[1], "", "", function.arguments or ""))
            self._last_key[choice] = known[1]
        return deltas

    def _decode_call(self, choice: int, call: dict[str, Any]) -> ToolCallDelta:
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom")
            function = custom if isinstance(custom, dict) else call
        call_id, name = string_of(call.get("id")), string_of(function.get("name"))
        arguments = arguments_of(function.get("arguments", function.get("input")))
        index = call.get("index")
        if index is None:
            index = function.get("index")
        if not isinstance(index, (int, str)) or isinstance(index, bool):
            index = None
        whole = bool(name) and not call_id and (arguments[:1], arguments[-1:]) == ("{", "}")
        key = self._key(choice, index, call_id, name, whole=whole)
        self._last_key[choice] = key
        return ToolCallDelta(key, call_id, name, arguments)

    def _key(self, choice: int, index: int | str | None, call_id: str, name: str, *, whole: bool) -> str:
        if index is None:
            if call_id:
                return f"id:{call_id}"
            if not name and choice in self._last_key:
                return self._last_key[choice]
            self._generated_keys += 1
            return f"new:{self._generated_keys}"
        known = self._known.get((choice, index))
        if known is not None and whole and known[1] in self._whole:
            self._generated_keys += 1
            key = f"{index}+{self._generated_keys}"
            self._known[choice, index] = ("", key)
            self._whole.add(key)
            return key
        if known is not None and (not call_id or known[0] in ("", call_id) or not name):
            if call_id and not known[0]:
                self._known[choice, index] = (call_id, known[1])
            return known[1]
        key = f"{index}" if known is None else f"{index}:{call_id}"
        self._known[choice, index] = (call_id, key)
        if whole:
            self._whole.add(key)
        return key
