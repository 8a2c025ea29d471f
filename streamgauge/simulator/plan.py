"""What is decided about one request before a byte of it is answered.

The decision comes from a seeded draw (`draw`) over the model's profile, keyed by the simulator's seed and the
request's id, so that it does not depend on which request came first. Whatever the request's own `x-simulate` header
says (JSON, `Instructions`) is taken instead of the draw. No clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any, Literal

import msgspec

from streamgauge.simulator.profiles import Profile, Reasoning
from streamgauge.simulator.prose import words

PieceKind = Literal["text", "reasoning", "refusal", "tool_start", "tool_arguments"]

STREAM_FAULTS = (
    "truncate",  # clean end of the body, neither finish nor terminal: `truncated`
    "reset",  # TCP RST in mid-stream: `upstream_reset`; bytes still under way may be lost, so counts are upper bounds
    "cut",  # FIN in the middle of a chunked body: `upstream_reset`, every byte arrives
    "inband_error",  # an error in the vendor's own shape inside the 200 stream: `inband_error`
    "malformed",  # a broken JSON event, then a clean end without terminal: `malformed`
    "malformed_event",  # a broken JSON event, and the stream goes on to its finish: `ok`, counted
    "stall",  # a silence of `stall_ms`: `ok`
    "burst",  # everything that is left in one write: `ok`
    "linger",  # the connection stays open for `stall_ms` after the terminal: `ok`
)
OTHER_FAULTS = (
    "none",
    "slow_first_byte",  # the head comes only with the first token, four times later than usual: `ok`
    "reset_before_head",  # RST instead of a response: `upstream_reset`
)  # and http_NNN, an error response with the vendor's JSON body: `http_error`

DRAWN_FAULTS: tuple[tuple[str, float], ...] = (
    ("http_429", 24), ("http_500", 6), ("http_503", 8), ("inband_error", 12), ("truncate", 10), ("reset", 6),
    ("cut", 4), ("malformed", 2), ("malformed_event", 4), ("stall", 10), ("burst", 7), ("linger", 3), ("slow_first_byte", 4),
    ("reset_before_head", 3),
)  # fmt: skip
"""Kinds of fault that a draw chooses from, and their weights."""

MAX_TOKENS = 2_000_000


class Instructions(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The header `x-simulate`: what the request asks of the simulator. Times in milliseconds.

    What is left out is drawn, with two exceptions that make scripts exact: a request that has the header meets no fault
    unless it names one, and one that gives `tokens` says nothing else (reasoning, tools, refusal) unless it asks for it.
    """

    ttft_ms: float | None = None
    """First output, counted from the end of the request."""
    gap_ms: float | None = None
    """Median gap between two chunks."""
    jitter: float | None = None
    """Sigma of the log-normal gaps; 0 = all alike. With `gap_ms` and no `jitter`: 0."""
    tokens: int | None = None
    """Tokens of text (of each choice)."""
    chunk_tokens: int | None = None
    """Tokens in each chunk."""
    reasoning_tokens: int | None = None
    reasoning: Reasoning | None = None
    tool_calls: int | None = None
    refusal: bool | None = None
    finish: Literal["stop", "length"] | None = None
    usage: bool | None = None
    """Report usage, whatever the request's own options say."""
    fault: str | None = None
    fault_after: int | None = None
    """The fault comes after this many output events (default: drawn; 0 = before the first)."""
    stall_ms: float | None = None
    speaker: str | None = None
    """Vendor to speak like, instead of the model's."""
    coding: Literal["identity", "gzip", "deflate"] | None = None
    framing: Literal["chunked", "close"] | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None


def instructions(header: str | None) -> Instructions:
    """Read `x-simulate`. Raises ValueError with what is wrong with it."""
    if header is None:
        return Instructions()
    try:
        wish = msgspec.json.decode(header, type=Instructions)
    except msgspec.DecodeError as e:
        raise ValueError(f"x-simulate: {e}") from None
    fault = wish.fault
    if fault is not None and fault not in STREAM_FAULTS + OTHER_FAULTS and http_fault(fault) is None:
        raise ValueError(f"x-simulate: unknown fault {fault!r}")
    for name in ("tokens", "reasoning_tokens", "tool_calls", "chunk_tokens", "input_tokens", "fault_after"):
        value = getattr(wish, name)
        if value is not None and not 0 <= value <= MAX_TOKENS:
            raise ValueError(f"x-simulate: {name} must be between 0 and {MAX_TOKENS}")
    for name in ("ttft_ms", "gap_ms", "stall_ms", "jitter"):
        value = getattr(wish, name)
        if value is not None and not 0 <= value <= 3_600_000:
            raise ValueError(f"x-simulate: {name} must be between 0 and 3600000")
    return wish


def http_fault(fault: str) -> int | None:
    """The status of a fault `http_NNN`."""
    status = fault.removeprefix("http_")
    return int(status) if status != fault and status.isdigit() and 400 <= int(status) <= 599 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What the model says in one chunk."""

    kind: PieceKind
    text: str = ""
    tokens: int = 1
    choice: int = 0
    tool: int = 0
    """Number of the tool call, from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision. Times in seconds."""

    request_id: str
    token: str
    """Hex digits that the ids of the response are made of."""
    speaker: str
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
    """List each token with its log probability, where the vendor knows how (chat completions)."""
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
        """Why the model stops, in OpenAI's words; speakers translate."""
        if self.tool_calls:
            return "tool_calls"
        return "length" if self.length_finish else "stop"

    @property
    def output_tokens(self) -> int:
        """Every token that is billed, reasoning included."""
        said = sum(piece.tokens for piece in self.pieces())
        return said + (self.reasoning_tokens if self.reasoning == "hidden" else 0)

    def pieces(self) -> Iterator[Piece]:
        """Everything that the model will say, chunk by chunk; the same at every call."""
        rng = Random(self.seed)  # noqa: S311  a simulation wants a reproducible draw
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
        """Seconds between two chunks, for ever; the same at every call."""
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


def prompt_tokens(body: dict[str, Any]) -> int:
    """Tokens of the prompt, by the rule of thumb of four bytes each."""
    shown = {key: body[key] for key in _PROMPT_FIELDS if key in body}
    return max(1, len(msgspec.json.encode(shown)) // 4)


_PROMPT_FIELDS = (
    "messages",
    "prompt",
    "input",
    "contents",
    "system",
    "instructions",
    "tools",
    "systemInstruction",
)


def draw(
    *,
    seed: str,
    request_id: str,
    profile: Profile,
    body: dict[str, Any],
    streamed: bool,
    wish: Instructions,
    rate_faults: float,
    time_scale: float,
) -> Plan:
    """Decide about one request. `rate_faults` is the share of requests that draw a fault."""
    key = f"{seed}/{request_id}"
    rng = Random(key)  # noqa: S311
    # Every draw is made in the same order whether it is used or not: forcing one value leaves the others alone.
    token = f"{rng.getrandbits(128):032x}"
    fault_drawn = rng.random() < rate_faults
    fault = (
        rng.choices([f for f, _ in DRAWN_FAULTS], [w for _, w in DRAWN_FAULTS])[0] if fault_drawn else "none"
    )
    ttft_s = rng.lognormvariate(math.log(profile.ttft_s), profile.ttft_sigma)
    text_tokens = 1 + int(rng.lognormvariate(math.log(profile.tokens), profile.tokens_sigma))
    reasoning_tokens = 0
    if profile.reasoning != "none":
        reasoning_tokens = 1 + int(rng.lognormvariate(math.log(max(1, profile.reasoning_tokens)), 0.5))
    wants_tools = bool(body.get("tools")) and rng.random() < profile.tool_share
    tool_calls = rng.choice((1, 1, 2)) if wants_tools else 0
    refusal = rng.random() < 0.01
    cached_share = rng.choice((0.0, 0.0, 0.5, 0.9))
    stall_s = rng.uniform(2.5, 5.0)
    fault_share = rng.random()

    if tool_calls:
        text_tokens = min(text_tokens, 8)
    limit = _limit(body)
    length_finish = False
    if limit is not None and text_tokens > limit:
        text_tokens, length_finish = limit, True
    if wish.finish is not None:
        length_finish = wish.finish == "length"
    if wish.tokens is not None:
        text_tokens, tool_calls, refusal = wish.tokens, 0, False
        if wish.reasoning_tokens is None:
            reasoning_tokens = 0
    if wish.tool_calls is not None:
        tool_calls = wish.tool_calls
    reasoning: Reasoning = profile.reasoning
    if wish.reasoning_tokens is not None:
        reasoning_tokens = wish.reasoning_tokens
        reasoning = profile.reasoning if profile.reasoning != "none" else "visible"
    if wish.reasoning is not None:
        reasoning = wish.reasoning
    if reasoning == "none" or reasoning_tokens == 0:
        reasoning, reasoning_tokens = "none", 0
    input_tokens = wish.input_tokens if wish.input_tokens is not None else prompt_tokens(body)
    cached = int(input_tokens * cached_share)
    if wish.cached_tokens is not None:
        cached = min(wish.cached_tokens, input_tokens)
    if wish != Instructions():
        fault = wish.fault or "none"
    chunk_tokens = max(1, wish.chunk_tokens or profile.chunk_tokens)

    gap_s = profile.gap_s * time_scale if wish.gap_ms is None else wish.gap_ms / 1000
    gap_sigma = profile.gap_sigma if wish.gap_ms is None else 0.0
    if wish.jitter is not None:
        gap_sigma = wish.jitter
    if wish.ttft_ms is not None:
        ttft_s = wish.ttft_ms / 1000
    else:
        ttft_s += (input_tokens - cached) / profile.prefill_tokens_per_s
        if reasoning == "hidden":
            ttft_s += reasoning_tokens * profile.gap_s
        ttft_s *= (4 if fault == "slow_first_byte" else 1) * time_scale
    head_s = ttft_s * (1.0 if fault == "slow_first_byte" else profile.head_fraction)
    stall_s = stall_s * time_scale if wish.stall_ms is None else wish.stall_ms / 1000

    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    choices = body.get("n")
    choices = choices if isinstance(choices, int) and 1 <= choices <= 128 else 1
    expected_events = text_tokens * choices // max(1, (chunk_tokens + 1) // 2) + 4 * tool_calls
    if reasoning == "visible":
        expected_events += reasoning_tokens // max(1, (chunk_tokens + 1) // 2)
    fault_after = int(fault_share * max(1, expected_events)) if wish.fault_after is None else wish.fault_after
    return Plan(
        request_id=request_id,
        token=token,
        speaker=wish.speaker or profile.speaker,
        model=str(body.get("model") or profile.model),
        streamed=streamed,
        input_tokens=input_tokens,
        cached_tokens=cached,
        text_tokens=text_tokens,
        chunk_tokens=chunk_tokens,
        reasoning=reasoning,
        reasoning_tokens=reasoning_tokens,
        tool_calls=tool_calls,
        refusal=refusal if wish.refusal is None else wish.refusal,
        choices=choices,
        length_finish=length_finish,
        include_usage=bool(options.get("include_usage")) if wish.usage is None else wish.usage,
        continuous_usage=bool(options.get("continuous_usage_stats")),
        logprobs=body.get("logprobs") is True,
        ttft_s=ttft_s,
        head_s=head_s,
        gap_s=gap_s,
        gap_sigma=gap_sigma,
        fault=fault,
        fault_after=fault_after,
        stall_s=stall_s,
        coding=wish.coding or "identity",
        framing=wish.framing or "chunked",
        exact_chunks=wish.chunk_tokens is not None,
        seed=key,
    )


def _limit(body: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
