"""Identify the vendor behind a dialect, from host, path and response headers.

Names are the well-known values of `gen_ai.provider.name` in OpenTelemetry's GenAI conventions, else the vendor's short name.
Host and headers take precedence over fields of the stream (`DecodedEvent.provider`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import ServerStat
from streamgauge.analytics.dialects.server_stats import SERVER_TIMING, server_timing_stats, stats_of


class Vendor(NamedTuple):
    """What identifies a vendor: words, separated by blanks."""

    hosts: str = ""
    """Hosts or parent domains."""
    headers: str = ""
    """Prefixes of the names of response headers. Those of the first vendor of `VENDORS` win."""
    paths: str = ""
    """Parts of the path."""
    server: str = ""
    """Values of the response header `server`."""
    members: str = ""
    """Top-level members of chunks of chat completions that no other vendor sends."""


VENDORS: dict[str, Vendor] = {
    "xerotier": Vendor("xerotier.ai", "x-xerotier-"),
    "fireworks": Vendor("fireworks.ai", "fireworks-", members="perf_metrics"),
    "groq": Vendor("groq.com", "x-groq-", members="x_groq"),
    "litellm": Vendor(headers="x-litellm-"),
    "anthropic": Vendor("api.anthropic.com", "anthropic-"),
    "azure.ai.openai": Vendor(
        "openai.azure.com cognitiveservices.azure.com", "azureml- x-ms-deployment-name apim-request-id",
        "/openai/deployments/", members="prompt_filter_results",
    ),
    "aws.bedrock": Vendor("amazonaws.com api.aws", "x-amzn-bedrock-"),
    "deepseek": Vendor("deepseek.com", "x-ds-trace-id"),
    "alibaba": Vendor("aliyuncs.com", "x-dashscope-"),
    "mistral_ai": Vendor("mistral.ai", "mistral-correlation-id"),
    "gcp.gemini": Vendor("generativelanguage.googleapis.com", "x-goog-"),
    "databricks": Vendor("azuredatabricks.net databricks.com", "x-databricks-", "/serving-endpoints/"),
    "friendli": Vendor("friendli.ai", "x-friendli-"),
    "sambanova": Vendor("sambanova.ai", "x-sambanova-"),
    "openrouter": Vendor("openrouter.ai", "x-generation-id", members="native_finish_reason"),
    "openai": Vendor("api.openai.com chatgpt.com", "openai-", "/backend-api/codex/", members="obfuscation"),
    "azure.ai.inference": Vendor("services.ai.azure.com models.ai.azure.com models.inference.ai.azure.com"),
    "gcp.vertex_ai": Vendor("aiplatform.googleapis.com", paths="/publishers/google/ /publishers/anthropic/"),
    "cohere": Vendor("api.cohere.com api.cohere.ai"),
    "perplexity": Vendor("perplexity.ai", members="search_results"),
    "x_ai": Vendor("x.ai"),
    "together": Vendor("together.xyz together.ai"),
    "zai": Vendor("z.ai bigmodel.cn"),
    "moonshot": Vendor("moonshot.ai moonshot.cn"),
    "minimax": Vendor("minimax.io"),
    "cerebras": Vendor("cerebras.ai", members="time_info"),
    "snowflake": Vendor("snowflakecomputing.com", paths="/api/v2/cortex/"),
    "writer": Vendor("writer.com"),
    "nebius": Vendor("nebius.com nebius.ai"),
    "novita": Vendor("novita.ai"),
    "hyperbolic": Vendor("hyperbolic.xyz"),
    "deepinfra": Vendor("deepinfra.com"),
    "centml": Vendor("centml.com"),
    "avian": Vendor("avian.io"),
    "venice": Vendor("venice.ai"),
    "ollama": Vendor("ollama.com"),
    "github_copilot": Vendor("githubcopilot.com"),
    "github_models": Vendor("models.github.ai"),
    "cloudflare": Vendor("api.cloudflare.com gateway.ai.cloudflare.com"),
    "vercel": Vendor("ai-gateway.vercel.sh"),
    "huggingface": Vendor("huggingface.co"),
    "replicate": Vendor("replicate.com replicate.net"),
    "ai21": Vendor("api.ai21.com"),
    "nvidia": Vendor("nvidia.com"),
    "doubleword": Vendor("doubleword.ai"),
    "ibm.watsonx.ai": Vendor("ml.cloud.ibm.com"),
    "llama.cpp": Vendor(server="llama.cpp", members="timings"),
    "lmstudio": Vendor(server="lmstudio"),
}  # fmt: skip


def _by(kind: str) -> dict[str, str]:
    """Words of this kind → vendor."""
    return {word: vendor for vendor, of in VENDORS.items() for word in getattr(of, kind).split()}


HOSTS, HEADERS, PATHS, SERVERS, MEMBERS = map(_by, Vendor._fields)
_HEADER = re.compile("|".join(map(re.escape, HEADERS)))


_TGI_TIMES = ("queue-time", "total-time")
"""Headers of Hugging Face's TGI after `x-`, in ms."""


def vendor_of(exchange: ExchangeInfo) -> str | None:
    """The vendor of an exchange; None when nothing identifies it."""
    headers = exchange.response_headers
    return _vendor_of(exchange.host, exchange.path, headers.get("server", ""), tuple(headers))


@lru_cache(4096)
def _vendor_of(host: str, path: str, server: str, headers: tuple[str, ...]) -> str | None:
    labels = host.lower().split(".")
    for start in range(len(labels) - 1):
        vendor = HOSTS.get(".".join(labels[start:]))
        if vendor is not None:
            return vendor
    # The order of `HEADERS` decides, not that of the response.
    prefixes = {match.group() for name in headers if (match := _HEADER.match(name))}
    if prefixes:
        return next(vendor for prefix, vendor in HEADERS.items() if prefix in prefixes)
    if server.lower() in SERVERS:
        return SERVERS[server.lower()]
    return next((vendor for part, vendor in PATHS.items() if part in path), None)


def header_stats(headers: Mapping[str, str]) -> list[ServerStat]:
    """Server stats in the response headers: `fireworks-*`, `server-timing`, `openai-processing-ms`, and those of TGI."""
    fireworks = {
        name.removeprefix("fireworks-"): value
        for name, value in headers.items()
        if name.startswith("fireworks-")
    }
    stats = stats_of("fireworks_headers", fireworks)
    if SERVER_TIMING in headers:
        stats += server_timing_stats(headers[SERVER_TIMING])
    if "openai-processing-ms" in headers:
        stats += stats_of("openai_headers", {"processing-ms": headers["openai-processing-ms"]})
    if "x-compute-type" in headers:
        named = {f"{name}-ms": headers[f"x-{name}"] for name in _TGI_TIMES if f"x-{name}" in headers}
        stats += stats_of("tgi_headers", named)
    return stats
