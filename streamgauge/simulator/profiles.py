"""The simulated models: vendor format, path, and the distributions that responses are drawn from. Pure.

Time to first token and gaps are log-normal. The values are plausible, not measured. `profile_for` maps a request's path and model
to a profile, also for models that have none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

Reasoning = Literal["none", "visible", "hidden"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One simulated model. Times in seconds, at time scale 1."""

    model: str
    vendor: str
    """Key of `streamgauge.simulator.written_streams.WRITTEN_STREAMS`."""
    path: str
    """The vendor's endpoint."""
    ttft_s: float = 0.35
    """Median time to first token, without prefill."""
    ttft_sigma: float = 0.35
    prefill_tokens_per_s: float = 8000.0
    """Prefill speed: prompt tokens / this is added to the time to first token."""
    gap_s: float = 0.020
    """Median gap between two chunks."""
    gap_sigma: float = 0.45
    chunk_tokens: int = 1
    """Largest number of tokens in one chunk."""
    tokens: int = 90
    """Median length of the response."""
    tokens_sigma: float = 0.6
    reasoning: Reasoning = "none"
    reasoning_tokens: int = 0
    """Median length of the reasoning."""
    head_fraction: float = 0.1
    """When the response headers are sent, as a share of the time to first token."""
    tool_share: float = 0.0
    """Share of requests with tools that get tool calls."""


def _p(model: str, vendor: str, path: str, **values: object) -> Profile:
    return Profile(model=model, vendor=vendor, path=path, **values)  # type: ignore[arg-type]


_CHAT = "/v1/chat/completions"
_PROFILES = (
    _p("gpt-sim-mini", "openai", _CHAT, ttft_s=0.30, gap_s=0.010, tool_share=0.5, head_fraction=0.9),
    _p("gpt-sim-large", "openai", _CHAT, ttft_s=0.55, gap_s=0.022, tool_share=0.4, head_fraction=0.9),
    _p("gpt-sim-thinker", "openai", _CHAT, ttft_s=0.40, gap_s=0.014, reasoning="hidden",
       reasoning_tokens=120, head_fraction=0.95),
    _p("gpt-sim-responses", "responses", "/v1/responses", ttft_s=0.40, gap_s=0.012, reasoning="visible",
       reasoning_tokens=30, tool_share=0.5),
    _p("gpt-sim-realtime", "realtime", "/v1/realtime", ttft_s=0.35, gap_s=0.030, chunk_tokens=4, tokens=40, tool_share=0.2),
    _p("gpt-sim-instruct", "completions", "/v1/completions", ttft_s=0.20, gap_s=0.012, tokens=60),
    _p("gpt-sim-azure", "azure", "/openai/deployments/gpt-sim-azure/chat/completions", ttft_s=0.45, gap_s=0.018),
    _p("claude-sim-large", "anthropic", "/v1/messages", ttft_s=0.60, gap_s=0.028, chunk_tokens=4, tool_share=0.5,
       head_fraction=0.6),
    _p("claude-sim-thinker", "anthropic", "/v1/messages", ttft_s=0.70, gap_s=0.030, chunk_tokens=4,
       reasoning="visible", reasoning_tokens=80, head_fraction=0.6),
    _p("friendli-sim-8b", "friendli", "/dedicated/v1/messages", ttft_s=0.18, gap_s=0.009),
    _p("llama-sim-8b", "xerotier", _CHAT, ttft_s=0.25, gap_s=0.012, tool_share=0.3),
    _p("oss-sim-20b", "lmstudio", "/api/v1/chat", ttft_s=0.80, gap_s=0.030, tokens=60, reasoning="visible",
       reasoning_tokens=25, tool_share=0.3, head_fraction=0.02),
    _p("edge-sim", "endless", _CHAT, ttft_s=0.30, gap_s=0.025, tool_share=0.3),
    _p("kimi-sim", "fireworks", "/inference/v1/chat/completions", ttft_s=0.28, gap_s=0.008, chunk_tokens=3),
    _p("command-sim", "cohere", "/v2/chat", ttft_s=0.40, gap_s=0.016, tool_share=0.3),
    _p("gemini-sim-flash", "gemini", "/v1beta/models/gemini-sim-flash:streamGenerateContent?alt=sse",
       ttft_s=0.45, gap_s=0.120, chunk_tokens=16, tokens=160, tool_share=0.3),
    _p("gemini-sim-pro", "gemini", "/v1beta/models/gemini-sim-pro:streamGenerateContent?alt=sse",
       ttft_s=0.80, gap_s=0.160, chunk_tokens=16, tokens=160, reasoning="visible", reasoning_tokens=60),
    _p("qwen-sim-32b", "vllm", _CHAT, ttft_s=0.22, gap_s=0.018, reasoning="visible", reasoning_tokens=50),
    _p("mixtral-sim", "sglang", _CHAT, ttft_s=0.20, gap_s=0.011),
    _p("gguf-sim-3b", "llamacpp", _CHAT, ttft_s=0.35, gap_s=0.035, tokens=50),
    _p("gemma-sim", "ollama", _CHAT, ttft_s=0.50, gap_s=0.040, tokens=50),
    _p("router-sim", "openrouter", "/api/v1/chat/completions", ttft_s=0.70, gap_s=0.015, head_fraction=0.05),
    _p("deepseek-sim-r", "deepseek", "/chat/completions", ttft_s=0.50, gap_s=0.020, reasoning="visible",
       reasoning_tokens=120, tokens=70),
    _p("groq-sim-70b", "groq", "/openai/v1/chat/completions", ttft_s=0.10, gap_s=0.003, tokens=140),
    _p("mistral-sim", "mistral", _CHAT, ttft_s=0.25, gap_s=0.014, tool_share=0.3),
    _p("grok-sim", "xai", _CHAT, ttft_s=0.40, gap_s=0.013, reasoning="visible", reasoning_tokens=40),
    _p("together-sim", "together", _CHAT, ttft_s=0.30, gap_s=0.010),
)  # fmt: skip

PROFILES: dict[str, Profile] = {profile.model: profile for profile in _PROFILES}
HTTP_MODELS = tuple(profile.model for profile in _PROFILES if profile.vendor != "realtime")


DEFAULT_VENDOR = {
    "chat": "openai", "completions": "completions", "responses": "responses", "messages": "anthropic",
    "lmstudio": "lmstudio", "cohere": "cohere", "gemini": "gemini", "realtime": "realtime",
}  # fmt: skip
"""API → vendor of a model without a profile."""
_FIREWORKS = {"chat": "fireworks", "completions": "fireworks_completions", "messages": "fireworks_messages"}
_API_BY_PATH_END = {
    "/chat/completions": "chat", "/completions": "completions", "/responses": "responses", "/messages": "messages",
    "/api/v1/chat": "lmstudio", "/v2/chat": "cohere", ":streamGenerateContent": "gemini", ":generateContent": "gemini",
}  # fmt: skip


def api_of_path(path: str) -> str | None:
    """The API of an endpoint path, or None."""
    return next((api for ending, api in _API_BY_PATH_END.items() if path.endswith(ending)), None)


def api_of_vendor(vendor: str) -> str:
    """The API that a vendor format belongs to."""
    for api in ("completions", "messages"):
        if vendor.endswith(f"_{api}"):
            return api
    for api, default in DEFAULT_VENDOR.items():
        if vendor == default:
            return api
    return "messages" if vendor == "friendli" else "chat"


def profile_for(model: Any, path: str, api: str) -> Profile:
    """The profile of `model`, with a vendor that belongs to `api`."""
    profile = PROFILES.get(model) if isinstance(model, str) else None
    if profile is not None and api_of_vendor(profile.vendor) == api:
        return profile
    is_fireworks = "/inference/" in path or (profile is not None and profile.vendor == "fireworks")
    vendor = _FIREWORKS.get(api) if is_fireworks else None
    return replace(profile or PROFILES["gpt-sim-mini"], vendor=vendor or DEFAULT_VENDOR[api])
