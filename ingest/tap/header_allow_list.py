"""What of a request and its response may be recorded: an allow-list.

A field that is not named here is never recorded, so a new kind of credential cannot slip through. Authorization, API
keys and cookies are not on it, and the query of a path, which may carry keys, is cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

_REQUEST = frozenset(
    b"""
    accept accept-encoding anthropic-beta anthropic-version content-encoding content-length content-type
    date idempotency-key openai-beta retry-after transfer-encoding user-agent via
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
_RESPONSE_PREFIXES = (
    b"x-ratelimit-",
    b"ratelimit-",
    b"anthropic-ratelimit-",
    b"fireworks-",
    b"x-fireworks-",
)
_RESPONSE_SUFFIXES = (b"-request-id", b"-worker-id", b"-processing-ms")
KEY_FIELDS: tuple[bytes, ...] = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
"""Where clients put their API keys; the first one there counts."""
_MAX_VALUE_BYTES = 2048


def of_request(name: bytes, value: bytes) -> tuple[str, str] | None:
    """What of this field (name in lower case) of a request may be recorded; None: nothing."""
    return (name.decode(), _text(value)) if name in _REQUEST else None


def of_response(name: bytes, value: bytes) -> tuple[str, str] | None:
    """The same for a response's."""
    if name in _RESPONSE or name.startswith(_RESPONSE_PREFIXES) or name.endswith(_RESPONSE_SUFFIXES):
        return name.decode("ascii"), _text(value)
    return None


def _text(value: bytes) -> str:
    return value[:_MAX_VALUE_BYTES].decode("utf-8", "replace")


def path_of(target: str) -> str:
    """The target without its query, which may carry keys. `alt=sse`, which changes the dialect, is kept."""
    path, sep, query = target.partition("?")
    return path + "?alt=sse" if sep and "alt=sse" in query.split("&") else path


def client_id(known: Mapping[bytes, bytes], key: bytes) -> str | None:
    """Who calls, as a keyed hash of the API key (32 hex digits): the same key gives the same id, and no way back.

    `known` holds fields by their lower-case names (`RequestHead.known`).
    """
    for name in KEY_FIELDS:
        secret = known.get(name)
        if secret:
            scheme, sep, token = secret.partition(b" ")
            if name == b"authorization" and sep and scheme.lower() == b"bearer":
                secret = token.strip()
            return hashlib.blake2b(secret, key=key[:64], digest_size=16).hexdigest()
    return None
