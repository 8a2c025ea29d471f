"""Types of chat and text completion chunks as OpenAI sends them, with the members that other servers add. Only members that are
read are declared. A chunk that does not match these types takes the slow path of `openai_choices`.
"""

from __future__ import annotations

from typing import Any

import msgspec


class Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: Function | None = None


class Entry(msgspec.Struct, gc=False):
    """A token in `logprobs`, only counted."""


class LogProbs(msgspec.Struct, gc=False):
    content: list[Entry] | None = None
    refusal: list[Entry] | None = None
    tokens: list[str] | None = None


class ChunkDelta(msgspec.Struct, gc=False):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_text: Any = None
    reasoning_details: Any = None
    refusal: str | None = None
    tool_calls: list[Call] | None = None
    function_call: Any = None
    audio: Any = None
    images: Any = None


class Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: ChunkDelta | None = None
    text: str | None = None
    finish_reason: str | None = None
    logprobs: LogProbs | None = None
    token_ids: list[int] | None = None
    message: Any = None
    error: Any = None
    usage: Any = None


class NvExt(msgspec.Struct, gc=False):
    """NVIDIA Dynamo's extension."""

    timing: Any = None


class Chunk(msgspec.Struct, gc=False):
    choices: list[Choice] | None = None
    usage: Any = None
    error: Any = None
    perf_metrics: Any = None
    timings: Any = None
    x_groq: Any = None
    time_info: Any = None
    metrics: Any = None
    stats: Any = None
    base_resp: Any = None
    prompt_progress: Any = None
    meta_info: Any = None
    nvext: NvExt | None = None


class FirstChunk(Chunk, gc=False):
    """A chunk with id and model, read until they are known."""

    id: Any = None
    model: Any = None
