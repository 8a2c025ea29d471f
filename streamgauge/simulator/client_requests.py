"""The requests of simulated clients, in the format of each API. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec

from streamgauge.simulator.endpoints import api_of_vendor
from streamgauge.simulator.planning.profiles import Profile
from streamgauge.simulator.planning.words import words

_ARGUMENTS = {"type": "object", "properties": {"station": {"type": "string"}, "days": {"type": "integer"}}}
_NAME, _PURPOSE = "read_gauge", "Read the water level at a station."


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRequest:
    """One request."""

    request_id: str
    model: str
    path: str
    """Path and query."""
    headers: tuple[tuple[str, str], ...]
    body: bytes
    streamed: bool


def draw_request(
    rng: Random, profile: Profile, request_id: str, key: str, *, stream_share: float = 0.93
) -> ClientRequest:
    """Draw a request to a model from the client with API key `key`."""
    api = api_of_vendor(profile.vendor)
    size = min(4000, 1 + int(rng.lognormvariate(math.log(150), 1.1)))
    prompt = words(rng, size).strip()
    streamed = rng.random() < stream_share
    tools = rng.random() < 0.4
    limit = rng.choice((None, None, None, 40, 300))
    path = profile.path
    if api == "gemini":
        body = _gemini(prompt, tools)
        if not streamed:
            path = path.replace(":streamGenerateContent?alt=sse", ":generateContent")
    else:
        body = _BODIES[api](profile.model, prompt, tools)
        body["stream"] = streamed
        if limit is not None and api in ("chat", "completions"):
            body["max_tokens"] = limit
    if api in ("chat", "completions") and streamed:
        options: dict[str, bool] = {}
        if rng.random() < 0.9:
            options["include_usage"] = True
        if profile.vendor in ("vllm", "sglang") and rng.random() < 0.5:
            options["continuous_usage_stats"] = True
        if options:
            body["stream_options"] = options
        if profile.vendor in ("openai", "vllm") and rng.random() < 0.04:
            body["n"] = rng.choice((2, 3))
        if api == "chat" and rng.random() < 0.05:
            body["logprobs"] = True
    headers = [("content-type", "application/json"), ("x-request-id", request_id), *_credentials(api, key)]
    variant = rng.random()
    if variant < 0.02 and streamed:
        headers.append(("x-simulate", '{"coding":"gzip"}'))
    elif variant < 0.04 and streamed:
        headers.append(("x-simulate", '{"framing":"close"}'))
    return ClientRequest(
        request_id=request_id,
        model=profile.model,
        path=path,
        headers=tuple(headers),
        body=msgspec.json.encode(body),
        streamed=streamed,
    )


def _credentials(api: str, key: str) -> list[tuple[str, str]]:
    if api == "messages":
        return [("x-api-key", key), ("anthropic-version", "2023-06-01")]
    if api == "gemini":
        return [("x-goog-api-key", key)]
    return [("authorization", f"Bearer {key}")]


def _chat(model: str, prompt: str, tools: bool) -> dict[str, Any]:
    function = {"name": _NAME, "description": _PURPOSE, "parameters": _ARGUMENTS}
    offered = {"tools": [{"type": "function", "function": function}]} if tools else {}
    return {"model": model, "messages": [{"role": "user", "content": prompt}], **offered}


def _completions(model: str, prompt: str, tools: bool) -> dict[str, Any]:
    return {"model": model, "prompt": prompt}


def _messages(model: str, prompt: str, tools: bool) -> dict[str, Any]:
    tool = {"name": _NAME, "description": _PURPOSE, "input_schema": _ARGUMENTS}
    offered = {"tools": [tool]} if tools else {}
    return {"model": model, "max_tokens": 4096, "messages": [{"role": "user", "content": prompt}], **offered}


def _responses(model: str, prompt: str, tools: bool) -> dict[str, Any]:
    tool = {"type": "function", "name": _NAME, "description": _PURPOSE, "parameters": _ARGUMENTS}
    return {"model": model, "input": prompt, **({"tools": [tool]} if tools else {})}


def _lmstudio(model: str, prompt: str, tools: bool) -> dict[str, Any]:
    return {"model": model, "input": prompt, **({"tools": [_NAME]} if tools else {})}


def _gemini(prompt: str, tools: bool) -> dict[str, Any]:
    declared = {"name": _NAME, "description": _PURPOSE, "parameters": _ARGUMENTS}
    offered = {"tools": [{"functionDeclarations": [declared]}]} if tools else {}
    return {"contents": [{"role": "user", "parts": [{"text": prompt}]}], **offered}


_BODIES = {
    "chat": _chat,
    "completions": _completions,
    "messages": _messages,
    "responses": _responses,
    "lmstudio": _lmstudio,
    "cohere": _chat,
}
