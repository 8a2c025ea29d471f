"""Header fields that may be recorded: their names, and the grammars of their values. Pure.

Rules
1. Only a listed name is recorded, so an unknown kind of credential cannot leak. Authorization, API keys and cookies are not
   listed. A name of a family, such as `x-ratelimit-remaining-tokens`, consists of listed words. A name that only ends like a
   listed one, such as `x-acme-worker-id`, is recorded under the listed name. So no name that a peer chose is recorded.
2. Each name has a grammar. The tap records the received value. `recorded_value` keeps the part that the grammar describes and
   replaces the rest by its hash, before the value reaches Kafka or a table: clients and servers may write prose or keys into
   any field.
"""

from __future__ import annotations

import re

from streamgauge.ingest.identifiers import MAX_CHARS, hashed, identifier, is_hash, is_name, product
from streamgauge.ingest.keyed_ids import RECORDED as SESSION_ID
from streamgauge.ingest.keyed_ids import RECORDED_AGENT as AGENT_ID
from streamgauge.ingest.labels import RECORDED as LABEL

MAX_VALUE_CHARS = 512
"""Longer values are replaced by their hash. Claude Code sends lists of 200 characters in `anthropic-beta`."""
_MAX_RECORDED_BYTES = 2048


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _any(words: str) -> str:
    return "|".join(map(re.escape, words.split()))


_NUMBER = r"-?\d+(?:\.\d+)?"
_TIME = (
    r"(?:\d+(?:\.\d+)?(?:ns|us|ms|s|m|h|d))+"
    r"|\d{4}-\d\d-\d\d(?:T[\d:.]+(?:Z|[+-]\d\d:\d\d)?)?"
    r"|(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun), \d\d? [A-Z][a-z][a-z] \d{4} \d\d:\d\d:\d\d GMT"
)
_AMOUNT = rf"(?:(?:limit|remaining|reset|policy|burst|q|r|t|w|pk)=)?(?:{_TIME}|{_NUMBER})"
_POLICY = r'"(?:(?:fixed|sliding) window|token bucket|[A-Za-z][A-Za-z0-9_.-]{0,31})"|[A-Za-z][A-Za-z0-9_.-]{0,31}(?!=)'
_QUOTA = rf"""(?:{_POLICY}|{_AMOUNT})(?: ?; ?(?:{_POLICY}|(?:q|w|r|t|burst)=\d+|qu="[a-z-]{{1,24}}"))*"""
"""Fields of draft-ietf-httpapi-ratelimit-headers, in all its versions. The partition key (`pk`), which may name a user, is excluded."""
_WEIGHT = r"(?: ?; ?q=[01](?:\.\d{1,3})?)?"
_CODING = _any("* aws-chunked br chunked compress dcb dcz deflate gzip identity trailers x-gzip zstd")
_MEDIA_TYPE = (
    r"(?:\*/\*|(?:application|audio|font|image|message|model|multipart|text|video)/[A-Za-z0-9*.+-]{1,64})"
    r"(?: ?; ?(?:charset|level|profile|q|type|version)=[A-Za-z0-9._+-]{1,64})*"
)
_PLATFORM = _any(
    """aarch64 amd64 android arch arm64 armv7l bsd bun centos cli cpu darwin debian deno desktop external fedora freebsd gecko gnu
    i686 intel ios ipad iphone khtml, like linux linux-gnu mac macintosh macos musl node none nt nodejs os ppc64le release riscv64
    s390x sdk ubuntu unix unknown vscode wasm win32 win64 windows wow64 x x11 x64 x86 x86_64"""
)
_VERSION = r"v?\d[A-Za-z0-9._+~-]{0,31}"
_COMMENT = rf"\((?i:(?:(?:{_PLATFORM}|[a-z0-9._-]{{1,24}}[/:]{_VERSION}|{_VERSION})(?:[;,]? (?=[^)])|[;,](?=[^) ])|(?=\))))+)\)"
_PRODUCT = (
    rf"@?[A-Za-z][A-Za-z0-9_.@-]{{0,48}}(?:/[A-Za-z0-9][A-Za-z0-9._+~-]{{0,48}})+|{_COMMENT}|{_VERSION}"
)
_FEATURE = r"[a-z][a-z0-9_.-]{0,48}(?:-20\d\d-?\d\d-?\d\d|=[A-Za-z0-9._-]{1,32})"
_DIRECTIVE = (
    r"(?i:" + _any(
        """bypass dynamic error expired from cloudfront hit miss immutable max-stale min-fresh must-revalidate must-understand no-cache
        no-store no-transform none only-if-cached private proxy-revalidate public refresh revalidated stale tcp_hit tcp_miss updating"""
    ) + r"|(?:max-age|s-maxage|stale-while-revalidate|stale-if-error)=\d+)"
)  # fmt: skip
_EXTENSION = (
    r"permessage-deflate(?: ?; ?(?:(?:client|server)_(?:no_context_takeover|max_window_bits)(?:=\d{1,2})?))*"
)
_TIMING = r'[A-Za-z][A-Za-z0-9_.-]{0,31}(?: ?; ?(?:dur="?[\d.e+-]{1,24}"?|desc=(?:[A-Za-z0-9_.-]{1,32}|"[A-Za-z0-9_.-]{1,32}")))+'


def _list_of(item: str, separator: str) -> re.Pattern[str]:
    """Matches the items at the start of a value. The rest begins at a separator or is empty."""
    return re.compile(rf"(?:{item})(?:(?:{separator})(?:{item}))*(?=[ ,;]|$)", re.ASCII)


_SCALAR = _list_of(_AMOUNT, "[,;] ?")
"""Amounts and times. A single name is a scalar as well."""
_QUOTAS = _list_of(_QUOTA, " ?, ?")
_MEDIA_TYPES = _list_of(_MEDIA_TYPE + _WEIGHT, " ?, ?")
_CODINGS = _list_of(f"(?:{_CODING}){_WEIGHT}", " ?, ?")
_FEATURES = _list_of(_FEATURE, " ?, ?")
_PRODUCTS = _list_of(_PRODUCT, " ")
_DIRECTIVES = _list_of(_DIRECTIVE, " ?,? ?")
_TIMINGS = _list_of(_TIMING, " ?, ?")
_EXTENSIONS = _list_of(_EXTENSION, " ?, ?")

_GRAMMARS: dict[str, re.Pattern[str]] = {
    "accept": _MEDIA_TYPES,
    "accept-encoding": _CODINGS,
    "anthropic-beta": _FEATURES,
    "cache-control": _DIRECTIVES,
    "cf-cache-status": _DIRECTIVES,
    "content-encoding": _CODINGS,
    "content-type": _MEDIA_TYPES,
    "openai-beta": _FEATURES,
    "ratelimit": _QUOTAS,
    "ratelimit-policy": _QUOTAS,
    "sec-websocket-extensions": _EXTENSIONS,
    "server": _PRODUCTS,
    "server-timing": _TIMINGS,
    "transfer-encoding": _CODINGS,
    "user-agent": _PRODUCTS,
    "x-cache": _DIRECTIVES,
}
"""Grammars other than `_SCALAR`."""

REQUEST_IDS = (
    "x-request-id", "request-id", "x-oai-request-id", "apim-request-id", "x-amzn-requestid", "x-goog-request-id",
)  # fmt: skip
"""Headers with the server's id of a request, the preferred one first."""
SERVER_INSTANCES = (
    "x-xerotier-worker-id", "x-worker-id", "x-served-by", "x-backend-id", "x-backend-server", "x-replica-id", "x-pod-name",
    "x-litellm-model-id", "x-instance-id", "fireworks-deployment", "x-worker", "x-backend", "x-pod", "x-node-id",
)  # fmt: skip
"""Headers with the name of the server process that answered, the preferred one first."""
_WORKER_ID = "x-worker-id"
_IDS = _names(
    "cf-ray x-correlation-id x-generation-id x-litellm-call-id x-ms-client-request-id x-ms-request-id x-trace-id"
).union(REQUEST_IDS, SERVER_INSTANCES, (SESSION_ID, AGENT_ID))
"""Fields whose value is an id. Ids are random, so names may not have their form."""

_REQUEST = _names(
    """
    a2a-version accept accept-encoding anthropic-beta anthropic-version content-encoding content-length content-type mcp-protocol-version
    openai-beta originator transfer-encoding upgrade user-agent x-request-id x-stainless-arch x-stainless-async x-stainless-lang
    x-stainless-os x-stainless-package-version x-stainless-retry-count x-stainless-runtime x-stainless-runtime-version x-stainless-timeout
    """
)
_RESPONSE = _IDS | _names(
    """
    age cache-control cf-cache-status content-encoding content-length content-type openai-model openai-processing-ms
    openai-version retry-after retry-after-ms sec-websocket-extensions server server-timing transfer-encoding x-accel-buffering
    x-amzn-errortype x-cache x-compute-time x-compute-type x-envoy-upstream-service-time
    x-groq-region x-inference-engine x-litellm-attempted-fallbacks
    x-litellm-attempted-retries x-litellm-model-group x-litellm-overhead-duration-ms x-litellm-response-duration-ms
    x-litellm-version x-ms-rai-invoked x-ms-region x-process-time x-queue-time x-response-time x-should-retry x-total-time
    """
)
_RATE_LIMIT = _any(
    """1d 1h 1m 5h 7d after audio cached claim cost day disabled fallback generated global hour images in input key limit minute model
    month organization output over overage percentage policy project prompt query reason remaining renewalperiod representative req
    requests reset second status surpassed threshold tokens type unified use used user utilization"""
)
_CODEX = _any(
    """active after at credits has limit minutes over percent plan primary reached reset secondary seconds type unlimited used window"""
)
_FIREWORKS = _any(
    """acceptance backend base batch cache cached client concurrent count deadline deployment draft duration e2e engine first generation
    gpu hit host id idle inference input latency length matched model node num output pod position prefill processing prompt queue
    ratio replica requests sampling server speculation speed success time to token tokenizer tokens total ttft version wait"""
)
_FAMILIES = re.compile(
    f"(?:llm_provider-)?(?:x-|anthropic-|x-fireworks-)?ratelimit(?:bysize)?(?:-(?:{_RATE_LIMIT})){{0,6}}"
    "|x-tokenlimit-(?:limit|remaining|reset)"
    f"|x-codex(?:-(?:{_CODEX})){{1,7}}|(?:x-)?fireworks(?:-(?:{_FIREWORKS})){{1,8}}"
)


def request_field(name: bytes, value: bytes) -> tuple[str, str] | None:
    """The field to record, None if it may not be recorded. `name` is in lower case."""
    text = name.decode("ascii")
    return (text, _text(value)) if text in _REQUEST else None


def response_field(name: bytes, value: bytes) -> tuple[str, str] | None:
    """The field to record, None if it may not be recorded. `name` is in lower case."""
    text = name.decode("ascii")
    if text in _RESPONSE or _is_in_family(text):
        return text, _text(value)
    return (_WORKER_ID, _text(value)) if text.endswith("-worker-id") else None


def is_stored(name: str) -> bool:
    """Whether a field of this name may be in the tables. Ids have columns of their own."""
    return (name in _REQUEST or name in _RESPONSE or _is_in_family(name)) and name not in _IDS


def recorded_value(name: str, value: str) -> str:
    """The value of a recorded field for Kafka and tables. "" for no value."""
    if name in _IDS or name.startswith(LABEL):
        return identifier(value) or ""
    value = value.strip()
    if not value or is_name(value):
        return value
    found = _GRAMMARS.get(name, _SCALAR).match(value) if len(value) <= MAX_VALUE_CHARS else None
    kept = found[0] if found is not None and product(found[0]) == found[0] else ""
    rest = value[len(kept) :]
    separator = rest[: len(rest) - len(rest.lstrip(" ,;"))]
    rest = rest[len(separator) :]
    if not rest:
        return kept
    return kept + separator + (rest if is_hash(rest) else hashed(rest))


def _is_in_family(name: str) -> bool:
    return name.startswith(("x-", "ratelimit", "anthropic-", "fireworks-", "llm_provider-")) and bool(
        len(name) <= MAX_CHARS and _FAMILIES.fullmatch(name)
    )


def _text(value: bytes) -> str:
    return value[:_MAX_RECORDED_BYTES].decode("utf-8", "replace")
