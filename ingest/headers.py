"""What happens to heads on their way through the tap, and what of them may be mirrored: all of it, in this one place.

The rules: upstream and client get each other's fields in the order and case in which they were sent, without the
hop-by-hop ones (RFC 9110 §7.6.1) and with what the tap adds. The mirror gets an allow-list: a field that is not
named here is never recorded, so a new kind of credential cannot slip through. Authorization, API keys and cookies are not
on it, and the query of a path, which may carry keys, is cut off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from ingest.http_head import OWN_PREFIX, Fields, RequestHead, ResponseHead

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
_X_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
# What does not simply go on: dropped, replaced or looked at.
_TREATED = _HOP_BY_HOP | _X_FORWARDED | _FRAMING | {b"host", b"traceparent", b"via"}
_RESPONSE_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"upgrade"})
# A Connection header may name fields to drop, but not those that say where the message ends.
_NEVER_DROPPED = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"trailer", b"close", b"keep-alive"}
)

_MIRRORED_REQUEST = frozenset(
    b"""
    accept accept-encoding anthropic-beta anthropic-version content-encoding content-length content-type
    date idempotency-key openai-beta retry-after transfer-encoding user-agent via
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


_REQUEST_NAMES = {name: name.decode() for name in _MIRRORED_REQUEST}
_RESPONSE_NAMES = {name: name.decode() for name in _MIRRORED_RESPONSE}


def mirrored_request_fields(fields: Fields) -> list[tuple[str, str]]:
    """The part of a request's fields that may be recorded; names in lower case."""
    names = _REQUEST_NAMES
    return [(names[name], _text(value)) for name, _, value in fields if name in names]


def mirrored_response_fields(fields: Fields) -> list[tuple[str, str]]:
    """The part of a response's fields that may be recorded; names in lower case."""
    mirrored: list[tuple[str, str]] = []
    for name, _, value in fields:
        text = _RESPONSE_NAMES.get(name)
        if text is not None:
            mirrored.append((text, _text(value)))
        elif name.startswith(_MIRRORED_RESPONSE_PREFIXES) or name.endswith(_MIRRORED_RESPONSE_SUFFIXES):
            mirrored.append((name.decode("ascii"), _text(value)))
    return mirrored


def _text(value: bytes) -> str:
    return value[:_MAX_MIRRORED_VALUE_BYTES].decode("utf-8", "replace")


def mirrored_path(target: str) -> str:
    """The target without its query, which may carry keys. `alt=sse`, which changes the dialect, is kept."""
    path, sep, query = target.partition("?")
    return path + "?alt=sse" if sep and "alt=sse" in query.split("&") else path


def client_id(known: Mapping[bytes, bytes], key: bytes) -> str | None:
    """Who calls, as a keyed hash of the API key (32 hex digits): the same key gives the same id, and no way back.

    `known` holds fields by their lower-case names (`RequestHead.known`).
    """
    for name in _KEY_FIELDS:
        secret = known.get(name)
        if secret:
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
    lines = [f"{head.method} {target} HTTP/1.1\r\n".encode()]
    add = lines.append
    host_line = b"Host: %b\r\n" % (head.host if forwarding.preserve_host and head.host else host.encode())
    forwarded: dict[bytes, bytes] = {}
    via: list[bytes] = []
    had_host = trailers = False
    for name, line, value in head.fields:
        if name not in _TREATED:
            if not (named and name in named) and not name.startswith(OWN_PREFIX):
                add(line)
        elif name == b"host":
            had_host = True
            add(host_line)
        elif name in _FRAMING:
            # Written anew: blanks around it, which servers strip each in their own way, must not decide what it says.
            add(line[: len(name)] + b": " + value + b"\r\n")
        elif name == b"te":
            trailers = trailers or b"trailers" in value.lower()
        elif name == b"via":
            if forwarding.via:
                via.append(value)
            else:
                add(line)
        elif name in _X_FORWARDED:
            if not forwarding.x_forwarded:
                add(line)
            elif name == b"x-forwarded-for":
                before = forwarded.get(name)
                forwarded[name] = before + b", " + value if before else value
            else:
                # A proxy before us has said it already, and it stood nearer to the client.
                forwarded[name] = value
                add(line)
    if not had_host:
        lines.insert(1, host_line)
    add(b"traceparent: %b\r\n" % traceparent)
    if forwarding.x_forwarded:
        before = forwarded.get(b"x-forwarded-for")
        client = client_address.encode()
        add(b"X-Forwarded-For: %b\r\n" % (before + b", " + client if before else client))
        if b"x-forwarded-proto" not in forwarded:
            add(b"X-Forwarded-Proto: %b\r\n" % client_scheme.encode())
        if b"x-forwarded-host" not in forwarded and head.host:
            add(b"X-Forwarded-Host: %b\r\n" % head.host)
    if forwarding.via:
        via.append(b"1.%d streamgauge" % head.minor)
        add(b"Via: %b\r\n" % b", ".join(via))
    if trailers:
        add(b"TE: trailers\r\n")
    if asks_for_tunnel(head):
        add(b"Connection: Upgrade\r\nUpgrade: %b\r\n" % (head.upgrade or b""))
    elif trailers:
        add(b"Connection: TE\r\n")
    add(b"\r\n")
    return b"".join(lines)


def asks_for_tunnel(head: RequestHead) -> bool:
    """An upgrade that is passed on. Not h2c: HTTP/2 in a tunnel would hide every further request from the gauge."""
    return head.upgrade is not None and b"h2c" not in head.upgrade.lower()


def response_for_client(
    head: ResponseHead, *, keep_alive: bool, client_minor: int, drop_chunked: bool
) -> bytes:
    """The response's head as the client gets it. `drop_chunked`: the body goes out without its chunk framing."""
    named = head.connection - _NEVER_DROPPED if head.connection else head.connection
    drop_length = bool(head.transfer_coding)
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    for name, line, _ in head.fields:
        if name in _RESPONSE_HOP_BY_HOP or (named and name in named):
            continue
        if name == b"content-length":
            if drop_length:
                continue
            drop_length = True  # the same length twice is one length
        elif drop_chunked and name in (b"transfer-encoding", b"trailer"):
            continue
        lines.append(line)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif client_minor == 0:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def switching_for_client(head: ResponseHead) -> bytes:
    """A 101's head as the client gets it: every field, Connection and Upgrade too."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    lines += [line for _, line, _ in head.fields]
    lines.append(b"\r\n")
    return b"".join(lines)
