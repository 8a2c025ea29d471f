"""What happens to heads on their way through the tap, and what of them may be mirrored: all of it, in this one place.

The rules: upstream and client get each other's fields in the order and case in which they were sent, without the
hop-by-hop ones (RFC 9110 §7.6.1) and with what the tap adds. The mirror gets an allow-list: a field that is not
named here is never recorded, so a new kind of credential cannot slip through. Authorization, API keys and cookies are not
on it, and the query of a path, which may carry keys, is cut off.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ingest.http_head import Fields, RequestHead, ResponseHead

_HOP_BY_HOP = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"te",
        b"upgrade",
        b"http2-settings",
    }
)
_RESPONSE_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"upgrade"})
# A Connection header may name fields to drop, but not those that say where the message ends.
_NEVER_DROPPED = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"trailer", b"close", b"keep-alive"}
)
OWN_PREFIX = b"x-streamgauge-"

_MIRRORED_REQUEST = frozenset(
    b"""
    accept accept-encoding anthropic-beta anthropic-version content-encoding content-length content-type
    date http-referer idempotency-key openai-beta retry-after transfer-encoding user-agent via
    x-correlation-id x-request-id x-client-request-id x-title x-stainless-arch x-stainless-async
    x-stainless-lang x-stainless-os x-stainless-package-version x-stainless-retry-count x-stainless-runtime
    x-stainless-runtime-version x-stainless-timeout traceparent x-ms-client-request-id
    """.split()
)
_MIRRORED_RESPONSE = frozenset(
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
_MIRRORED_RESPONSE_PREFIXES = (
    b"x-ratelimit-",
    b"ratelimit-",
    b"anthropic-ratelimit-",
    b"fireworks-",
    b"x-fireworks-",
)
_MIRRORED_RESPONSE_SUFFIXES = (b"-request-id", b"-worker-id", b"-processing-ms")
_KEY_FIELDS = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
_MAX_MIRRORED_VALUE_BYTES = 2048


@dataclass(frozen=True, slots=True)
class Forwarding:
    """What the tap tells the upstream about the way. `via` is off by default: a Via makes some servers (nginx) stop
    compressing, and the tap is meant to change nothing."""

    x_forwarded: bool = True
    via: bool = False
    preserve_host: bool = False


def _mirrored(
    fields: Fields, names: frozenset[bytes], prefixes: tuple[bytes, ...], suffixes: tuple[bytes, ...]
) -> list[tuple[str, str]]:
    return [
        (name.decode("ascii"), value[:_MAX_MIRRORED_VALUE_BYTES].decode("utf-8", "replace"))
        for name, _, value in fields
        if name in names or (prefixes and (name.startswith(prefixes) or name.endswith(suffixes)))
    ]


def mirrored_request_fields(fields: Fields) -> list[tuple[str, str]]:
    """The part of a request's fields that may be recorded; names in lower case."""
    return _mirrored(fields, _MIRRORED_REQUEST, (), ())


def mirrored_response_fields(fields: Fields) -> list[tuple[str, str]]:
    """The part of a response's fields that may be recorded; names in lower case."""
    return _mirrored(fields, _MIRRORED_RESPONSE, _MIRRORED_RESPONSE_PREFIXES, _MIRRORED_RESPONSE_SUFFIXES)


def mirrored_path(target: str) -> str:
    """The target without its query, which may carry keys. `alt=sse`, which changes the dialect, is kept."""
    path, sep, query = target.partition("?")
    return path + "?alt=sse" if sep and "alt=sse" in query.split("&") else path


def client_id(fields: Fields, key: bytes) -> str | None:
    """Who calls, as a keyed hash of the API key (32 hex digits): the same key gives the same id, and no way back."""
    values = {name: value for name, _, value in fields if name in _KEY_FIELDS and value}
    for name in _KEY_FIELDS:
        if name in values:
            secret = values[name]
            scheme, sep, token = secret.partition(b" ")
            if name == b"authorization" and sep and scheme.lower() == b"bearer":
                secret = token.strip()
            return hashlib.blake2b(secret, key=key[:64], digest_size=16).hexdigest()
    return None


def first(fields: Fields, name: bytes) -> bytes | None:
    """The value of the first field of this (lower-case) name."""
    for lower, _, value in fields:
        if lower == name:
            return value
    return None


def request_for_upstream(
    head: RequestHead,
    *,
    target: str,
    host: str,
    traceparent: bytes,
    forwarding: Forwarding,
    client_address: str,
    client_scheme: str,
) -> bytes:
    """The request's head as the upstream gets it."""
    named = head.connection - _NEVER_DROPPED if head.connection else head.connection
    lines = [f"{head.method} {target} HTTP/1.1".encode()]
    add = lines.append
    host_line = b"Host: " + (head.host if forwarding.preserve_host and head.host else host.encode())
    had_host = False
    forwarded_for: list[bytes] = []
    via: list[bytes] = []
    trailers = False
    for name, raw_name, value in head.fields:
        if name == b"host":
            had_host = True
            add(host_line)
        elif name in _HOP_BY_HOP:
            trailers = trailers or (name == b"te" and b"trailers" in value.lower())
        elif name in named or name == b"traceparent" or name.startswith(OWN_PREFIX):
            pass
        elif (
            name[:12] == b"x-forwarded-"
            and forwarding.x_forwarded
            and name[12:] in (b"for", b"proto", b"host")
        ):
            if name == b"x-forwarded-for":
                forwarded_for.append(value)
            else:
                # A proxy before us has said it already, and it stood nearer to the client.
                add(raw_name + b": " + value)
        elif name == b"via" and forwarding.via:
            via.append(value)
        else:
            add(raw_name + b": " + value)
    if not had_host:
        lines.insert(1, host_line)
    add(b"traceparent: " + traceparent)
    if forwarding.x_forwarded:
        forwarded_for.append(client_address.encode())
        add(b"X-Forwarded-For: " + b", ".join(forwarded_for))
        names = {name for name, _, _ in head.fields}
        if b"x-forwarded-proto" not in names:
            add(b"X-Forwarded-Proto: " + client_scheme.encode())
        if b"x-forwarded-host" not in names and head.host:
            add(b"X-Forwarded-Host: " + head.host)
    if forwarding.via:
        via.append(b"1.%d streamgauge" % head.minor)
        add(b"Via: " + b", ".join(via))
    if trailers:
        add(b"TE: trailers")
    if asks_for_tunnel(head):
        add(b"Connection: Upgrade")
        add(b"Upgrade: " + (head.upgrade or b""))
    elif trailers:
        add(b"Connection: TE")
    add(b"\r\n")
    return b"\r\n".join(lines)


def asks_for_tunnel(head: RequestHead) -> bool:
    """An upgrade that is passed on. Not h2c: HTTP/2 in a tunnel would hide every further request from the gauge."""
    return head.upgrade is not None and b"h2c" not in head.upgrade.lower()


def response_for_client(
    head: ResponseHead, *, keep_alive: bool, client_minor: int, drop_chunked: bool
) -> bytes:
    """The response's head as the client gets it. `drop_chunked`: the body goes out without its chunk framing."""
    named = head.connection - _NEVER_DROPPED if head.connection else head.connection
    drop_length = bool(head.transfer_coding)
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    for name, raw_name, value in head.fields:
        if name in _RESPONSE_HOP_BY_HOP or name in named:
            continue
        if name == b"content-length":
            if drop_length:
                continue
            drop_length = True  # the same length twice is one length
        if drop_chunked and name in (b"transfer-encoding", b"trailer"):
            continue
        lines.append(raw_name + b": " + value)
    if not keep_alive:
        lines.append(b"Connection: close")
    elif client_minor == 0:
        lines.append(b"Connection: keep-alive")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def switching_for_client(head: ResponseHead) -> bytes:
    """A 101's head as the client gets it: every field, Connection and Upgrade too."""
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason)]
    lines += [raw_name + b": " + value for _, raw_name, value in head.fields]
    lines.append(b"\r\n")
    return b"\r\n".join(lines)
