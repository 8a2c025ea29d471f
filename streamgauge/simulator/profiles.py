"""The simulated models (`models.toml`): vendor format, path, and the distributions that responses are drawn from. Pure.

Time to first token and gaps are log-normal. The values are plausible, not measured. `profile_for` maps a request's path and model
to a profile, also for models that have none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from streamgauge.simulator.written_streams import WRITTEN_STREAMS

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
    cached_shares: tuple[float, ...] = (0.0, 0.0, 0.5, 0.9)
    """Shares of the prompt that are in the cache, equally likely."""
    tool_share: float = 0.0
    """Share of requests with tools that get tool calls."""


def _profile(model: str, values: dict[str, Any]) -> Profile:
    path = WRITTEN_STREAMS[values["vendor"]].settings["path"][0].replace("<model>", model)
    return msgspec.convert({"model": model, "path": path, **values}, Profile)


_MODELS = msgspec.toml.decode(Path(__file__).with_name("models.toml").read_bytes())
PROFILES: dict[str, Profile] = {model: _profile(model, values) for model, values in _MODELS.items()}
HTTP_MODELS = tuple(model for model, profile in PROFILES.items() if profile.vendor != "realtime")
_API_BY_PATH_END = {
    "/chat/completions": "chat", "/completions": "completions", "/responses": "responses", "/messages": "messages",
    "/api/v1/chat": "lmstudio", "/v2/chat": "cohere", ":streamGenerateContent": "gemini", ":generateContent": "gemini",
}  # fmt: skip
SOCKET_API_BY_PATH_END = {
    "/responses": "responses", "/realtime": "realtime", "BidiGenerateContent": "gemini_live", "/live/sessions": "openai_live",
}  # fmt: skip


def default_vendor(api: str, family: str = "") -> str:
    """The vendor of models without a profile. `family`: begin of its name, if there is one."""
    of_api = [vendor for vendor, stream in WRITTEN_STREAMS.items() if stream.api == api]
    usual = {"chat": "openai", "messages": "anthropic"}.get(api, api)
    return next((vendor for vendor in of_api if family and vendor.startswith(family)), usual)


def api_of_path(path: str, apis: Mapping[str, str] = _API_BY_PATH_END) -> str | None:
    """The API of an endpoint path, or None."""
    return next((api for ending, api in apis.items() if path.endswith(ending)), None)


def profile_for(model: Any, path: str, api: str) -> Profile:
    """The profile of `model`, with a vendor that belongs to `api`."""
    profile = PROFILES.get(model) if isinstance(model, str) else None
    if profile is not None and WRITTEN_STREAMS[profile.vendor].api == api:
        return profile
    is_fireworks = "/inference/" in path or (profile is not None and profile.vendor == "fireworks")
    vendor = default_vendor(api, "fireworks" if is_fireworks else "")
    return replace(profile or PROFILES["gpt-sim-mini"], vendor=vendor)
