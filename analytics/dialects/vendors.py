"""Identify the vendor behind a dialect, from host, path and response headers.

Names are the well-known values of `gen_ai.provider.name` in OpenTelemetry's GenAI conventions, else the vendor's short name.
Host and headers take precedence over fields of the stream (`DecodedEvent.provider`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.analytics.dialects.events import ServerStat
from streamgauge.analytics.dialects.server_stats import SERVER_TIMING, server_timing_stats, stats_of

_HOSTS_BY_VENDOR: dict[str, tuple[str, ...]] = {
    # vendor → hosts or parent domains
    "openai": ("api.openai.com", "chatgpt.com"),
    "azure.ai.openai": ("openai.azure.com", "cognitiveservices.azure.com"),
    "azure.ai.inference": ("services.ai.azure.com", "models.ai.azure.com", "models.inference.ai.azure.com"),
    "databricks": ("azuredatabricks.net", "databricks.com"),
    "anthropic": ("api.anthropic.com",),
    "gcp.gemini": ("generativelanguage.googleapis.com",),
    "gcp.vertex_ai": ("aiplatform.googleapis.com",),
    "cohere": ("api.cohere.com", "api.cohere.ai"),
    "deepseek": ("deepseek.com",),
    "groq": ("groq.com",),
    "mistral_ai": ("mistral.ai",),
    "perplexity": ("perplexity.ai",),
    "x_ai": ("x.ai",),
    "fireworks": ("fireworks.ai",),
    "xerotier": ("xerotier.ai",),
    "friendli": ("friendli.ai",),
    "openrouter": ("openrouter.ai",),
    "together": ("together.xyz", "together.ai"),
    "alibaba": ("aliyuncs.com",),
    "zai": ("z.ai", "bigmodel.cn"),
    "moonshot": ("moonshot.ai", "moonshot.cn"),
    "minimax": ("minimax.io",),
    "cerebras": ("cerebras.ai",),
    "sambanova": ("sambanova.ai",),
    "snowflake": ("snowflakecomputing.com",),
    "writer": ("writer.com",),
    "nebius": ("nebius.com", "nebius.ai"),
    "novita": ("novita.ai",),
    "hyperbolic": ("hyperbolic.xyz",),
    "deepinfra": ("deepinfra.com",),
    "centml": ("centml.com",),
    "avian": ("avian.io",),
    "venice": ("venice.ai",),
    "ollama": ("ollama.com",),
    "github_copilot": ("githubcopilot.com",),
    "github_models": ("models.github.ai",),
    "cloudflare": ("api.cloudflare.com", "gateway.ai.cloudflare.com"),
    "vercel": ("ai-gateway.vercel.sh",),
    "huggingface": ("huggingface.co",),
    "replicate": ("replicate.com", "replicate.net"),
    "ai21": ("api.ai21.com",),
    "nvidia": ("nvidia.com",),
    "doubleword": ("doubleword.ai",),
    "ibm.watsonx.ai": ("ml.cloud.ibm.com",),
    "aws.bedrock": ("amazonaws.com", "api.aws"),
}  # fmt: skip
HOSTS = {host: vendor for vendor, hosts in _HOSTS_BY_VENDOR.items() for host in hosts}

HEADERS: tuple[tuple[str, str], ...] = (
    # prefix of a response header's name → vendor; the first match wins
    ("x-xerotier-", "xerotier"),
    ("fireworks-", "fireworks"),
    ("x-groq-", "groq"),
    ("x-litellm-", "litellm"),
    ("anthropic-", "anthropic"),
    ("azureml-", "azure.ai.openai"),
    ("x-ms-deployment-name", "azure.ai.openai"),
    ("apim-request-id", "azure.ai.openai"),
    ("x-amzn-bedrock-", "aws.bedrock"),
    ("x-ds-trace-id", "deepseek"),
    ("x-dashscope-", "alibaba"),
    ("mistral-correlation-id", "mistral_ai"),
    ("x-goog-", "gcp.gemini"),
    ("x-databricks-", "databricks"),
    ("x-friendli-", "friendli"),
    ("x-sambanova-", "sambanova"),
    ("x-generation-id", "openrouter"),
    ("openai-", "openai"),
)

PATHS: tuple[tuple[str, str], ...] = (
    # a part of the path → vendor
    ("/openai/deployments/", "azure.ai.openai"),
    ("/serving-endpoints/", "databricks"),
    ("/api/v2/cortex/", "snowflake"),
    ("/publishers/google/", "gcp.vertex_ai"),
    ("/publishers/anthropic/", "gcp.vertex_ai"),
    ("/backend-api/codex/", "openai"),
)

_HEADER = re.compile("|".join(re.escape(prefix) for prefix, _ in HEADERS))

SERVERS: dict[str, str] = {"llama.cpp": "llama.cpp", "lmstudio": "lmstudio"}
"""The response header `server` → vendor."""


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
        return next(vendor for prefix, vendor in HEADERS if prefix in prefixes)
    if server.lower() in SERVERS:
        return SERVERS[server.lower()]
    return next((vendor for part, vendor in PATHS if part in path), None)


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
