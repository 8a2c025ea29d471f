"""Read events that carry `choices`: chat completion chunks and text completion chunks, whoever sends them.

Two ways lead through an event. The strict one is a single typed decode that knows the fields below; when one choice carries
one piece of text or reasoning and nothing else is said, the answer is a `Delta`. Whatever else is set, or of another type
than OpenAI's, goes the long way, which looks at every field and trusts none.

What a field means here: `delta` wins over `text` (Together sends both) and over `message` (Writer, Perplexity: the same
again, cumulative); `reasoning_content`, `reasoning`, `reasoning_text` are one channel, and `reasoning_details` repeat it
unless they are all there is; "" is no id, no model and no finish reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from analytics.dialects.errors import error_from, error_in
from analytics.dialects.openai_usage import usage_of
from analytics.dialects.payload import FAULTS, compact, json_or_none
from analytics.dialects.server_stats import stats_of
from analytics.dialects.shape import (
    Delta,
    ErrorSeen,
    Fragment,
    Kind,
    Reading,
    ServerStat,
    ToolFragment,
    Usage,
)
from analytics.sse import Event

MAX_CHOICES = 4096


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Entry(msgspec.Struct, gc=False):
    """A token in `logprobs`: counted, not read."""


class _LogProbs(msgspec.Struct, gc=False):
    content: list[_Entry] | None = None
    refusal: list[_Entry] | None = None
    tokens: list[str] | None = None


class _Said(msgspec.Struct, gc=False):
    """`delta`."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None
    function_call: Any = None
    audio: Any = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Said | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: _LogProbs | None = None
    token_ids: list[int] | None = None
    message: Any = None
    error: Any = None
    usage: Any = None


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Any = None
    error: Any = None
    perf_metrics: Any = None
    timings: Any = None
    x_groq: Any = None
    time_info: Any = None
    metrics: Any = None
    stats: Any = None


class _FirstChunk(_Chunk, gc=False):
    """Until id and model are known, they are read too."""

    id: Any = None
    model: Any = None


_decode_first = msgspec.json.Decoder(_FirstChunk).decode
_decode_next = msgspec.json.Decoder(_Chunk).decode

_PROVIDER_FIELDS = {
    # a top-level member that only one vendor sends
    "x_groq": "groq",
    "timings": "llama.cpp",
    "perf_metrics": "fireworks",
    "prompt_filter_results": "azure.ai.openai",
    "time_info": "cerebras",
    "native_finish_reason": "openrouter",
    "search_results": "perplexity",
    "obfuscation": "openai",
}
_STATS_FIELDS = ("perf_metrics", "timings", "time_info", "metrics", "stats")
_USAGE_STATS = frozenset(
    {
        "queue_time", "prompt_time", "completion_time", "total_time",  # Groq
        "time_to_first_token", "time_to_first_token_ms", "time_per_output_token_ms", "total_latency",
        "tokens_per_second", "prompt_tokens_per_second", "completion_tokens_per_sec", "total_tokens_per_sec",
        "completion_tokens_after_first_per_sec", "avg_tok_per_sec", "avg_prompt_tok_per_sec", "avg_compl_tok_per_sec",
        "total_time_sec", "total_prompt_time_sec", "total_completion_time_sec",
    }
)  # fmt: skip


class ChoicesReader:
    """Reads one stream of chat or text completion chunks."""

    def __init__(self) -> None:
        self._id_known = self._model_known = False
        self._provider: str | None = None
        self._begun: set[int] = set()  # choices that have had output
        self._calls: dict[
            tuple[int, Any], tuple[str, str]
        ] = {}  # (choice, index) → (id, key) of the call there
        self._last_key: dict[int, str] = {}
        self._any_event = False

    # -- one event -------------------------------------------------------------------------------------------------

    def read_many(self, events: Sequence[Event]) -> list[Reading | Delta]:
        """The answers of `read`, for a batch."""
        answers: list[Reading | Delta] = []
        answer = answers.append
        begun = self._begun
        decode = _decode_next if self._id_known and self._model_known else _decode_first
        for event in events:
            try:
                chunk = decode(event.data)
            except FAULTS:
                answer(self.read(event.name, event.data))
                continue
            if (
                decode is _decode_next
                and (choices := chunk.choices)
                and len(choices) == 1
                and chunk.error is None
                and chunk.timings is None
                and chunk.x_groq is None
                and chunk.perf_metrics is None
                and chunk.time_info is None
                and chunk.metrics is None
                and chunk.stats is None
                and not event.name
            ):
                choice = choices[0]
                if (
                    choice.finish_reason is None
                    and choice.error is None
                    and choice.usage is None
                    and choice.index in begun
                ):
                    quick = self._quickly(choice, chunk.usage)
                    if quick is not None:
                        answer(quick)
                        continue
            answer(self.read(event.name, event.data))
            if decode is _decode_first and self._id_known and self._model_known:
                decode = _decode_next
        return answers

    def _quickly(self, choice: _Choice, usage: Any) -> Reading | Delta | None:
        """What one choice adds in mid-stream, if its fields are those of OpenAI. None: the long way must look."""
        said = choice.delta
        tools: list[ToolFragment] | None = None
        kind: Kind = "text"
        if said is None:
            piece = choice.text
            if choice.message is not None:
                return None
        elif (
            said.refusal
            or said.audio is not None
            or said.function_call is not None
            or said.reasoning_text is not None
        ):
            return None
        else:
            piece = said.content
            thought = said.reasoning_content or said.reasoning
            if thought:
                if piece:
                    return None
                piece, kind = thought, "reasoning"
            elif said.reasoning_details is not None:
                return None
            if said.tool_calls:
                tools = self._quick_calls(choice.index, said.tool_calls)
                if tools is None:
                    return None
        if not piece and tools is None:
            return None
        tokens: int | None = None
        if choice.token_ids is not None:
            tokens = len(choice.token_ids) or None
        if tokens is None and (logprobs := choice.logprobs) is not None:
            found = [entries for entries in (logprobs.content, logprobs.refusal) if entries is not None]
            tokens = sum(map(len, found)) if found else len(logprobs.tokens or ())
            tokens = tokens or None
        if tools is None and usage is None and piece:
            return Delta(kind, piece, choice.index, tokens)
        fragment = Fragment(choice.index, tokens=tokens, tools=tools)
        if piece:
            setattr(fragment, kind, piece)
        report = None
        if usage is not None:
            report = usage_of(usage)
            if report is None or not _USAGE_STATS.isdisjoint(usage):
                return None
        return Reading(kind=kind, fragments=[fragment], usage=report)

    def _quick_calls(self, choice: int, calls: list[_Call]) -> list[ToolFragment] | None:
        """Pieces of calls that are known by their index already; None where there is more to it."""
        pieces: list[ToolFragment] = []
        for call in calls:
            function = call.function
            if call.index is None or call.id or function is None or function.name:
                return None
            known = self._calls.get((choice, call.index))
            if known is None:
                return None
            pieces.append(ToolFragment(known[1], "", "", function.arguments or ""))
            self._last_key[choice] = known[1]
        return pieces

    def read(self, name: str, data: bytes) -> Reading | Delta:
        """One event, the long way."""
        value = json_or_none(data)
        if not isinstance(value, dict):
            return self._not_an_object(name, data, value)
        reading = Reading()
        self._head(value, reading)
        error = error_in(value)
        choices = value.get("choices")
        roles = False
        if isinstance(choices, list):
            fragments: list[Fragment] = []
            for place, choice in enumerate(choices[:MAX_CHOICES]):
                if isinstance(choice, dict):
                    fragment, role = self._choice(choice, place)
                    roles |= role
                    if fragment is not None:
                        fragments.append(fragment)
                    if error is None and choice.get("error"):
                        error = error_from(choice["error"], around=choice)
                    if reading.usage is None:
                        reading.usage = usage_of(choice.get("usage"))
            reading.fragments = fragments or None
        elif name == "error" and error is None:
            error = error_from(value)
        if error is None and "base_resp" in value:
            error = _minimax_error(value["base_resp"])
        reading.usage = self._usage(value) or reading.usage
        reading.server_stats = self._stats(value)
        reading.error = error
        reading.kind = self._kind(reading, value, roles)
        self._any_event = True
        return reading

    def read_body(self, body: bytes) -> list[Reading]:
        """A response that was not streamed: the same fields, with `message` in place of `delta`."""
        value = json_or_none(body)
        if isinstance(value, list) and value:
            value = value[0]
        if not isinstance(value, dict):
            return [Reading(kind="malformed")]
        answer = self.read("", compact(value).encode())
        return [answer] if isinstance(answer, Reading) else []

    def _not_an_object(self, name: str, data: bytes, value: Any) -> Reading:
        word = data.strip()
        if word == b"[DONE]":
            return Reading(kind="terminal", done=True)
        if name == "error":
            said = value if isinstance(value, str) and value else word.decode("utf-8", "replace")[:4096]
            return Reading(kind="error", error=ErrorSeen(None, said or None, said or None))
        if name in ("ping", "heartbeat", "keepalive", "keep-alive") or (
            value is None and word in (b"", b"null")
        ):
            return Reading(kind="ping" if name else "other")
        return Reading(kind="malformed" if value is None else "other")

    # -- its parts -------------------------------------------------------------------------------------------------

    def _head(self, value: dict[str, Any], reading: Reading) -> None:
        if not self._id_known:
            identity = value.get("id")
            if isinstance(identity, str) and identity:
                reading.response_id, self._id_known = identity, True
        if not self._model_known:
            model = value.get("model")
            if isinstance(model, str) and model:
                reading.model, self._model_known = model, True
        if self._provider is None:
            self._provider = _provider(value)
            reading.provider = self._provider

    def _choice(self, choice: dict[str, Any], place: int) -> tuple[Fragment | None, bool]:
        """(what it adds, whether it names a role). None: an annotation of the choice, nothing said."""
        index = choice.get("index")
        if not isinstance(index, int) or isinstance(index, bool) or not 0 <= index < 2**15:
            index = place
        fragment = Fragment(choice=index)
        said = choice.get("delta")
        role = isinstance(said, dict) and bool(said.get("role")) and index not in self._begun
        if isinstance(said, dict):
            self._said(said, fragment)
        elif isinstance(said, str):
            fragment.text = said
        elif isinstance(choice.get("text"), str):
            fragment.text = choice["text"]
        elif isinstance(choice.get("message"), dict) and index not in self._begun:
            self._said(choice["message"], fragment)
        reason = choice.get("finish_reason")
        if isinstance(reason, (str, int)) and reason not in ("", False):
            fragment.finish_reason = str(reason)
        fragment.tokens = _token_count(choice)
        spoken = fragment.audio_chars or fragment.audio_data_chars
        if fragment.text or fragment.reasoning or fragment.refusal or fragment.tools or spoken:
            self._begun.add(index)
        elif (
            said is None
            and fragment.finish_reason is None
            and "text" not in choice
            and "message" not in choice
        ):
            return None, role
        return fragment, role

    def _said(self, said: dict[str, Any], fragment: Fragment) -> None:
        content = said.get("content")
        if isinstance(content, str):
            fragment.text = content
        elif isinstance(content, (list, dict)):
            _add_parts(content if isinstance(content, list) else [content], fragment)
        thought = ""
        for key in ("reasoning_content", "reasoning", "reasoning_text", "thinking"):
            found = said.get(key)
            if isinstance(found, str) and found:
                thought = found
                break
            if isinstance(found, dict) and isinstance(found.get("content"), str):
                thought = found["content"]
                break
        if not thought:
            thought = _details(said.get("reasoning_details"))
        if thought:
            fragment.reasoning = thought
        refusal = said.get("refusal")
        if isinstance(refusal, str):
            fragment.refusal = refusal
        audio = said.get("audio")
        if isinstance(audio, dict):
            fragment.audio_chars = len(_text(audio.get("transcript")))
            fragment.audio_data_chars = len(_text(audio.get("data")))
        calls = said.get("tool_calls")
        if isinstance(calls, dict):
            calls = [calls]
        if isinstance(calls, list):
            pieces = [self._call(fragment.choice, call) for call in calls if isinstance(call, dict)]
            fragment.tools = pieces or None
        call = said.get("function_call")
        if isinstance(call, dict) and not fragment.tools:
            arguments, was_object = _arguments(call.get("arguments"))
            fragment.tools = [
                ToolFragment("function_call", "", _text(call.get("name")), arguments, was_object)
            ]

    def _call(self, choice: int, call: dict[str, Any]) -> ToolFragment:
        """One piece of a tool call. Calls are told apart by index; without one, or where it is reused, by id."""
        function = call.get("function")
        if not isinstance(function, dict):
            custom = call.get("custom")
            function = custom if isinstance(custom, dict) else call
        identity, name = _text(call.get("id")), _text(function.get("name"))
        arguments, was_object = _arguments(function.get("arguments", function.get("input")))
        index = call.get("index")
        if index is None:
            index = function.get("index")
        if not isinstance(index, (int, str)) or isinstance(index, bool):
            index = None
        key = self._key(choice, index, identity, name)
        self._last_key[choice] = key
        return ToolFragment(key, identity, name, arguments, was_object)

    def _key(self, choice: int, index: int | str | None, identity: str, name: str) -> str:
        if index is None:
            if not identity and not name and choice in self._last_key:
                return self._last_key[choice]
            return f"id:{identity}" if identity else f"name:{name}:{len(self._calls)}"
        known = self._calls.get((choice, index))
        if known is not None and (not identity or known[0] in ("", identity) or not name):
            if identity and not known[0]:
                self._calls[choice, index] = (identity, known[1])
            return known[1]
        key = f"{index}" if known is None else f"{index}:{identity}"
        self._calls[choice, index] = (identity, key)
        return key

    def _usage(self, value: dict[str, Any]) -> Usage | None:
        found = usage_of(value.get("usage"))
        if found is None:
            groq = value.get("x_groq")
            found = usage_of(groq.get("usage")) if isinstance(groq, dict) else None
        return found

    def _stats(self, value: dict[str, Any]) -> list[ServerStat] | None:
        stats: list[ServerStat] = []
        for source in _STATS_FIELDS:
            if isinstance(value.get(source), dict):
                stats += stats_of(source, value[source])
        if "prompt_progress" in value:
            stats += stats_of("prompt_progress", value["prompt_progress"])
        groq = value.get("x_groq")
        if isinstance(groq, dict) and isinstance(groq.get("usage"), dict):
            stats += stats_of("x_groq", groq["usage"], only=_USAGE_STATS)
        elif isinstance(value.get("usage"), dict):
            stats += stats_of("usage", value["usage"], only=_USAGE_STATS)
        return stats or None

    def _kind(self, reading: Reading, value: dict[str, Any], roles: bool) -> Kind:
        """Of an event without output; one with output is named by its channel."""
        if reading.error is not None:
            return "error"
        if any(f.finish_reason for f in reading.fragments or ()):
            return "finish"
        if reading.usage is not None:
            return "usage"
        if "prompt_progress" in value:
            return "progress"
        if reading.fragments and (roles or not self._any_event):
            return "start"
        if not reading.fragments and ("choices" in value or "prompt_filter_results" in value):
            return "annotation"
        return "other"


def _minimax_error(told: Any) -> ErrorSeen | None:
    """MiniMax says how it went in `base_resp`, under 200: a status code that is not 0 is an error."""
    if not isinstance(told, dict) or not told.get("status_code"):
        return None
    return ErrorSeen(str(told["status_code"]), _text(told.get("status_msg")) or None, told)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> tuple[str, bool]:
    if isinstance(value, str):
        return value, False
    if value is None:
        return "", False
    return compact(value), True


def _add_parts(parts: list[Any], fragment: Fragment) -> None:
    """`content` as a list (Mistral, Databricks): typed parts of text, thinking, reasoning."""
    for part in parts:
        if isinstance(part, str):
            fragment.text += part
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind in ("thinking", "reasoning"):
                fragment.reasoning += _nested_text(part)
            elif kind == "refusal":
                fragment.refusal += _text(part.get("refusal"))
            elif isinstance(part.get("text"), str):
                fragment.text += part["text"]


def _nested_text(part: dict[str, Any]) -> str:
    for key in ("thinking", "reasoning", "summary", "content", "text"):
        inner = part.get(key)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, list):
            return "".join(
                i if isinstance(i, str) else _text(i.get("text")) for i in inner if isinstance(i, (str, dict))
            )
    return ""


def _details(details: Any) -> str:
    """OpenRouter's `reasoning_details`, where nothing else tells the reasoning."""
    if not isinstance(details, list):
        return ""
    return "".join(_text(d.get("text")) or _text(d.get("summary")) for d in details if isinstance(d, dict))


def _token_count(choice: dict[str, Any]) -> int | None:
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


def _provider(value: dict[str, Any]) -> str | None:
    for member, vendor in _PROVIDER_FIELDS.items():
        if member in value:
            return vendor
    choices = value.get("choices")
    if isinstance(choices, list) and choices and isinstance(choices[0], dict):
        if "native_finish_reason" in choices[0] and isinstance(value.get("provider"), str):
            return "openrouter"
        if "content_filter_results" in choices[0]:
            return "azure.ai.openai"
    if value.get("system_fingerprint") == "fp_ollama":
        return "ollama"
    return None
