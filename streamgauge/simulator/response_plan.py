"""Plan the whole response to a request before its first byte is sent: content, timing and fault. Pure: no clock, no I/O.

The draw is keyed by seed and request id, so it does not depend on the order of requests. The request header `x-simulate`, a JSON
object, forces values. Other values are drawn, with two exceptions that make scripted responses exact:

- A request with the header gets no fault unless the header names one.
- With `tokens`, the response has no reasoning, tool calls or refusal unless the header asks for them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Annotated, Any, Literal

import msgspec

from streamgauge.simulator.profiles import Profile, Reasoning

PieceKind = Literal["text", "reasoning", "refusal", "audio", "tool_start", "tool_arguments"]


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
    """Key of `WRITTEN_STREAMS`."""
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
    tools: tuple[str, ...] = ()
    """Names of the tools that may be called, if the request declares several."""
    rate_limit: Mapping[str, Any] = field(default_factory=dict)
    """Placeholders of the headers of the rate limit. Empty: the response has none."""

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
            name = rng.choice(self.tools or ("get_weather", "search_docs", "read_gauge"))
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


_PLAIN = """the a river of and to in is it that stream gauge measures water level over time while rain falls upstream
slowly then quickly past stones banks bridges mills towns fields until sea each hour someone reads number writes down
compares with yesterday last spring high mark dry summer flood season current depth speed width flow rate signal noise
model answer question reason because therefore however first second third finally note example shows how many where
when who what between under above along across before after during never always often rarely maybe surely small large
fast slow early late warm cold clear muddy quiet loud north south east west"""
_MARKED = ["naïve", "café", "Größe", "東京", "река", "—", "½", "🌊", "señal", "niveau\u0301"]

VOCABULARY: tuple[str, ...] = tuple(" " + word for word in [*_PLAIN.split(), *_MARKED])


def words(rng: Random, count: int) -> str:
    """Draw `count` words, one token each."""
    return "".join(rng.choices(VOCABULARY, k=count))


STREAM_FAULTS = (
    "truncate",  # clean end of the body, neither finish nor terminal: `truncated`
    "reset",  # TCP RST mid-stream: `upstream_reset`; bytes under way may be lost, so counts are upper bounds
    "cut",  # FIN in the middle of a chunked body: `upstream_reset`, every byte arrives
    "inband_error",  # an error in the vendor's format inside the 200 stream: `inband_error`
    "malformed",  # a broken JSON event, then a clean end without terminal: `malformed`
    "malformed_event",  # a broken JSON event, then the stream continues to its finish: `ok`, counted
    "stall",  # a silence of `stall_ms`: `ok`
    "burst",  # all remaining output in one write: `ok`
    "linger",  # the connection stays open for `stall_ms` after the terminal: `ok`
    "connection_limit",  # over a WebSocket: its age is the reason for an error, then it is closed: `inband_error`
)
OTHER_FAULTS = (
    "none",
    "slow_first_byte",  # headers arrive with the first token, four times later than usual: `ok`
    "reset_before_head",  # RST instead of a response: `upstream_reset`
)  # and http_NNN, an error response with the vendor's JSON body: `http_error`


Count = Annotated[int, msgspec.Meta(ge=0, le=2_000_000)]
Factor = Annotated[float, msgspec.Meta(ge=0, le=1000)]
Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=3_600_000)]


class ForcedValues(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The decoded header. Times in milliseconds; None = not forced."""

    ttft_ms: Milliseconds | None = None
    """First output, measured from the end of the request."""
    ttft_factor: Factor = 1.0
    """Multiplier of the drawn time to first token."""
    gap_ms: Milliseconds | None = None
    """Median gap between two chunks."""
    gap_factor: Factor = 1.0
    """Multiplier of the drawn gaps."""
    jitter: Milliseconds | None = None
    """Sigma of the log-normal gaps; 0 = constant. Defaults to 0 with `gap_ms`."""
    tokens: Count | None = None
    """Tokens of text, per choice."""
    chunk_tokens: Count | None = None
    """Tokens in each chunk."""
    reasoning_tokens: Count | None = None
    reasoning: Reasoning | None = None
    tool_calls: Count | None = None
    refusal: bool | None = None
    finish: Literal["stop", "length"] | None = None
    usage: bool | None = None
    """Report usage, whatever the request body asks for."""
    fault: str | None = None
    fault_after: Count | None = None
    """Output events before the fault; 0 = before the first."""
    stall_ms: Milliseconds | None = None
    speaker: str | None = None
    """Vendor whose format is used instead of the model's."""
    coding: Literal["identity", "gzip", "deflate"] | None = None
    framing: Literal["chunked", "close"] | None = None
    input_tokens: Count | None = None
    cached_tokens: int | None = None


def read_simulate_header(header: str | None) -> ForcedValues:
    """Decode the header. Raises ValueError that names the invalid part."""
    if header is None:
        return ForcedValues()
    try:
        forced = msgspec.json.decode(header, type=ForcedValues)
    except msgspec.DecodeError as e:
        raise ValueError(f"x-simulate: {e}") from None
    fault = forced.fault
    if fault is not None and fault not in STREAM_FAULTS + OTHER_FAULTS and http_fault_status(fault) is None:
        raise ValueError(f"x-simulate: unknown fault {fault!r}")
    return forced


def http_fault_status(fault: str) -> int | None:
    """The status of a fault `http_NNN`; None for other faults."""
    status = fault.removeprefix("http_")
    return int(status) if status != fault and status.isdigit() and 400 <= int(status) <= 599 else None


FAULT_WEIGHTS = {
    "http_429": 24, "http_500": 6, "http_503": 8, "inband_error": 12, "truncate": 10, "reset": 6, "cut": 4, "malformed": 2,
    "malformed_event": 4, "stall": 10, "burst": 7, "linger": 3, "slow_first_byte": 4, "reset_before_head": 3,
}  # fmt: skip
_PROMPT_FIELDS = ("messages", "prompt", "input", "contents", "system", "instructions", "tools", "systemInstruction")  # fmt: skip


class _Drawn:
    """The drawn values of one request. All are drawn in a fixed order, even unused ones, so forcing one does not change the others."""

    def __init__(self, key: str, profile: Profile, body: dict[str, Any], rate_faults: float) -> None:
        rng = Random(key)  # noqa: S311
        self.token = f"{rng.getrandbits(128):032x}"
        has_fault = rng.random() < rate_faults
        self.fault = "none"
        if has_fault:
            self.fault = rng.choices(list(FAULT_WEIGHTS), list(FAULT_WEIGHTS.values()))[0]
        self.ttft_s = rng.lognormvariate(math.log(profile.ttft_s), profile.ttft_sigma)
        self.text_tokens = 1 + int(rng.lognormvariate(math.log(profile.tokens), profile.tokens_sigma))
        self.reasoning_tokens = 0
        if profile.reasoning != "none":
            self.reasoning_tokens = 1 + int(
                rng.lognormvariate(math.log(max(1, profile.reasoning_tokens)), 0.5)
            )
        wants_tools = bool(body.get("tools")) and rng.random() < profile.tool_share
        self.tool_calls = rng.choice((1, 1, 2)) if wants_tools else 0
        self.refusal = rng.random() < 0.01
        self.cached_share = rng.choice(profile.cached_shares)
        self.stall_s = rng.uniform(2.5, 5.0)
        self.fault_position = rng.random()
        """Where the fault occurs, as a share of the output events."""


def draw_plan(
    *,
    seed: str,
    request_id: str,
    profile: Profile,
    body: dict[str, Any],
    streamed: bool,
    forced: ForcedValues,
    rate_faults: float,
    time_scale: float,
) -> ResponsePlan:
    """Plan the response to one request. `rate_faults` is the share of requests that draw a fault."""
    key = f"{seed}/{request_id}"
    drawn = _Drawn(key, profile, body, rate_faults)
    fault = drawn.fault if forced == ForcedValues() else forced.fault or "none"
    content = _content(drawn, profile, body, forced)
    chunk_tokens = max(1, forced.chunk_tokens or profile.chunk_tokens)
    fault_after = forced.fault_after
    if fault_after is None:
        fault_after = int(drawn.fault_position * max(1, _expected_events(content, chunk_tokens)))
    options = body.get("stream_options")
    options = options if isinstance(options, dict) else {}
    return ResponsePlan(
        request_id=request_id,
        token=drawn.token,
        vendor=forced.speaker or profile.vendor,
        model=str(body.get("model") or profile.model),
        streamed=streamed,
        **content,
        chunk_tokens=chunk_tokens,
        include_usage=bool(options.get("include_usage")) if forced.usage is None else forced.usage,
        continuous_usage=bool(options.get("continuous_usage_stats")),
        logprobs=body.get("logprobs") is True,
        **_timing(drawn, profile, forced, fault, content, time_scale),
        fault=fault,
        fault_after=fault_after,
        coding=forced.coding or "identity",
        framing=forced.framing or "chunked",
        exact_chunks=forced.chunk_tokens is not None,
        seed=key,
        tools=_declared_tools(body),
    )


def _declared_tools(body: dict[str, Any]) -> tuple[str, ...]:
    """The names of the tools of a request that declares several."""
    listed = body.get("tools")
    tools = [tool for tool in listed if isinstance(tool, dict)] if isinstance(listed, list) else []
    functions = [tool.get("function", tool) for tool in tools]
    names = tuple(
        str(function["name"]) for function in functions if isinstance(function, dict) and "name" in function
    )
    return names if len(names) > 1 else ()


def _content(drawn: _Drawn, profile: Profile, body: dict[str, Any], forced: ForcedValues) -> dict[str, Any]:
    """The plan's fields for kinds and amounts of generated content."""
    text_tokens, tool_calls, refusal = drawn.text_tokens, drawn.tool_calls, drawn.refusal
    reasoning_tokens = drawn.reasoning_tokens
    if tool_calls:
        text_tokens = min(text_tokens, 8)
    limit = _token_limit(body)
    length_finish = limit is not None and text_tokens > limit
    if limit is not None:
        text_tokens = min(text_tokens, limit)
    if forced.finish is not None:
        length_finish = forced.finish == "length"
    if forced.tokens is not None:
        text_tokens, tool_calls, refusal = forced.tokens, 0, False
        if forced.reasoning_tokens is None:
            reasoning_tokens = 0
    if forced.tool_calls is not None:
        tool_calls = forced.tool_calls
    reasoning: Reasoning = profile.reasoning
    if forced.reasoning_tokens is not None:
        reasoning_tokens = forced.reasoning_tokens
        reasoning = profile.reasoning if profile.reasoning != "none" else "visible"
    if forced.reasoning is not None:
        reasoning = forced.reasoning
    if reasoning == "none" or reasoning_tokens == 0:
        reasoning, reasoning_tokens = "none", 0
    input_tokens = forced.input_tokens if forced.input_tokens is not None else _prompt_tokens(body)
    cached_tokens = int(input_tokens * drawn.cached_share)
    if forced.cached_tokens is not None:
        cached_tokens = min(forced.cached_tokens, input_tokens)
    choices = body.get("n")
    return {
        "input_tokens": input_tokens,
        "cached_tokens": cached_tokens,
        "text_tokens": text_tokens,
        "reasoning": reasoning,
        "reasoning_tokens": reasoning_tokens,
        "tool_calls": tool_calls,
        "refusal": refusal if forced.refusal is None else forced.refusal,
        "choices": choices if isinstance(choices, int) and 1 <= choices <= 128 else 1,
        "length_finish": length_finish,
    }


def _expected_events(content: dict[str, Any], chunk_tokens: int) -> int:
    tokens_per_event = max(1, (chunk_tokens + 1) // 2)
    events: int = content["text_tokens"] * content["choices"] // tokens_per_event + 4 * content["tool_calls"]
    if content["reasoning"] == "visible":
        events += content["reasoning_tokens"] // tokens_per_event
    return events


def _timing(
    drawn: _Drawn, profile: Profile, forced: ForcedValues, fault: str, content: dict[str, Any], scale: float
) -> dict[str, Any]:
    """The plan's times in seconds. Forced times are not scaled."""
    gap_sigma = profile.gap_sigma if forced.gap_ms is None else 0.0
    if forced.ttft_ms is not None:
        ttft_s = forced.ttft_ms / 1000
    else:
        ttft_s = drawn.ttft_s
        ttft_s += (content["input_tokens"] - content["cached_tokens"]) / profile.prefill_tokens_per_s
        if content["reasoning"] == "hidden":
            ttft_s += content["reasoning_tokens"] * profile.gap_s
        ttft_s *= (4 if fault == "slow_first_byte" else 1) * scale * forced.ttft_factor
    return {
        "ttft_s": ttft_s,
        "head_s": ttft_s * (1.0 if fault == "slow_first_byte" else profile.head_fraction),
        "gap_s": profile.gap_s * scale * forced.gap_factor if forced.gap_ms is None else forced.gap_ms / 1000,
        "gap_sigma": gap_sigma if forced.jitter is None else forced.jitter,
        "stall_s": drawn.stall_s * scale if forced.stall_ms is None else forced.stall_ms / 1000,
    }


def _prompt_tokens(body: dict[str, Any]) -> int:
    """Estimate the prompt tokens at four bytes per token."""
    return max(1, len(msgspec.json.encode({key: body[key] for key in _PROMPT_FIELDS if key in body})) // 4)


def _token_limit(body: dict[str, Any]) -> int | None:
    for name in ("max_completion_tokens", "max_tokens", "max_output_tokens"):
        value = body.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
