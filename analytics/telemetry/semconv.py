"""The names that OpenTelemetry's GenAI conventions give to what we measure: one table, two profiles.

The conventions left the core repository in 2026 and are in flux. `1.41` is their last release there (v1.41.0); `genai-main` is
what their own repository says by now, unreleased (docs/reference/telemetry.md says which state of it was read, and what differs). Only these
two tables know a `gen_ai.*` name, which a test keeps so; none is invented: what the conventions have no word for is
`streamgauge.*` (`OWN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

SECONDS_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bucket boundaries that the conventions ask for in durations, seconds."""
TOKEN_BOUNDS = (
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0,
)  # fmt: skip
"""The same, for tokens."""

OWN = "streamgauge."
"""Prefix of attributes, events and metrics of our own."""
OTHER = "_other"
"""Stands for every model beyond the cap on metric attributes."""


@dataclass(frozen=True, slots=True)
class Names:
    """One profile: attribute and metric names by what they mean. None: the profile has no word for it."""

    profile: str
    schema_url: str | None
    operation: str = "gen_ai.operation.name"
    provider: str = "gen_ai.provider.name"
    request_model: str = "gen_ai.request.model"
    response_model: str = "gen_ai.response.model"
    response_id: str = "gen_ai.response.id"
    finish_reasons: str = "gen_ai.response.finish_reasons"
    time_to_first_chunk: str = "gen_ai.response.time_to_first_chunk"
    output_type: str = "gen_ai.output.type"
    input_messages: str = "gen_ai.input.messages"
    output_messages: str = "gen_ai.output.messages"
    system_instructions: str = "gen_ai.system_instructions"
    input_tokens: str = "gen_ai.usage.input_tokens"
    output_tokens: str = "gen_ai.usage.output_tokens"
    cache_read_tokens: str = "gen_ai.usage.cache_read.input_tokens"
    cache_write_tokens: str = "gen_ai.usage.cache_creation.input_tokens"
    reasoning_tokens: str = "gen_ai.usage.reasoning.output_tokens"
    choice_count: str = "gen_ai.request.choice.count"
    """Told when it is not 1."""
    tool_name: str = "gen_ai.tool.name"
    tool_call_id: str = "gen_ai.tool.call.id"
    token_type: str | None = "gen_ai.token.type"  # noqa: S105 (tokens of text)
    token_modality: str | None = None
    reasoning_level: str | None = None
    missing_finish_reason: str | None = None
    """What stands for a choice that ended without its finish reason; None: it is left out."""
    whole_top_k: bool = False
    """`top_k` is an integer."""
    openai_service_tier: str = "openai.request.service_tier"
    openai_api_type: str = "openai.api.type"
    exception_event: str = "gen_ai.client.operation.exception"
    duration_metric: str = "gen_ai.client.operation.duration"
    """Of an operation that generates: see `INFERENCE`."""
    other_duration_metric: str = "gen_ai.client.operation.duration"
    """Of every other operation."""
    first_chunk_metric: str = "gen_ai.client.operation.time_to_first_chunk"
    per_chunk_metric: str = "gen_ai.client.operation.time_per_output_chunk"
    token_metrics: tuple[str, str] = ("gen_ai.client.token.usage", "gen_ai.client.token.usage")
    """Histograms of (input, output) tokens: one told apart by `token_type`, or two."""
    failures_have_token_metrics: bool = True
    """Whether a failed operation is in those histograms."""
    token_counters: Mapping[str, str] = field(default_factory=dict)
    """Counter by column of `streams`."""

    @property
    def request_parameters(self) -> Mapping[str, str]:
        """Attribute by field of `analytics.measures.request_fields.RequestRead`."""
        return _REQUEST


_REQUEST = {
    "stream": "gen_ai.request.stream",
    "temperature": "gen_ai.request.temperature",
    "top_p": "gen_ai.request.top_p",
    "top_k": "gen_ai.request.top_k",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "stop_sequences": "gen_ai.request.stop_sequences",
}
INFERENCE = frozenset(("chat", "generate_content", "text_completion"))
"""Operations that generate, by the value of `gen_ai.operation.name`."""
UNKNOWN_MODALITY = "unknown"
"""Of tokens that the provider does not break down: the value that the conventions name."""

PROFILES: Mapping[str, Names] = {
    "1.41": Names("1.41", "https://opentelemetry.io/schemas/1.41.0"),
    "genai-main": Names(
        "genai-main",
        None,
        cache_write_tokens="gen_ai.usage.cache_write.input_tokens",
        token_type=None,
        token_modality="gen_ai.token.modality",  # noqa: S106
        reasoning_level="gen_ai.request.reasoning.level",
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
        "usage.reasoning.output_tokens", "token.type", "tool.name", "tool.type", "tool.call.id", "agent.name", "agent.id",
    )
)  # fmt: skip
"""Attributes of anybody's spans that hold no prompt, no answer and no argument: the names of both profiles, and older ones."""


def names_of(profile: str) -> Names:
    """The names of a profile. Raises ValueError with what there is."""
    try:
        return PROFILES[profile]
    except KeyError:
        raise ValueError(f"semconv {profile!r} is not known: {' or '.join(PROFILES)}") from None


def openai_api_type(dialect: str | None, path: str | None) -> str | None:
    """`openai.api.type`, for OpenAI's two APIs of that name alone."""
    bare = (path or "").partition("?")[0].rstrip("/")
    if dialect == "openai_chat" and bare.endswith("/chat/completions"):
        return "chat_completions"
    if dialect == "openai_responses" and bare.endswith("/responses"):
        return "responses"
    return None
