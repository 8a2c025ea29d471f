"""The names that OpenTelemetry's GenAI conventions give to what we measure: one table, two profiles.

The conventions left the core repository in 2026 and are in flux. `1.41` is the last released state in the core conventions;
`genai-main` is what their own repository says by now. Only these two tables know a `gen_ai.*` name; no such name is
invented here: what the conventions have no word for is `streamgauge.*` (`OWN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

SECONDS_BOUNDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bucket boundaries that the conventions ask for in durations, seconds."""
TOKEN_BOUNDS = (
    1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0, 262144.0, 1048576.0, 4194304.0, 16777216.0, 67108864.0,
)  # fmt: skip
"""The same, for tokens."""

OWN = "streamgauge."
"""Prefix of attributes, events and metrics of our own."""
EXCEPTION_EVENT = "gen_ai.client.operation.exception"
OTHER = "_other"
"""Stands for every model beyond the cap on metric attributes."""


@dataclass(frozen=True, slots=True)
class Names:
    """One profile: attribute and metric names by what they mean."""

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
    output_messages: str = "gen_ai.output.messages"
    input_tokens: str = "gen_ai.usage.input_tokens"
    output_tokens: str = "gen_ai.usage.output_tokens"
    cache_read_tokens: str = "gen_ai.usage.cache_read.input_tokens"
    reasoning_tokens: str = "gen_ai.usage.reasoning.output_tokens"
    tool_name: str = "gen_ai.tool.name"
    tool_call_id: str = "gen_ai.tool.call.id"
    token_type: str = "gen_ai.token.type"  # noqa: S105 (tokens of text)
    reasoning_level: str | None = None
    """None: the profile has no word for it."""
    openai_service_tier: str = "openai.request.service_tier"
    openai_api_type: str = "openai.api.type"
    duration_metric: str = "gen_ai.client.operation.duration"
    first_chunk_metric: str = "gen_ai.client.operation.time_to_first_chunk"
    per_chunk_metric: str = "gen_ai.client.operation.time_per_output_chunk"
    token_metrics: tuple[str, str] = ("gen_ai.client.token.usage", "gen_ai.client.token.usage")
    """(input, output): one histogram told apart by `token_type`, or two."""

    @property
    def request_parameters(self) -> Mapping[str, str]:
        """Attribute by field of `analytics.request.RequestRead`."""
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
CHOICE_COUNT = "gen_ai.request.choice.count"
"""Told when it is not 1."""

PROFILES: Mapping[str, Names] = {
    "1.41": Names("1.41", "https://opentelemetry.io/schemas/1.41.0"),
    "genai-main": Names(
        "genai-main",
        None,
        reasoning_level="gen_ai.request.reasoning.level",
        duration_metric="gen_ai.client.inference.duration",
        first_chunk_metric="gen_ai.client.inference.time_to_first_chunk",
        per_chunk_metric="gen_ai.client.inference.time_per_output_chunk",
        token_metrics=(
            "gen_ai.client.inference.operation.input_tokens",
            "gen_ai.client.inference.operation.output_tokens",
        ),
    ),
}


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
