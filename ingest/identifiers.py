"""Identifiers from the network: which values are stored, and what replaces the others. Pure.

Clients, gateways and writers to the log choose the values of models, error types, ids and paths, so these can contain prompts or
keys. Every value passes through a function of this module before it reaches a table, a span, a metric label or a log line.

Rules
1. An identifier has 1 to `MAX_CHARS` characters of `ALPHABET`: no blanks, no control characters, ASCII only.
2. It has no part with the form of a key: a known prefix of API keys (`sk-…`, `ghp_…`, `AKIA…`) or a JWT.
3. A name (model, error type, tool, finish reason, path segment) also has no long random word. Ids are random by design.
4. Other values are replaced by `MARKER` and the first 48 bits of their BLAKE2b hash in hex. The hash has no key and is the same
   in every process, so equal values can still be grouped. `hashed:…` is an identifier itself: applying a rule again changes
   nothing.

`streamgauge` cannot recognise words that are joined by hyphens, and short keys without a known prefix.
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from http import HTTPStatus
from urllib.parse import unquote

MAX_CHARS = 128
MAX_TITLE_WORDS = 4
MARKER = "hashed:"
ALPHABET = r"A-Za-z0-9._:/@+~=#*|,$\[\]-"
"""The inside of a character class. Examples: `vendor/model:free`, `accounts/a#b`, `claude[1m]`, `call_1|fc_1`."""

KEY_START = (
    r"(?:[prs]k[-_][A-Za-z0-9_-]{16}"  # OpenAI, Anthropic, OpenRouter, LiteLLM, Stripe
    r"|(?:gh[oprsu]|github_pat|glpat|gsk|hf|xai|pplx|nvapi|csk|npm|tvly|r8)[-_][A-Za-z0-9_-]{20}"
    r"|(?:api[-_]?key|key|token|secret|password|bearer)[-_=:][A-Za-z0-9_-]{16}"
    r"|xox[a-z]-[A-Za-z0-9-]{16}|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30}|ya29\.[A-Za-z0-9_-]{16}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8})"  # JWT
)
"""The start of a key. None is shorter than 19 characters."""
MIN_RANDOM_CHARS = 32
"""A word of letters and digits of this length is random, unless it is a digest of 40 or 64 hex digits."""

_IDENTIFIER = re.compile(f"[{ALPHABET}]{{1,{MAX_CHARS}}}")
_KEY = re.compile(KEY_START)
_KEY_INSIDE = re.compile(rf"[^A-Za-z0-9_-]{KEY_START}")
_RANDOM = re.compile(
    rf"(?<![A-Za-z0-9])(?!(?:[0-9a-f]{{40}}|[0-9a-f]{{64}})(?![A-Za-z0-9]))(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{{{MIN_RANDOM_CHARS}}}"
)
REASON_PHRASES = frozenset(status.phrase for status in HTTPStatus)


def identifier(text: str | None) -> str | None:
    """An id, or the hash of a value that is none. None for no value."""
    text = text.strip() if text else None
    return (text if is_identifier(text) else hashed(text)) if text else None


def name(text: str | None) -> str | None:
    """A name, or the hash of a value that is none. None for no value."""
    text = text.strip() if text else None
    if not text:
        return None
    return _name(text) if len(text) <= MAX_CHARS else hashed(text)


def error_type(text: str | None) -> str | None:
    """The type of an error: a name, or a reason phrase of HTTP such as `Bad Request`."""
    return text if text in REASON_PHRASES else name(text)


def title(text: str) -> str:
    """The name of a span, service or scope: up to `MAX_TITLE_WORDS` names and paths. "" for no name."""
    words = text.partition("?")[0].split(maxsplit=MAX_TITLE_WORDS)
    if len(words) > MAX_TITLE_WORDS:
        return hashed(text)
    return " ".join(
        path(word).partition("?")[0] if word.startswith("/") else name(word) or "" for word in words
    )


def is_identifier(text: str) -> bool:
    return (
        _IDENTIFIER.fullmatch(text) is not None
        and _KEY.match(text) is None
        and _KEY_INSIDE.search(text) is None
    )


def is_name(text: str) -> bool:
    return is_identifier(text) and _RANDOM.search(text) is None


def hashed(text: str) -> str:
    """The replacement of a value that may not be stored."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6)
    return MARKER + digest.hexdigest()


@lru_cache(4096)
def _name(text: str) -> str:
    return text if is_name(text) else hashed(text)


# -- paths ------------------------------------------------------------------------------------------------------------------

MAX_PATH_CHARS = 1024
MAX_DECODINGS = 3
"""A segment that is percent-encoded more often is hashed."""
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._:@-]{0,18})*")
"""Most paths: their segments are shorter than any key."""
_ID_SEGMENT = re.compile(r"[a-z]{2,16}[-_][A-Za-z0-9_-]+")
"""An id with the name of its kind: `resp_…`, `chatcmpl-…`."""
_VERB = re.compile(r":[A-Za-z]{1,32}$")
"""The verb of Google's APIs: `:streamGenerateContent`. It selects the dialect."""
_CUT = re.compile(r"[?#]")
_ESCAPE = re.compile("%[0-9A-Fa-f]{2}")


def path(target: str) -> str:
    """The part of a request target that may be stored.

    The query and the fragment are cut, and the parameters (`;…`) of each segment, also where they are percent-encoded. A segment
    that is neither a name nor an id with a prefix is hashed. `?alt=sse` is kept because it selects the dialect.
    """
    bare, _, query = target.partition("?")
    kept = bare if len(bare) <= MAX_PATH_CHARS and _PLAIN_PATH.fullmatch(bare) else _path(bare)
    return kept + "?alt=sse" if query and "alt=sse" in query.split("&") else kept


def _path(bare: str) -> str:
    if len(bare) > MAX_PATH_CHARS:
        cut = bare.rfind("/", 0, MAX_PATH_CHARS)
        return _path(bare[: max(cut, 0)]) + "/" + hashed(bare[max(cut, 0) :])
    kept: list[str] = []
    for segment in bare.split("/"):
        text, is_last = _segment(segment)
        kept.append(text)
        if is_last:
            break
    return "/".join(kept)


@lru_cache(4096)
def _segment(raw: str) -> tuple[str, bool]:
    """The stored form of a segment, and whether the rest of the path is cut."""
    text = raw
    for _ in range(MAX_DECODINGS):
        if "%" not in text:
            break
        text = unquote(text)
    if _ESCAPE.search(text):
        return hashed(raw), False
    end = _CUT.search(text)
    visible = (text[: end.start()] if end else text).partition(";")[0]
    if not visible:
        return "", end is not None
    plain = is_name(visible) or (is_identifier(visible) and _ID_SEGMENT.fullmatch(visible) is not None)
    if not plain or "=" in visible:
        verb = _VERB.search(visible)
        kept = hashed(visible[: verb.start()]) + verb[0] if verb else hashed(visible)
        return kept, end is not None
    return raw if visible == text else visible, end is not None


_MODEL_PARAMETERS = ("model", "deployment")


def query_model(target: str) -> str | None:
    """The model that the query of a request target names, as a name: `/v1/realtime?model=gpt-realtime`."""
    _, sep, query = target.partition("?")
    if sep:
        for parameter in query.split("&"):
            key, _, value = parameter.partition("=")
            if key in _MODEL_PARAMETERS and value:
                return name(unquote(value))
    return None
