"""The setting `clients`: a table of the configuration file, or the same as JSON or flags, as `Client`s."""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.schema.clients import MAX_CLIENTS, NO_CLIENT_NAMES, Client, is_client_id
from streamgauge.values import text_pairs

EXAMPLE = "9f86d081884c7d659a2feaa0c55ad015=billing"
MAX_CHARS = 64


def parse_clients(value: object) -> tuple[Client, ...]:
    """A table of names by client id, JSON text of it, or texts such as `EXAMPLE`. Raises ValueError."""
    found = tuple(
        _client(client_id, name)
        for client_id, name in text_pairs(value, what=f"a table of names by client id, such as {EXAMPLE}")
    )
    for column in ("client_id", "name"):
        values = [getattr(client, column) for client in found]
        twice = next((one for one in values if values.count(one) > 1), None)
        if twice is not None:
            raise ValueError(f"{twice!r} is given twice: each client id has one name of its own")
    if len(found) > MAX_CLIENTS:
        raise ValueError(f"there are {len(found)} names, above the limit of {MAX_CLIENTS}")
    return found


def _client(client_id: Any, name: Any) -> Client:
    if not isinstance(client_id, str) or not is_client_id(client_id):
        raise ValueError(f"{client_id!r} is not a client id: 32 hexadecimal digits, such as in {EXAMPLE}")
    name = name.strip() if isinstance(name, str) else ""
    if not 0 < len(name) <= MAX_CHARS or not name.isprintable() or is_client_id(name):
        raise ValueError(f"the name of {client_id} is not text of 1 to {MAX_CHARS} characters")
    if name in NO_CLIENT_NAMES:
        raise ValueError(f"the name {name!r} has another meaning. Choose another name")
    return Client(client_id, name)
