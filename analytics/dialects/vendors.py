"""Who is behind a wire dialect: the vendor, from host, path and response headers. Data, not code.

Names are the well-known values of `gen_ai.provider.name` in OpenTelemetry's GenAI conventions where there is one, else the
vendor's own short name. Fields of the stream itself may tell more (`Reading.provider`); a header or a host wins over them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from analytics.decoded.decoded_event import ServerStat
from analytics.decoded.dialect import ExchangeInfo
from analytics.dialects.server_stats import stats_of

HOSTS: dict[str, str] = {
    # a whole host, or the end of one after a dot → vendor
    "api.openai.com": "openai",
    "chatgpt.com": "openai",
    "openai.azure.com": "azure.ai.openai",
    "cognitiveservices.azure.com": "azure.ai.openai",
    "services.ai.azure.com": "azure.ai.inference",
    "models.ai.azure.com": "azure.ai.inference",
    "models.inference.ai.azure.com": "azure.ai.inference",
    "azuredatabricks.net": "databricks",
    "databricks.com": "databricks",
    "api.anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gcp.gemini",
    "aiplatform.googleapis.com": "gcp.vertex_ai",
    "api.cohere.com": "cohere",
    "api.cohere.ai": "cohere",
    "deepseek.com": "deepseek",
    "groq.com": "groq",
    "mistral.ai": "mistral_ai",
    "perplexity.ai": "perplexity",
    "x.ai": "x_ai",
    "fireworks.ai": "fireworks",
    "xerotier.ai": "xerotier",
    "friendli.ai": "friendli",
    "openrouter.ai": "openrouter",
    "together.xyz": "together",
    "together.ai": "together",
    "aliyuncs.com": "alibaba",
    "z.ai": "zai",
    "bigmodel.cn": "zai",
    "moonshot.ai": "moonshot",
    "moonshot.cn": "moonshot",
    "minimax.io": "minimax",
    "cerebras.ai": "cerebras",
    "sambanova.ai": "sambanova",
    "snowflakecomputing.com": "snowflake",
    "writer.com": "writer",
    "nebius.com": "nebius",
    "nebius.ai": "nebius",
    "novita.ai": "novita",
    "hyperbolic.xyz": "hyperbolic",
    "deepinfra.com": "deepinfra",
    "centml.com": "centml",
    "avian.io": "avian",
    "venice.ai": "venice",
    "ollama.com": "ollama",
    "githubcopilot.com": "github_copilot",
    "models.github.ai": "github_models",
    "api.cloudflare.com": "cloudflare",
    "gateway.ai.cloudflare.com": "cloudflare",
    "ai-gateway.vercel.sh": "vercel",
    "huggingface.co": "huggingface",
    "replicate.com": "replicate",
    "replicate.net": "replicate",
    "api.ai21.com": "ai21",
    "nvidia.com": "nvidia",
    "doubleword.ai": "doubleword",
    "ml.cloud.ibm.com": "ibm.watsonx.ai",
    "amazonaws.com": "aws.bedrock",
    "api.aws": "aws.bedrock",
}

HEADERS: tuple[tuple[str, str], ...] = (
    # the beginning of a response header's name → vendor; the first that fits
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
"""The response header `server`, where it is telling."""


def vendor_of(exchange: ExchangeInfo) -> str | None:
    """The vendor that the exchange itself tells, None when it tells none."""
    headers = exchange.response_headers
    return _vendor_of(exchange.host, exchange.path, headers.get("server", ""), tuple(headers))


@lru_cache(4096)
def _vendor_of(host: str, path: str, server: str, headers: tuple[str, ...]) -> str | None:
    labels = host.lower().split(".")
    for start in range(len(labels) - 1):
        vendor = HOSTS.get(".".join(labels[start:]))
        if vendor is not None:
            return vendor
    told = {match.group() for name in headers if (match := _HEADER.match(name))}
    if told:
        return next(vendor for prefix, vendor in HEADERS if prefix in told)
    if server.lower() in SERVERS:
        return SERVERS[server.lower()]
    return next((vendor for part, vendor in PATHS if part in path), None)


def header_stats(headers: Mapping[str, str]) -> list[ServerStat]:
    """What a server says of its own doing in the response's headers: `fireworks-*` and `openai-processing-ms`."""
    fireworks = {
        name.removeprefix("fireworks-"): value
        for name, value in headers.items()
        if name.startswith("fireworks-")
    }
    stats = stats_of("fireworks_headers", fireworks)
    if "openai-processing-ms" in headers:
        stats += stats_of("openai_headers", {"processing-ms": headers["openai-processing-ms"]})
    return stats
