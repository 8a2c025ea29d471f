"""Requests with chosen Host and Origin headers, on a real connection."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from tests.deadline import DEADLINE_S

OWN = (
    "Host: 127.0.0.1",
    "Host: localhost:80\r\nOrigin: http://127.0.0.1:3000",
    "Host: gauge.example.com:4101",
)
"""Allowed on every port, if `gauge.example.com` is configured."""
FOREIGN = (
    "Host: evil.example",
    "Host: localhost\r\nOrigin: http://evil.example",
    "Host: localhost\r\nOrigin: null",
)
WEBSOCKET = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDEyMzQ1Njc4OWFiY2RlZg=="


def answer(url: str, headers: str, *, method: str = "GET") -> tuple[int, str]:
    """Status and raw text of the response to one request. A WebSocket is closed after its upgrade."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    websocket = "Upgrade:" in headers
    close = "" if websocket else "Connection: close\r\n"
    request = f"{method} {parts.path or '/'} HTTP/1.1\r\n{headers}\r\n{close}Content-Length: 0\r\n\r\n"
    with socket.create_connection((parts.hostname, parts.port or 80), timeout=DEADLINE_S) as connection:
        connection.sendall(request.encode())
        received = b""
        while data := connection.recv(65_536):
            received += data
            if websocket and received.startswith(b"HTTP/1.1 101 ") and b"\r\n\r\n" in received:
                break
    return int(received.split(b" ", 2)[1]), received.decode("latin-1")
