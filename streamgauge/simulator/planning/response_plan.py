"""The plan of one response: generated content, timing and fault. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec

from streamgauge.simulator.planning.profiles import Reasoning
from streamgauge.simulator.planning.words import words

PieceKind = Literal["text", "reasoning", "refusal", "tool_start", "tool_arguments"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """The output of one chunk."""

    kind: PieceKind
    text: str = ""
    tokens: int = 1
    choice: int = 0
    tool: int = 0
    """Index of the tool call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsePlan:
    """One response. Times in seconds."""

    request_id: str
    token: str
    """Hex digits for the ids of the response."""
    vendor: str
    """Key of `RESPONSE_WRITERS`."""
    model: str
    streamed: bool
    input_tokens: int
    cached_tokens: int
    text_tokens: int
    chunk_tokens: int
    reasoning: Reasoning
    reasoning_tokens: int
    tool_calls: int
    refusal: bool
    choices: int
    length_finish: bool
    include_usage: bool
    continuous_usage: bool
    logprobs: bool
    """List each token with its log probability (chat completions only)."""
    ttft_s: float
    head_s: float
    gap_s: float
    gap_sigma: float
    fault: str
    fault_after: int
    stall_s: float
    coding: str
    framing: str
    exact_chunks: bool
    seed: str

    @property
    def finish(self) -> Literal["stop", "length", "tool_calls"]:
        """The finish reason in OpenAI's terms; response writers translate it."""
        if self.tool_calls:
            return "tool_calls"
        return "length" if self.length_finish else "stop"

    def pieces(self) -> Iterator[Piece]:
        """The output, chunk by chunk. Each call yields the same pieces."""
        rng = Random(self.seed)  # noqa: S311
        if self.reasoning == "visible":
            for count in _sizes(rng, self.reasoning_tokens, self.chunk_tokens, self.exact_chunks):
                yield Piece(kind="reasoning", text=words(rng, count), tokens=count)
        kind: PieceKind = "refusal" if self.refusal else "text"
        for count in _sizes(rng, self.text_tokens, self.chunk_tokens, self.exact_chunks):
            for choice in range(self.choices):
                yield Piece(kind=kind, text=words(rng, count), tokens=count, choice=choice)
        for tool in range(self.tool_calls):
            name = rng.choice(("get_weather", "search_docs", "read_gauge"))
            yield Piece(kind="tool_start", text=name, tokens=3, tool=tool)
            arguments = msgspec.json.encode(
                {"station": words(rng, 2).strip(), "days": rng.randint(1, 30), "unit": "m"}
            ).decode()
            step = rng.randint(6, 14)
            for start in range(0, len(arguments), step):
                part = arguments[start : start + step]
                yield Piece(kind="tool_arguments", text=part, tokens=2, tool=tool)

    def gaps(self) -> Iterator[float]:
        """An endless series of gaps between chunks, in seconds. Each call yields the same gaps."""
        rng = Random(self.seed + "/gaps")  # noqa: S311
        mu = math.log(self.gap_s) if self.gap_s > 0 else 0.0
        while True:
            if self.gap_s <= 0:
                yield 0.0
            elif self.gap_sigma <= 0:
                yield self.gap_s
            else:
                yield rng.lognormvariate(mu, self.gap_sigma)


def _sizes(rng: Random, tokens: int, largest: int, exact: bool) -> Iterator[int]:
    while tokens > 0:
        size = largest if exact or largest == 1 else rng.randint(1, largest)
        size = min(size, tokens)
        tokens -= size
        yield size
