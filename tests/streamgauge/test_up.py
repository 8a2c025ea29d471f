"""The checks before `streamgauge up` starts a part, and its supervisor."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamgauge import up
from streamgauge.settings import Settings


@pytest.fixture
def quack_like() -> Iterator[socket.socket]:
    """A listening socket with the only option that Quack sets."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening


def settings(**given: object) -> Settings:
    free = {"listen": "127.0.0.1:0", "admin": "127.0.0.1:0", "metrics": "", "no_dashboard": True}
    return Settings(**(free | {"data": Path("unused")} | given))  # type: ignore[arg-type]


def test_port_of_an_ended_sql_server_is_free_while_clients_are_connected(quack_like: socket.socket) -> None:
    port = quack_like.getsockname()[1]
    with socket.create_connection(("127.0.0.1", port)):
        accepted, _ = quack_like.accept()
        accepted.close()  # the server's side closes first, as after a kill
        quack_like.close()
        up._check(settings(serve=True, sql_host="127.0.0.1", sql_port=port))


def test_port_of_a_running_sql_server_is_refused(quack_like: socket.socket) -> None:
    port = quack_like.getsockname()[1]
    with pytest.raises(OSError, match=rf"127\.0\.0\.1:{port}: address already in use\. .*--sql-port"):
        up._check(settings(serve=True, sql_host="127.0.0.1", sql_port=port))


@pytest.mark.parametrize("name", ["listen", "admin", "metrics", "otlp_listen"])
def test_port_of_ended_connections_is_free_and_of_a_listener_is_refused(name: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(OSError, match=rf"cannot listen on {address}: .*--{name.replace('_', '-')}"):
            up._check(settings(**{name: address}))
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()
            listening.close()
            up._check(settings(**{name: address}))
