"""Allow-list of the header fields that may be recorded.

A field that is not listed is never recorded, so an unknown kind of credential cannot leak. Authorization, API keys and cookies
are not listed.
"""

from __future__ import annotations

_REQUEST = frozenset(
    b"""
    accept accept-encoding anthropic-beta anthropic-version content-encoding content-length content-type
    date idempotency-key mcp-protocol-version openai-beta retry-after transfer-encoding user-agent via
    x-correlation-id x-request-id x-client-request-id x-title x-stainless-arch x-stainless-async
    x-stainless-lang x-stainless-os x-stainless-package-version x-stainless-retry-count x-stainless-runtime
    x-stainless-runtime-version x-stainless-timeout traceparent x-ms-client-request-id
    """.split()
)
_RESPONSE = frozenset(
    b"""
    age alt-svc cache-control cf-cache-status cf-ray content-encoding content-length content-type date
    openai-model openai-processing-ms openai-version request-id retry-after retry-after-ms server server-timing
    trailer transfer-encoding via x-accel-buffering x-amzn-requestid x-cache x-correlation-id x-envoy-upstream-service-time
    x-goog-request-id x-groq-region x-litellm-call-id x-litellm-model-id x-litellm-model-group x-litellm-version
    x-litellm-response-duration-ms x-litellm-overhead-duration-ms x-litellm-attempted-retries
    x-litellm-attempted-fallbacks x-ms-client-request-id x-ms-region x-ms-request-id x-ms-rai-invoked
    x-powered-by x-process-time x-ratelimit-limit x-ratelimit-remaining x-ratelimit-reset x-request-id
    x-response-time x-served-by x-server x-should-retry x-trace-id x-worker x-worker-id x-backend x-backend-id
    x-replica-id x-instance-id x-pod x-pod-name x-node-id x-generation-id apim-request-id x-vercel-id
    x-inference-engine x-compute-type x-compute-time x-queue-time x-total-time
    """.split()
)
_RESPONSE_PREFIXES = tuple(b"x-ratelimit- ratelimit- anthropic-ratelimit- fireworks- x-fireworks-".split())
_RESPONSE_SUFFIXES = (b"-request-id", b"-worker-id", b"-processing-ms")
_MAX_VALUE_BYTES = 2048


def request_field(name: bytes, value: bytes) -> tuple[str, str] | None:
    """The field to record, None if it may not be recorded. `name` is in lower case."""
    return (name.decode(), _text(value)) if name in _REQUEST else None


def response_field(name: bytes, value: bytes) -> tuple[str, str] | None:
    """The field to record, None if it may not be recorded. `name` is in lower case."""
    if name in _RESPONSE or name.startswith(_RESPONSE_PREFIXES) or name.endswith(_RESPONSE_SUFFIXES):
        return name.decode("ascii"), _text(value)
    return None


def _text(value: bytes) -> str:
    return value[:_MAX_VALUE_BYTES].decode("utf-8", "replace")
