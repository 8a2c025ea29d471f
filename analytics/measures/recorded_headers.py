"""What is kept of a request's and a response's header fields: names on a short list, values that cannot be a secret. Pure.

The tap's own allow-list (`ingest.tap.header_rewrite`) is what the log has; the tables keep less. A field is kept when its name is here and
its value looks like what such names are for: short, printable words and numbers, none as long and as mixed as a key is.
What does not fit is left out, never cut.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec


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
MOST_FIELDS = 40
_VALUE = re.compile(r"[A-Za-z0-9 .,;:=*/+()_\"-]{1,128}", re.ASCII)
_WORD = re.compile(r"[A-Za-z0-9_+=-]+", re.ASCII)
KEY_CHARS = 20
"""A word this long might be a key, unless it is of small letters and hyphens alone."""
_PLAIN_WORDS = re.compile(r"[a-z-]+", re.ASCII)

_encode = msgspec.json.Encoder().encode
Headers = Iterable[tuple[str, str]]


def request_head(headers: Headers) -> str | None:
    """The kept fields of a request as a JSON object, None when there are none."""
    return _json((name, value) for name, value in headers if name in REQUEST)


def response_head(headers: Headers) -> str | None:
    """The kept fields of a response as a JSON object, None when there are none."""
    return _json(
        (name, value) for name, value in headers if name in RESPONSE or name.startswith(RESPONSE_PREFIXES)
    )


def harmless(value: str) -> bool:
    """Whether a value cannot be a secret by its looks."""
    return _VALUE.fullmatch(value) is not None and not any(map(_like_a_key, _WORD.findall(value)))


def _like_a_key(word: str) -> bool:
    return len(word) >= KEY_CHARS and _PLAIN_WORDS.fullmatch(word) is None


def _json(headers: Headers) -> str | None:
    kept: dict[str, str] = {}
    for name, value in headers:
        if len(kept) == MOST_FIELDS:
            break
        if harmless(value):
            kept.setdefault(name, value)  # the first of several
    return _encode(kept).decode() if kept else None
