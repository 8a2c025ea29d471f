"""Gemini's generateContent, of the Gemini API and Vertex AI: as SSE (`alt=sse`), as a growing JSON array, or as one object.

A part with `thought: true` is reasoning. Arguments of a function call are an object, or `partialArgs` (paths and values),
which are joined as they arrive; no arguments become `{}`. Code that the model ran is a server-side call. Signatures, grounding,
safety ratings and results of executed code are not output.

Each chunk has cumulative usage: output = candidates + thoughts, unless the total shows that candidates contain them, and input =
prompt + tool use (pages that a tool read). The finish reason ends a candidate. A blocked prompt has no candidates;
`promptFeedback.blockReason` ends it.

Systems:

| Gemini | `gcp.gemini` | `gemini` | `/v1beta/models/m:streamGenerateContent`, `/v1beta/models/m:generateContent`,
    `/v1beta/models/m:countTokens` | every chunk; thoughts added to output | finish reason, or a blocked prompt |
| Gemini on Vertex AI | `gcp.vertex_ai` | `gemini` | `/v1/projects/p/locations/l/publishers/google/models/m:streamGenerateContent` | the
    same | the same |
"""

from __future__ import annotations

import json
import re
from typing import Annotated, Any

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.dialect import Dialect, ExchangeInfo, by_path
from streamgauge.analytics.dialects.events import (
    ChoiceDelta,
    DecodedEvent,
    EventKind,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from streamgauge.analytics.dialects.json_reader import JSONReader
from streamgauge.analytics.dialects.tolerant_json import compact, string_of, whole_number

_BILLED_BY_PROMPT = re.compile(r"gemini-(1|2)\b")
_COUNTS = ("promptTokenCount", "candidatesTokenCount", "thoughtsTokenCount", "cachedContentTokenCount")
_LIVE_COUNT = "responseTokenCount"
"""Name of the candidates' count in reports of Gemini Live."""
_RATE = re.compile(r"audio/(?:L16|pcm)\b.*\brate=(\d{1,6})", re.IGNORECASE)


class _PartialArgument(msgspec.Struct, gc=False):
    path: Annotated[str, kept.PATH] = msgspec.field(default="", name="jsonPath")
    string: str | None = msgspec.field(default=None, name="stringValue")
    number: Annotated[int | float | None, kept.TEXT] = msgspec.field(default=None, name="numberValue")
    boolean: Annotated[bool | None, kept.TEXT] = msgspec.field(default=None, name="boolValue")
    will_continue: bool | None = msgspec.field(default=None, name="willContinue")


class Call(msgspec.Struct, gc=False):
    id: kept.Word = None
    name: kept.Name = None
    args: kept.Content = None
    partial: list[_PartialArgument] | None = msgspec.field(default=None, name="partialArgs")
    will_continue: bool | None = msgspec.field(default=None, name="willContinue")


class _Code(msgspec.Struct, gc=False):
    id: kept.Word = None
    code: kept.Name = None


class _Inline(msgspec.Struct, gc=False):
    mime_type: Annotated[str | None, kept.MEDIA_TYPE] = msgspec.field(default=None, name="mimeType")
    data: str | None = None


class _Part(msgspec.Struct, gc=False):
    text: str | None = None
    thought: bool | None = None
    call: Call | None = msgspec.field(default=None, name="functionCall")
    code: Annotated[_Code | None, kept.CODE] = msgspec.field(default=None, name="executableCode")
    inline: _Inline | None = msgspec.field(default=None, name="inlineData")


class Content(msgspec.Struct, gc=False):
    parts: list[_Part] | None = None


class _Grounding(msgspec.Struct, gc=False):
    queries: Annotated[Any, kept.OUTPUT] = msgspec.field(default=None, name="webSearchQueries")


class _Candidate(msgspec.Struct, gc=False):
    index: int | None = None
    content: Content | None = None
    finish_reason: kept.Name = msgspec.field(default=None, name="finishReason")
    grounding: _Grounding | None = msgspec.field(default=None, name="groundingMetadata")


class _Feedback(msgspec.Struct, gc=False):
    block_reason: kept.Name = msgspec.field(default=None, name="blockReason")


class _Chunk(msgspec.Struct, gc=False):
    candidates: list[_Candidate] | None = None
    usage: kept.Report = msgspec.field(default=None, name="usageMetadata")
    model: kept.Name = msgspec.field(default=None, name="modelVersion")
    response_id: kept.Id = msgspec.field(default=None, name="responseId")
    feedback: _Feedback | None = msgspec.field(default=None, name="promptFeedback")
    total: kept.Count = msgspec.field(default=None, name="totalTokens")
    """Of a prompt (`:countTokens`)."""


class _Wrapped(_Chunk):
    """Code Assist wraps the chunk in `response`."""

    type: kept.Title = None
    error: None = None
    response: _Chunk | None = None


def _recognises(name: str, data: bytes) -> int:
    if b'"candidates"' in data and (b'"content"' in data or b'"finishReason"' in data):
        return 8
    return 6 if b'"usageMetadata"' in data or b'"promptFeedback"' in data else 0


class GeminiReader(JSONReader, event=_Wrapped, lists=True):
    """Decodes one stream; numbers its calls and keeps the open one of each candidate."""

    def __init__(self, exchange: ExchangeInfo) -> None:
        self.operation = "count_tokens" if exchange.route.endswith(":countTokens") else None
        self._ids_known = False
        self._call_count = 0
        self._searches: set[str] = set()
        """Queries of web searches."""
        self._open: dict[int, tuple[int, ArgumentJoiner]] = {}
        """Candidate → (key, arguments so far) of its open call."""

    def event(self, event: _Wrapped, kind: str) -> DecodedEvent | TextDelta:
        if self.operation:
            return DecodedEvent(kind="usage", usage=Usage(input_tokens=whole_number(event.total)))
        chunk = event.response or event
        # Id and model are on every chunk. Once they are known, chunks with one text take the short way.
        if self._ids_known:
            text = _text_delta(chunk)
            if text is not None:
                return text
        self._ids_known = bool(chunk.response_id and chunk.model)
        deltas: list[ChoiceDelta] = []
        of: EventKind = "start" if chunk.candidates else "usage" if chunk.usage else "other"
        for position, candidate in enumerate(chunk.candidates or ()):
            index = candidate.index if candidate.index is not None else position
            delta = ChoiceDelta(choice=index)
            for part in (candidate.content.parts if candidate.content else None) or ():
                self._part(part, delta)
            if candidate.finish_reason:
                delta.finish_reason = candidate.finish_reason
                self._close(delta)
                of = "finish"
            if candidate.grounding is not None and isinstance(candidate.grounding.queries, list):
                self._searches.update(query for query in map(string_of, candidate.grounding.queries) if query)
            deltas.append(delta)
        blocked = not chunk.candidates and chunk.feedback is not None and bool(chunk.feedback.block_reason)
        return DecodedEvent(
            kind="finish" if blocked else of,
            deltas=deltas or None,
            usage=normalised(chunk.usage) if isinstance(chunk.usage, dict) else None,
            terminal=blocked,
            response_id=chunk.response_id,
            model=chunk.model,
            billing={"web_searches": self._billed_searches(chunk.model or "")} if self._searches else None,
        )

    def _billed_searches(self, model: str) -> int:
        """Google bills each different query of Gemini 3, and each prompt that had any with the models before it."""
        return 1 if _BILLED_BY_PROMPT.search(model) else len(self._searches)

    def _part(self, part: _Part, delta: ChoiceDelta) -> None:
        if part.text:
            if part.thought:
                delta.reasoning += part.text
            else:
                delta.text += part.text
        if part.call is not None:
            self._function_call(part.call, delta)
        if part.code is not None:
            self._call_count += 1
            code = part.code.code or ""
            _add(delta, ToolCallDelta(self._call_count, part.code.id or "", "", code, server_side=True))
        inline = part.inline
        if inline is not None and inline.data:
            media = (inline.mime_type or "").partition("/")[0]
            if media == "audio":
                delta.audio_data_chars += len(inline.data)
                delta.audio_ns += _length_ns(inline)
            delta.images += media == "image"

    def _function_call(self, call: Call, delta: ChoiceDelta) -> None:
        open_call = self._open.get(delta.choice)
        if call.name or call.id or call.args is not None or open_call is None:
            self._close(delta)
            if not (call.name or call.id or call.args is not None or call.partial):
                return
            self._call_count += 1
            open_call = self._call_count, ArgumentJoiner()
            tool_call = ToolCallDelta(self._call_count, call.id or "", call.name or "")
            if call.args:
                tool_call.arguments = compact(call.args)
            elif not call.will_continue and not call.partial:
                tool_call.inserted_json = "{}"
            else:
                self._open[delta.choice] = open_call
            _add(delta, tool_call)
        key, joiner = open_call
        for argument in call.partial or ():
            inserted_json, value = joiner.add(
                argument.path, _value(argument), will_continue=bool(argument.will_continue)
            )
            _add(delta, ToolCallDelta(key, arguments=value, inserted_json=inserted_json))
        if not call.will_continue:
            self._close(delta)

    def _close(self, delta: ChoiceDelta) -> None:
        """Complete the arguments of the open call."""
        key, joiner = self._open.pop(delta.choice, (0, None))
        if joiner is not None:
            _add(delta, ToolCallDelta(key, inserted_json=joiner.finish()))


def normalised(raw: dict[str, Any]) -> Usage:
    """Normalise usageMetadata. `promptTokenCount` excludes the tokens that a tool adds to the prompt."""
    prompt, candidates, thoughts, cached = [
        value if value is None or (type(value) is int and 0 <= value < 2**53) else whole_number(value)
        for value in map(raw.get, _COUNTS)
    ]
    if candidates is None:
        candidates = whole_number(raw.get(_LIVE_COUNT))
    tool_use = raw.get("toolUsePromptTokenCount")
    if tool_use is not None and (tokens := whole_number(tool_use)) is not None:
        prompt = (prompt or 0) + tokens
    output = candidates
    if thoughts is not None:
        sent = candidates or 0
        output = thoughts + sent
        if 0 < thoughts <= sent and raw.get("totalTokenCount") == (prompt or 0) + sent:
            output = sent  # the total shows that the candidates contain the thoughts
    return Usage(prompt, output, thoughts, cached, raw)


def _text_delta(chunk: _Chunk) -> TextDelta | None:
    """Decode the most frequent chunk: one candidate with one text part. None if there is more."""
    candidates = chunk.candidates
    if not candidates or len(candidates) != 1:
        return None
    candidate = candidates[0]
    parts = candidate.content.parts if candidate.content is not None else None
    if not parts or len(parts) != 1 or candidate.finish_reason or candidate.grounding is not None:
        return None
    part = parts[0]
    if not part.text or part.call is not None or part.code is not None or part.inline is not None:
        return None
    usage = normalised(chunk.usage) if type(chunk.usage) is dict else None
    return TextDelta("reasoning" if part.thought else "text", part.text, candidate.index or 0, None, usage)


def _add(delta: ChoiceDelta, tool_call: ToolCallDelta) -> None:
    if delta.tool_calls is None:
        delta.tool_calls = []
    delta.tool_calls.append(tool_call)


def _length_ns(inline: _Inline) -> int:
    """Length of PCM of 16 bits, else 0. Redaction fills the padding of base64, so it counts: at most one sample."""
    rate = _RATE.match(inline.mime_type or "")
    if rate is None or not inline.data:
        return 0
    samples = len(inline.data) * 3 // 4 // 2
    return samples * 1_000_000_000 // int(rate[1]) if int(rate[1]) else 0


def _value(argument: _PartialArgument) -> Any:
    if argument.string is not None:
        return argument.string
    return argument.number if argument.number is not None else argument.boolean


_claims = by_path(r":(streamGenerateContent|generateContent|countTokens)$")
DIALECT = Dialect("gemini", "gcp.gemini", "generate_content", _claims, _recognises, GeminiReader)


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\['((?:[^'\\]|\\.)*)'\]|\[\"((?:[^\"\\]|\\.)*)\"\]")
MAX_DEPTH = 64

Step = str | int


class ArgumentJoiner:
    """Joins arguments that arrive as (path, value) pieces into JSON text, piece by piece (Gemini's `partialArgs`).

        $.recipe.name ← "Lasa" …      {"recipe":{"name":"Lasa
        $.recipe.name ← "gna"         gna
        $.recipe.steps[0] ← "Cook"    ","steps":["Cook
        end                           "]}}

    The model generated the values; the JSON between them is inserted. Pieces arrive in document order; a piece for a position
    that is already closed is dropped.
    """

    def __init__(self) -> None:
        self._path: list[Step] | None = None
        self._in_string = False
        self._closed = True  # the value at `_path` is complete

    def add(self, path: str, value: Any, *, will_continue: bool) -> tuple[str, str]:
        """Return (inserted JSON, value as JSON text) of the next piece. `value` is a str, a number, a bool or None."""
        steps = _steps(path)
        if not steps or len(steps) > MAX_DEPTH:
            return "", ""
        if steps == self._path:
            if self._closed or not isinstance(value, str):
                return "", ""
            self._closed = not will_continue
            return "", _string_content(value)
        inserted_json = self._move(steps)
        if inserted_json is None:
            return "", ""
        self._path = steps
        if isinstance(value, str):
            self._in_string, self._closed = True, not will_continue
            return inserted_json + '"', _string_content(value)
        self._in_string, self._closed = False, True
        return inserted_json, json.dumps(value)

    def finish(self) -> str:
        """Return the JSON that closes the arguments."""
        path, self._path = self._path, None
        if path is None:
            return "{}"
        return ('"' if self._in_string else "") + "".join(
            "]" if isinstance(s, int) else "}" for s in reversed(path)
        )

    def _move(self, new: list[Step]) -> str | None:
        """The JSON between the value at the last path and the one at `new`; None if `new` is already closed."""
        old = self._path
        if old is None:
            return ("[" if isinstance(new[0], int) else "{") + _open(new, 0)
        shared = 0
        while shared < min(len(old), len(new)) and old[shared] == new[shared]:
            shared += 1
        if shared == len(old) or shared == len(new) or type(old[shared]) is not type(new[shared]):
            return None
        before, after = old[shared], new[shared]
        if isinstance(before, int) and isinstance(after, int) and after < before:
            return None
        closing = "".join("]" if isinstance(s, int) else "}" for s in reversed(old[shared + 1 :]))
        return ('"' if self._in_string else "") + closing + "," + _open(new, shared)


def _open(steps: list[Step], start: int) -> str:
    """The JSON from inside the container of step `start` to the start of its value."""
    text = ""
    for index in range(start, len(steps)):
        step = steps[index]
        if index > start:
            text += "[" if isinstance(step, int) else "{"
        if isinstance(step, str):
            text += json.dumps(step) + ":"
    return text


def _string_content(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _steps(path: str) -> list[Step] | None:
    if not path.startswith("$"):
        return None
    steps: list[Step] = []
    at = 1
    while at < len(path):
        found = _STEP.match(path, at)
        if found is None:
            return None
        at = found.end()
        name, number, single, double = found.groups()
        steps.append(int(number) if number is not None else name or single or double or "")
    return steps
