"""Attribute and metric names of OpenTelemetry's GenAI semantic conventions, in two profiles. Both can be used at once.

The conventions left the core repository in 2026 and still change. `1.41` is their last release there (v1.41.0).
`genai-main` is the unreleased state of their own repository (docs/reference/telemetry.md names the revision and the
differences). All `gen_ai.*` names are in this file, and a test enforces it. Concepts without a conventional name use the
prefix `streamgauge.` (`NAMESPACE`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

SECONDS_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bucket boundaries of durations in seconds, as the conventions recommend."""
TOKEN_BOUNDS = tuple(4.0**exponent for exponent in range(14))
"""Bucket boundaries of token counts."""

SERVER_DURATION = "gen_ai.server.request.duration"
SERVER_TTFT = "gen_ai.server.time_to_first_token"
SERVER_TTFT_BOUNDS = tuple(
    ms / 1000 for ms in (1, 5, 10, 20, 40, 60, 80, 100, 250, 500, 750, 1000, 2500, 5000, 7500, 10_000)
)
SERVER_TPOT = "gen_ai.server.time_per_output_token"
SERVER_TPOT_BOUNDS = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
"""Metrics of model servers, the same in both profiles. The bounds, in seconds, are those of the conventions."""

OPERATION_DETAILS = "gen_ai.client.inference.operation.details"
"""Log event with the request and the response of an operation."""
SERVER_LATENCIES = tuple(
    f"gen_ai.latency.{name}"
    for name in (
        "time_in_queue",
        "time_in_model_prefill",
        "time_in_model_decode",
        "time_to_first_token",
        "e2e",
    )
)
"""Attributes of the spans of vLLM and SGLang, in seconds."""

NAMESPACE = "streamgauge."
"""Prefix of names outside the conventions."""


@dataclass(frozen=True, slots=True)
class Names:
    """One profile: attribute and metric names by meaning. None: the profile has no such name."""

    profile: str
    schema_url: str | None
    operation: str = "gen_ai.operation.name"
    provider: str = "gen_ai.provider.name"
    request_model: str = "gen_ai.request.model"
    response_model: str = "gen_ai.response.model"
    response_id: str = "gen_ai.response.id"
    session_id: str = "gen_ai.conversation.id"
    agent_id: str = "gen_ai.agent.id"
    finish_reasons: str = "gen_ai.response.finish_reasons"
    time_to_first_chunk: str = "gen_ai.response.time_to_first_chunk"
    output_type: str = "gen_ai.output.type"
    input_messages: str = "gen_ai.input.messages"
    output_messages: str = "gen_ai.output.messages"
    system_instructions: str = "gen_ai.system_instructions"
    input_tokens: str = "gen_ai.usage.input_tokens"
    output_tokens: str = "gen_ai.usage.output_tokens"
    cached_input_tokens: str = "gen_ai.usage.cache_read.input_tokens"
    cache_write_tokens: str = "gen_ai.usage.cache_creation.input_tokens"
    reasoning_tokens: str = "gen_ai.usage.reasoning.output_tokens"
    input_audio_tokens: str | None = None
    output_audio_tokens: str | None = None
    cached_audio_tokens: str | None = None
    input_image_tokens: str | None = None
    output_image_tokens: str | None = None
    previous_response_id: str | None = None
    choice_count: str = "gen_ai.request.choice.count"
    """Attribute that is set if the count is not 1."""
    tool_name: str = "gen_ai.tool.name"
    tool_call_id: str = "gen_ai.tool.call.id"
    token_type: str | None = "gen_ai.token.type"  # noqa: S105 (tokens of text)
    token_modality: str | None = None
    reasoning_level: str | None = None
    missing_finish_reason: str | None = None
    """Value for a choice without a finish reason. None: it is omitted."""
    whole_top_k: bool = False
    """Whether `top_k` is an integer."""
    openai_service_tier: str = "openai.request.service_tier"
    openai_api_type: str = "openai.api.type"
    exception_event: str = "gen_ai.client.operation.exception"
    duration_metric: str = "gen_ai.client.operation.duration"
    """Metric of operations in `streamgauge.analytics.schema.dimensions.INFERENCE`."""
    other_duration_metric: str = "gen_ai.client.operation.duration"
    """Metric of all other operations."""
    first_chunk_metric: str = "gen_ai.client.operation.time_to_first_chunk"
    per_chunk_metric: str = "gen_ai.client.operation.time_per_output_chunk"
    token_metrics: tuple[str, str] = ("gen_ai.client.token.usage", "gen_ai.client.token.usage")
    """Histograms of (input, output) tokens: one with the attribute `token_type`, or two."""
    failures_have_token_metrics: bool = True
    """Whether failed operations are in those histograms."""
    token_counters: Mapping[str, str] = field(default_factory=dict)
    """Counter names by column of `streams`."""
    also: Names | None = None
    """The second profile, if both are used. Values of shared names are those of the first."""

    @property
    def profiles(self) -> tuple[Names, ...]:
        return (self, self.also) if self.also is not None else (self,)

    def every(self, meaning: str) -> tuple[str, ...]:
        """The different names of an attribute in the profiles."""
        found = (getattr(names, meaning) for names in self.profiles)
        return tuple(dict.fromkeys(name for name in found if name is not None))


REQUEST_PARAMETERS: Mapping[str, str] = {
    name: f"gen_ai.request.{name}"
    for name in (
        "stream", "temperature", "top_p", "top_k", "max_tokens", "seed", "frequency_penalty", "presence_penalty", "stop_sequences",
    )
}  # fmt: skip
"""Attribute names by field of `streamgauge.analytics.decoding.request_body.RequestParameters`."""
UNKNOWN_MODALITY = "unknown"
"""The conventions' value for tokens without a reported modality."""

PROFILES: Mapping[str, Names] = {
    "1.41": Names("1.41", "https://opentelemetry.io/schemas/1.41.0"),
    "genai-main": Names(
        "genai-main",
        None,
        cache_write_tokens="gen_ai.usage.cache_write.input_tokens",
        token_type=None,
        token_modality="gen_ai.token.modality",  # noqa: S106
        reasoning_level="gen_ai.request.reasoning.level",
        input_audio_tokens="gen_ai.usage.audio.input_tokens",
        output_audio_tokens="gen_ai.usage.audio.output_tokens",
        cached_audio_tokens="gen_ai.usage.audio.cache_read.input_tokens",
        input_image_tokens="gen_ai.usage.image.input_tokens",
        output_image_tokens="gen_ai.usage.image.output_tokens",
        previous_response_id="gen_ai.request.previous_response.id",
        missing_finish_reason="error",
        whole_top_k=True,
        duration_metric="gen_ai.client.inference.duration",
        first_chunk_metric="gen_ai.client.inference.time_to_first_chunk",
        per_chunk_metric="gen_ai.client.inference.time_per_output_chunk",
        token_metrics=(
            "gen_ai.client.inference.operation.input_tokens",
            "gen_ai.client.inference.operation.output_tokens",
        ),
        failures_have_token_metrics=False,
        token_counters={
            "input_tokens": "gen_ai.client.inference.usage.input_tokens",
            "output_tokens": "gen_ai.client.inference.usage.output_tokens",
            "cached_input_tokens": "gen_ai.client.inference.usage.cache_read.input_tokens",
            "cache_write_tokens": "gen_ai.client.inference.usage.cache_write.input_tokens",
            "reasoning_tokens": "gen_ai.client.inference.usage.reasoning.output_tokens",
        },
    ),
}


WITHOUT_CONTENT = frozenset(
    "gen_ai." + name
    for name in (
        "operation.name", "provider.name", "system", "request.model", "response.model", "response.id", "conversation.id",
        "request.max_tokens", "request.temperature", "request.top_p", "request.top_k", "request.frequency_penalty",
        "request.presence_penalty", "request.seed", "request.choice.count", "request.stream", "request.encoding_formats",
        "request.reasoning.level", "response.finish_reasons", "response.time_to_first_chunk", "output.type",
        "usage.input_tokens", "usage.output_tokens", "usage.total_tokens", "usage.prompt_tokens", "usage.completion_tokens",
        "usage.cache_read.input_tokens", "usage.cache_creation.input_tokens", "usage.cache_write.input_tokens",
        "usage.reasoning.output_tokens", "usage.audio.input_tokens", "usage.audio.output_tokens", "usage.image.input_tokens",
        "usage.image.output_tokens", "usage.audio.cache_read.input_tokens", "request.previous_response.id", "token.type",
        "tool.name", "tool.type", "tool.call.id", "agent.name", "agent.id",
    )
)  # fmt: skip
"""Attributes that contain no prompt, response or argument: the names of both profiles and older ones."""


def names_of(profile: str) -> Names:
    """The names of a profile, or of two with `+` between them. Raises ValueError for an unknown one."""
    try:
        first, *more = (PROFILES[name] for name in profile.split("+", 1))
        # No schema URL: neither schema has the names of both, and a collector that translates one would set a name twice.
        return replace(first, profile=profile, schema_url=None, also=more[0]) if more else first
    except KeyError:
        raise ValueError(f"unknown semconv profile {profile!r}. Use {' or '.join(PROFILES)}") from None


def operation_name(operation: str | None) -> str:
    """The value of `gen_ai.operation.name` for a value of `streams.operation`."""
    return "execute_tool" if operation == "tools/call" else operation or "request"


def openai_api_type(dialect: str | None, path: str | None) -> str | None:
    """The value of `openai.api.type`, None for other APIs."""
    bare = (path or "").partition("?")[0].rstrip("/")
    if dialect == "openai_chat" and bare.endswith("/chat/completions"):
        return "chat_completions"
    if dialect == "openai_responses" and bare.endswith("/responses"):
        return "responses"
    return None
