"""Rewrite the heads of requests and responses on their way through the tap.

Both sides receive each other's fields in their original order and case, without the hop-by-hop ones (RFC 9110 §7.6.1) and with
the fields that the tap adds. `streamgauge.ingest.header_fields` decides which fields may be recorded.
"""

from __future__ import annotations

import re
from typing import Literal

from streamgauge.ingest.http1.client_identity import API_KEY_FIELDS, AWS_SIGNATURE
from streamgauge.ingest.http1.fields import OWN_PREFIX
from streamgauge.ingest.http1.heads import RequestHead, ResponseHead, asks_for_tunnel
from streamgauge.ingest.http1.trace_context import TraceContext
from streamgauge.ingest.http1.upstreams import Upstream
from streamgauge.ingest.tap.http.routing import Route

END_TO_END = frozenset(b"content-length content-type transfer-encoding expect".split()).union(API_KEY_FIELDS)
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization upgrade http2-settings".split()
)
_X_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
_RESPONSE_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"upgrade"})
# A Connection header may name further hop-by-hop fields, but not those that frame the message.
NEVER_DROPPED = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"trailer", b"close", b"keep-alive"}
)
_SIGNED_NAMES = re.compile(rb"SignedHeaders=([^,\s]+)")
_UNSIGNED: frozenset[bytes] = frozenset()


XForwarded = Literal["always", "private", "never"]


def adds_x_forwarded(choice: XForwarded, upstream: Upstream) -> bool:
    """Whether requests to this upstream get X-Forwarded-* fields. By default a provider on the Internet gets none, because they
    have the addresses and host names of the network in which the clients are."""
    return (choice == "private" and not upstream.is_public) or choice == "always"


def signed_names(head: RequestHead) -> frozenset[bytes]:
    """The names of the fields that the client signed for AWS (SigV4). Other values of them would break the signature."""
    value = head.known.get(b"authorization")
    if value is None or not value.startswith(AWS_SIGNATURE):
        return _UNSIGNED
    names = _SIGNED_NAMES.search(value)
    return frozenset(names[1].split(b";")) if names is not None else _UNSIGNED


def request_for_upstream(
    head: RequestHead, route: Route, trace: TraceContext, choice: XForwarded, address: str, scheme: str
) -> bytes:
    """The request's head for the upstream. `address` and `scheme` are the client's."""
    # The values that the client signed are forwarded, except of fields that frame the message or end at this hop.
    signed = signed_names(head)
    host_line = route.upstream.host_line
    if head.host and b"host" in signed:
        host_line = b"Host: %b\r\n" % head.host
    x_forwarded = adds_x_forwarded(choice, route.upstream) and (not signed or signed.isdisjoint(_X_FORWARDED))
    trace_is_signed = bool(signed) and b"traceparent" in signed
    named = head.connection - NEVER_DROPPED if head.connection else head.connection
    lines = [f"{head.method} {route.target} HTTP/1.1\r\n".encode()]
    received: dict[bytes, bytes] = {}  # values of earlier proxies, for fields that the tap extends
    had_host = trailers = False
    for field in head.fields:
        name, line = field.name, field.line
        if not field.special or name in END_TO_END:
            if not named or name not in named:
                lines.append(line)
        elif name == b"host":
            had_host = True
            lines.append(host_line)
        elif name in _HOP_BY_HOP or (name == b"traceparent" and not trace_is_signed):
            pass
        elif name == b"te":
            trailers = trailers or b"trailers" in field.value.lower()
        elif name in _X_FORWARDED and x_forwarded:
            if name == b"x-forwarded-for":
                received[name] = received[name] + b", " + field.value if name in received else field.value
            else:
                # Keep the value of the earlier proxy, which was nearer to the client.
                received[name] = field.value
                lines.append(line)
        elif (name in signed or not name.startswith(OWN_PREFIX)) and name not in named:
            lines.append(line)
    if not had_host:
        lines.insert(1, host_line)
    if x_forwarded and not received and head.host and not trace_is_signed:
        # Most requests: one line to encode instead of four costs 1 µs less.
        lines.append(
            f"traceparent: {trace.header}\r\nX-Forwarded-For: {address}\r\nX-Forwarded-Proto: {scheme}\r\n"
            "X-Forwarded-Host: ".encode()
        )
        lines.append(head.host)
        lines.append(b"\r\n")
    else:
        if not trace_is_signed:
            lines.append(f"traceparent: {trace.header}\r\n".encode())
        if x_forwarded:
            lines.append(_x_forwarded_lines(head, received, address, scheme))
    if trailers:
        lines.append(b"TE: trailers\r\n")
    if head.upgrade is not None and asks_for_tunnel(head):
        lines.append(b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade)
    elif trailers:
        lines.append(b"Connection: TE\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def _x_forwarded_lines(head: RequestHead, received: dict[bytes, bytes], address: str, scheme: str) -> bytes:
    previous = received.get(b"x-forwarded-for")
    client = address.encode()
    lines = b"X-Forwarded-For: %b\r\n" % (previous + b", " + client if previous else client)
    if b"x-forwarded-proto" not in received:
        lines += b"X-Forwarded-Proto: %b\r\n" % scheme.encode()
    if b"x-forwarded-host" not in received and head.host:
        lines += b"X-Forwarded-Host: %b\r\n" % head.host
    return lines


def response_for_client(
    head: ResponseHead, *, keep_alive: bool, client_minor: int, drop_chunked: bool
) -> bytes:
    """The response's head for the client. `drop_chunked`: the body is sent without its chunk framing."""
    named = head.connection - NEVER_DROPPED if head.connection else head.connection
    drop_length = bool(head.transfer_coding)
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    for field in head.fields:
        name = field.name
        if field.special:
            if name in _RESPONSE_HOP_BY_HOP:
                continue
            if name == b"content-length":
                if drop_length:
                    continue
                drop_length = True  # forward only the first of equal lengths
            elif drop_chunked and name in (b"transfer-encoding", b"trailer"):
                continue
        if not named or name not in named:
            lines.append(field.line)
    if not keep_alive:
        lines.append(b"Connection: close\r\n")
    elif client_minor == 0:
        lines.append(b"Connection: keep-alive\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)


def switching_for_client(head: ResponseHead) -> bytes:
    """The head of a 101 for the client: every field, including Connection and Upgrade."""
    lines = [b"HTTP/1.1 %d %b\r\n" % (head.status, head.reason)]
    lines += [field.line for field in head.fields]
    lines.append(b"\r\n")
    return b"".join(lines)
