"""Identifiers from the network: which values are stored, and what replaces the others. Pure.

Clients, gateways and writers to the log choose the values of models, error types, ids and paths, so these can contain prompts or
keys. Every value passes through a function of this module before it reaches a table, a span, a metric label or a log line.

Rules
1. An identifier has 1 to `MAX_CHARS` characters of `ALPHABET`: no blanks, no control characters, ASCII only.
2. No part of it, after its start or a punctuation mark, has the form of a key (`KEY`).
3. A name (model, error type, tool, finish reason, path segment) also has no long random word (`RANDOM`). Ids are random by
   design.
4. Other values are replaced by `MARKER` and the first 48 bits of their BLAKE2b hash in hex. The hash has no key and is the same
   in every process, so equal values can still be grouped. `hashed:…` is an identifier itself: applying a rule again changes
   nothing.

These rules do not recognise words that are joined by hyphens, and short keys without a known prefix. No result is cached,
because a refused value may be a secret.
"""

from __future__ import annotations

import hashlib
import re
from http import HTTPStatus
from urllib.parse import unquote

MAX_CHARS = 128
MAX_TITLE_WORDS = 4
"""Of a longer title, only the first word is kept and the others are hashed together."""
MARKER = "hashed:"
_PUNCTUATION = r"._:/@+~=#*|,$\[\]-"
ALPHABET = "A-Za-z0-9" + _PUNCTUATION
"""The inside of a character class. Examples: `vendor/model:free`, `accounts/a#b`, `claude[1m]`, `call_1|fc_1`."""


ANSWER_DIGIT = "9"
"""The 20th character in the id of an answer on a WebSocket. The ids of what a tap records have 8 there."""


def is_answer(stream: str) -> bool:
    return stream[19:20] == ANSWER_DIGIT


def _any_case(words: str) -> str:
    """Alternatives in any case. Sets of letters are twice as fast as the flag for ignoring case."""
    return "|".join(
        "".join(f"[{c}{c.upper()}]" if c.isalpha() else c for c in word) for word in words.split()
    )


_SPLIT_KEYS = _any_case("sk pk rk glpat nvapi tvly xoxa xoxb xoxc xoxd xoxe xoxp xoxr xoxs")
"""Their random part may contain `-` and `_`: OpenAI, Anthropic, LiteLLM, Stripe, GitLab, NVIDIA, Tavily, Slack."""
_ONE_WORD_KEYS = _any_case("sk pk rk gho ghp ghr ghs ghu github_pat gsk hf xai pplx csk npm r8")
_KEY_WORDS = _any_case("key apikey token secret password bearer")
_KEY_PREFIX = (
    f"(?:(?:{_SPLIT_KEYS}|{_ONE_WORD_KEYS})[-_]|(?:{_KEY_WORDS})[-_=:]" + r"|A[KS]IA|AIza|ya29\.|eyJ)"
)
KEY = (
    r"(?=[A-Za-z0-9._:=-]{19})"  # saves time
    f"(?:(?:{_SPLIT_KEYS})[-_](?=[A-Za-z0-9_-]*?(?:[0-9]|[a-z][A-Z]))[A-Za-z0-9_-]{{16}}"
    f"|(?:{_ONE_WORD_KEYS}|{_KEY_WORDS})[-_][A-Za-z0-9]{{20}}"
    f"|(?:{_KEY_WORDS})[=:][A-Za-z0-9_-]{{16}}"
    r"|A[KS]IA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{30}|ya29\.[A-Za-z0-9_-]{16}"
    r"|eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8})"  # JWT
)
"""The start of a key. None is shorter than 19 characters. Words joined by `-` or `_` are no key: `token_limit_exceeded_error`."""
RANDOM = (
    r"(?=[A-Za-z0-9]{32})(?!(?:(?<=[:@])|(?<=sha256-)|(?<=/snapshots/))(?:[0-9a-f]{40}|[0-9a-f]{64})(?![A-Za-z0-9]))"
    r"[A-Za-z]*[0-9]+[A-Za-z]+[0-9]"
)
"""The start of a random word: digits in two places among 32 letters and digits, unless it is the digest of a model."""


def _parts(forbidden: str, punctuation: str = _PUNCTUATION) -> str:
    """As many parts of a word as start with nothing `forbidden`. A part ends after a punctuation mark."""
    return f"(?:(?!{forbidden})(?:[A-Za-z0-9]++[{punctuation}]?+|[{punctuation}]))*+"


def _whole(alphabet: str) -> str:
    return f"(?=[{alphabet}]{{1,{MAX_CHARS}}}+(?![{alphabet}]))"


_WHOLE = _whole(ALPHABET)
IDENTIFIER = _WHOLE + _parts(KEY)
"""Matches an identifier, and the start of other words. The caller checks what follows."""
NAME = _WHOLE + _parts(f"{KEY}|{RANDOM}")
_OF_MEDIA_TYPE = r";=/+.-"
MEDIA_TYPE = _whole("A-Za-z0-9" + _OF_MEDIA_TYPE) + _parts(f"{KEY}|{RANDOM}", _OF_MEDIA_TYPE)
"""Matches a media type with its parameters, without blanks."""
START_OF_IDENTIFIER = _parts(_KEY_PREFIX)
"""Matches the part of a word with unknown end before anything that may become a key."""
START_OF_NAME = _parts(f"{_KEY_PREFIX}|{RANDOM}")
START_OF_MEDIA_TYPE = _parts(f"{_KEY_PREFIX}|{RANDOM}", _OF_MEDIA_TYPE)
_IDENTIFIER = re.compile(IDENTIFIER)
_HASH = re.compile(MARKER + "[0-9a-f]{12}")
_NAME = re.compile(NAME)
REASON_PHRASES = frozenset(status.phrase for status in HTTPStatus) | {
    "Request Entity Too Large", "Payload Too Large", "Content Too Large", "Request-URI Too Long", "URI Too Long",
    "Requested Range Not Satisfiable", "Range Not Satisfiable", "Unprocessable Entity", "Unprocessable Content",
}  # fmt: skip
"""The names in Python's list, and those that changed between its versions."""


def identifier(text: str | None) -> str | None:
    """An id, or the hash of a value that is none. None for no value."""
    text = text.strip() if text else None
    return (text if is_identifier(text) else hashed(text)) if text else None


def name(text: str | None) -> str | None:
    """A name, or the hash of a value that is none. None for no value."""
    text = text.strip() if text else None
    if not text:
        return None
    return text if is_name(text) else hashed(text)


def error_type(text: str | None) -> str | None:
    """The type of an error: a name, or a reason phrase of HTTP such as `Bad Request`."""
    return text if text in REASON_PHRASES else name(text)


def title(text: str) -> str:
    """The name of a span, service or scope: up to `MAX_TITLE_WORDS` names and paths. "" for no name."""
    words = text.partition("?")[0].split(maxsplit=MAX_TITLE_WORDS)
    if len(words) > MAX_TITLE_WORDS:
        return f"{title(words[0])} {hashed(' '.join(words[1:]))}"
    return " ".join(
        path(word).partition("?")[0] if word.startswith("/") else name(word) or "" for word in words
    )


def product(text: str) -> str:
    """The value of a header field such as `User-Agent: app/1.0 (linux; x64)`: each word is a name, or hashed."""
    return _PRODUCT_WORD.sub(lambda word: name(word[0]) or "", text)


_PRODUCT_WORD = re.compile(r'[^ ;,()"]+')


def is_identifier(text: str) -> bool:
    return _IDENTIFIER.fullmatch(text) is not None


def is_name(text: str) -> bool:
    return _NAME.fullmatch(text) is not None


def is_hash(text: str) -> bool:
    """Whether the text is a replacement that `hashed` has made."""
    return _HASH.fullmatch(text) is not None


def hashed(text: str) -> str:
    """The replacement of a value that may not be stored."""
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6)
    return MARKER + digest.hexdigest()


TraceParent = tuple[str, str, int]
"""(trace id, span id, flags)."""
_TRACE_PARENT = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
SAMPLED = 1
"""The only flag that version 00 of Trace Context defines."""


def trace_parent(text: str) -> TraceParent | None:
    """A `traceparent` of W3C Trace Context level 1. A malformed one counts as absent, as the recommendation requires."""
    match = _TRACE_PARENT.fullmatch(text)
    if match is None:
        return None
    version, trace_id, span_id, flags, more = match.groups()
    good_version = version != "ff" and (version != "00" or more is None)
    if not good_version or not trace_id.strip("0") or not span_id.strip("0"):
        return None
    return trace_id, span_id, int(flags, 16) & SAMPLED


# -- paths ------------------------------------------------------------------------------------------------------------------

MAX_PATH_CHARS = 1024
MAX_DECODINGS = 3
"""A segment that is percent-encoded more often is hashed."""
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9._:@-]{0,18})*")
"""Most paths: their segments are shorter than any key."""
_ID_SEGMENT = re.compile(r"[a-z]{2,16}[-_][A-Za-z0-9_-]+")
"""An id with the name of its kind: `resp_…`, `chatcmpl-…`."""
_PARAMETER = re.compile(r"\{([A-Za-z0-9_:]{1,64})\}|<([A-Za-z0-9_:]{1,64})>")
"""A parameter in a route: `{model_id}`, `{path:path}`, `<int:id>`."""
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
    plain = is_name(_PARAMETER.sub(r"\1\2", visible)) or (
        is_identifier(visible) and _ID_SEGMENT.fullmatch(visible) is not None
    )
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
