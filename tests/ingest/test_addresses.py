"""Addresses that parts listen at."""

from __future__ import annotations

import socket

import pytest

from streamgauge.ingest.listening import bind, join_address, same_address, split_address


@pytest.mark.parametrize("address", ["127.0.0.1:4100", "[::1]:4100", "host:0"])
def test_address_is_split_and_joined(address: str) -> None:
    assert join_address(*split_address(address)) == address


@pytest.mark.parametrize("address", ["4100", ":4100", "host:", "host:x", "host:65536"])
def test_invalid_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(address)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("127.0.0.1:1", "127.0.0.1:1", True),
        ("localhost:1", "127.0.0.1:1", True),
        ("0.0.0.0:1", "127.0.0.1:1", True),
        ("127.0.0.1:1", "127.0.0.2:1", False),
        ("127.0.0.1:0", "127.0.0.1:0", False),
    ],
)
def test_same_address(one: str, other: str, same: bool) -> None:
    assert same_address(one, other) is same


def test_port_of_ended_connections_is_free_and_of_a_listener_is_refused() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = join_address(*listening.getsockname())
        with pytest.raises(
            OSError, match=rf"^cannot listen on {address}: .*\. Choose another address with --listen$"
        ):
            bind(address, flag="--listen")
        with socket.create_connection(listening.getsockname()):
            listening.accept()[0].close()
            listening.close()
            bind(address).close()
