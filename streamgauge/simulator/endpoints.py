"""Map request paths and models to an API and a vendor format. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from streamgauge.simulator.planning.profiles import PROFILES, Profile

DEFAULT_VENDOR = {
    "chat": "openai", "completions": "completions", "responses": "responses", "messages": "anthropic",
    "lmstudio": "lmstudio", "cohere": "cohere", "gemini": "gemini",
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
