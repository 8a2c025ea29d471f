"""Names of clients, as the table `clients` has them and readers show them instead of client ids."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_CLIENTS = 1000
NO_CLIENT_NAMES = ("(no key)", "_other", "others")
"""What readers show for streams without a key and for the rest of the clients."""

_ID = re.compile(r"[0-9a-f]{32}")


def is_client_id(text: str) -> bool:
    """Whether it is a client id, and so no name."""
    return _ID.fullmatch(text) is not None


def shortened(client: str) -> str:
    """A name as it is, a client id with 10 of its 32 digits."""
    return f"{client[:10]}…" if is_client_id(client) else client


@dataclass(frozen=True, slots=True, order=True)
class Client:
    """Names of clients from the settings, replaced when analytics starts with other ones."""

    client_id: str
    """As in streams. Unique."""
    name: str
    """Name that is shown instead. Unique."""

    def __str__(self) -> str:
        """As the flag `--clients` accepts it."""
        return f"{self.client_id}={self.name}"
