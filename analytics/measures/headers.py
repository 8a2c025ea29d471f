"""Values taken from recorded header fields: the fields stored in the tables, the request id, the server instance. No I/O,
no clock.

The tap's own allow-list (`ingest.tap.header_rewrite`) decides which fields reach the log. The tables keep fewer: a field
needs a listed name and a value of short, printable words that cannot be keys. Other fields are omitted, never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

import msgspec

from ingest.identifiers import identifier, product


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


REQUEST = _names(
    """accept accept-encoding anthropic-beta anthropic-version content-encoding content-length content-type openai-beta
    user-agent x-stainless-arch x-stainless-async x-stainless-lang x-stainless-os x-stainless-package-version
    x-stainless-retry-count x-stainless-runtime x-stainless-runtime-version x-stainless-timeout"""
)
RESPONSE = _names(
    """age cache-control cf-cache-status content-encoding content-length content-type openai-model openai-processing-ms
    openai-version retry-after retry-after-ms server server-timing transfer-encoding x-accel-buffering x-cache
    x-envoy-upstream-service-time x-groq-region x-litellm-attempted-fallbacks x-litellm-attempted-retries
    x-litellm-overhead-duration-ms x-litellm-response-duration-ms x-litellm-version x-ms-region x-process-time x-queue-time
    x-response-time x-should-retry x-total-time"""
)
RESPONSE_PREFIXES = ("x-ratelimit-", "ratelimit-", "anthropic-ratelimit-")
MAX_FIELDS = 40
_VALUE = re.compile(r"[A-Za-z0-9 .,;:=*/+()_\"-]{1,128}", re.ASCII)

_encode = msgspec.json.Encoder().encode


def stored_request_headers(headers: Iterable[tuple[str, str]]) -> str | None:
    """The stored fields of a request as a JSON object, None if there are none."""
    return _json((name, value) for name, value in headers if name in REQUEST)


def stored_response_headers(headers: Iterable[tuple[str, str]]) -> str | None:
    """The stored fields of a response as a JSON object, None if there are none."""
    return _json(
        (name, value) for name, value in headers if name in RESPONSE or name.startswith(RESPONSE_PREFIXES)
    )


def harmless(value: str) -> bool:
    """Whether the value has only short, printable words and no key."""
    return _VALUE.fullmatch(value) is not None and product(value) == value


def _json(headers: Iterable[tuple[str, str]]) -> str | None:
    kept: dict[str, str] = {}
    for name, value in headers:
        if len(kept) == MAX_FIELDS:
            break
        if harmless(value):
            kept.setdefault(name, value)
    return _encode(kept).decode() if kept else None


# -- request id and server instance -------------------------------------------------------------------------------------------

_REQUEST_IDS = (
    "x-request-id", "request-id", "x-oai-request-id", "apim-request-id", "x-amzn-requestid", "x-goog-request-id",
)  # fmt: skip
_SERVER_INSTANCES = (
    "x-xerotier-worker-id", "x-worker-id", "x-served-by", "x-backend-id", "x-backend-server", "x-replica-id", "x-pod-name",
    "x-litellm-model-id", "x-instance-id", "fireworks-deployment",
)  # fmt: skip
_SERVER_INSTANCE = re.compile(
    r"x-(?:[a-z0-9]+-)*(?:worker|replica|backend|pod|instance|node)(?:-(?:id|name))?"
)

Headers = Sequence[tuple[str, str]]


def request_id_of(request_headers: Headers, response_headers: Headers) -> str | None:
    """The client's `x-request-id`, else the server's request id under any known name."""
    found = next((value for name, value in request_headers if name == "x-request-id" and value), None)
    if found is None and response_headers:
        sent = _first_values(response_headers)
        found = next((sent[name] for name in _REQUEST_IDS if name in sent), None)
    return identifier(found)


def server_instance_of(response_headers: Headers) -> str | None:
    """The server process that answered: known header names first, then names like `x-…-worker-id`."""
    sent = _first_values(response_headers)
    known = next((sent[name] for name in _SERVER_INSTANCES if name in sent), None)
    if known is None:
        known = next((value for name, value in sent.items() if _names_instance(name)), None)
    return identifier(known)


@lru_cache(1024)
def _names_instance(header: str) -> bool:
    return _SERVER_INSTANCE.fullmatch(header) is not None


def _first_values(headers: Headers) -> dict[str, str]:
    """The first non-empty value of each name, in order."""
    found: dict[str, str] = {}
    for name, value in headers:
        if value and name not in found:
            found[name] = value
    return found
