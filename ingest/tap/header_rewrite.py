"""What happens to heads on their way through the tap: all of it, in this one place.

The rules: upstream and client get each other's fields in the order and case in which they were sent, without the
hop-by-hop ones (RFC 9110 §7.6.1) and with what the tap adds. What of them may be recorded is another matter: `allow_list`.
"""

from __future__ import annotations

from typing import NamedTuple

from ingest.tap.http_head import RequestHead, ResponseHead
from ingest.tap.http_header_fields import OWN_PREFIX
from ingest.tap.trace_context import TraceContext

_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization te upgrade http2-settings".split()
)
_X_FORWARDED = frozenset({b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-host"})
_RESPONSE_HOP_BY_HOP = frozenset({b"connection", b"keep-alive", b"proxy-connection", b"upgrade"})
# A Connection header may name fields to drop, but not those that say where the message ends.
_NEVER_DROPPED = frozenset(
    {b"host", b"content-length", b"transfer-encoding", b"trailer", b"close", b"keep-alive"}
)


class Forwarding(NamedTuple):
    """What the tap tells the upstream about the way. `via` is off by default: a Via makes some servers (nginx) stop
    compressing, and the tap is meant to change nothing. `forwarded` is the standard's way (RFC 7239) of what
    `x_forwarded` says, for upstreams that read it; what a client sent of it goes on in either case."""

    x_forwarded: bool = True
    via: bool = False
    preserve_host: bool = False
    forwarded: bool = False


def request_for_upstream(
    head: RequestHead,
    *,
    target: str,
    host_line: bytes,
    trace: TraceContext,
    forwarding: Forwarding,
    client_address: str,
    client_scheme: str,
) -> bytes:
    """The request's head as the upstream gets it."""
    if forwarding.preserve_host and head.host:
        host_line = b"Host: %b\r\n" % head.host
    if head.plain and forwarding.x_forwarded and not (forwarding.forwarded or forwarding.via):
        lines = [f"{head.method} {target} HTTP/1.1\r\n".encode()]
        lines += [
            host_line if special and name == b"host" else line
            for name, line, _, special, _ in head.fields
            if not special or name != b"connection"
        ]
        lines.append(
            f"traceparent: 00-{trace[0]}-{trace[1]}-{trace[3]:02x}\r\nX-Forwarded-For: {client_address}\r\n"
            f"X-Forwarded-Proto: {client_scheme}\r\nX-Forwarded-Host: ".encode()
        )
        return b"".join(lines) + head.host + b"\r\n\r\n"
    options = head.connection
    named = options - _NEVER_DROPPED if options else options
    lines = [f"{head.method} {target} HTTP/1.1\r\n".encode()]
    add = lines.append
    before: dict[bytes, bytes] = {}  # what proxies on the way to us have added
    had_host = trailers = False
    for name, line, value, special, _ in head.fields:
        if not special:
            if not named or name not in named:
                add(line)
        elif name == b"host":
            had_host = True
            add(host_line)
        elif name == b"te":
            trailers = trailers or b"trailers" in value.lower()
        elif (name == b"via" and forwarding.via) or (name == b"forwarded" and forwarding.forwarded):
            before[name] = before[name] + b", " + value if name in before else value
        elif name in _X_FORWARDED and forwarding.x_forwarded:
            if name == b"x-forwarded-for":
                before[name] = before[name] + b", " + value if name in before else value
            else:
                # A proxy before us has said it already, and it stood nearer to the client.
                before[name] = value
                add(line)
        elif not (
            name in _HOP_BY_HOP or name == b"traceparent" or name.startswith(OWN_PREFIX) or name in named
        ):
            add(line)
    if not had_host:
        lines.insert(1, host_line)
    add(b"traceparent: %b\r\n" % trace.header)
    if forwarding.x_forwarded:
        add(_x_forwarded(head, before, client_address, client_scheme))
    if forwarding.forwarded or forwarding.via:
        add(_standard_fields(head, before, forwarding, client_address, client_scheme))
    if trailers:
        add(b"TE: trailers\r\n")
    if head.upgrade is not None and asks_for_tunnel(head):
        add(b"Connection: Upgrade\r\nUpgrade: %b\r\n" % head.upgrade)
    elif trailers:
        add(b"Connection: TE\r\n")
    add(b"\r\n")
    return b"".join(lines)


def _x_forwarded(head: RequestHead, before: dict[bytes, bytes], address: str, scheme: str) -> bytes:
    if not before and head.host:
        return (
            f"X-Forwarded-For: {address}\r\nX-Forwarded-Proto: {scheme}\r\nX-Forwarded-Host: ".encode()
            + head.host
            + b"\r\n"
        )
    known = before.get(b"x-forwarded-for")
    client = address.encode()
    lines = b"X-Forwarded-For: %b\r\n" % (known + b", " + client if known else client)
    if b"x-forwarded-proto" not in before:
        lines += b"X-Forwarded-Proto: %b\r\n" % scheme.encode()
    if b"x-forwarded-host" not in before and head.host:
        lines += b"X-Forwarded-Host: %b\r\n" % head.host
    return lines


def _standard_fields(
    head: RequestHead, before: dict[bytes, bytes], forwarding: Forwarding, address: str, scheme: str
) -> bytes:
    """`Forwarded` and `Via`, what came of them first."""
    lines = b""
    if forwarding.forwarded:
        node = f'"[{address}]"' if ":" in address else address
        said = b"for=%b;proto=%b" % (node.encode(), scheme.encode())
        if head.host:
            said += b';host="%b"' % head.host.translate(None, b'"\\')
        known = before.get(b"forwarded")
        lines += b"Forwarded: %b\r\n" % (known + b", " + said if known else said)
    if forwarding.via:
        said = b"1.%d streamgauge" % head.minor
        known = before.get(b"via")
        lines += b"Via: %b\r\n" % (known + b", " + said if known else said)
    return lines


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
    for name, line, _, special, _ in head.fields:
        if special:
            if name in _RESPONSE_HOP_BY_HOP:
                continue
            if name == b"content-length":
                if drop_length:
                    continue
                drop_length = True  # the same length twice is one length
            elif drop_chunked and name in (b"transfer-encoding", b"trailer"):
                continue
        if not named or name not in named:
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
    lines += [field.line for field in head.fields]
    lines.append(b"\r\n")
    return b"".join(lines)
