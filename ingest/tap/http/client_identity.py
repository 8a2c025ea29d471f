"""Client ids: a keyed hash of the client's API key.

The same API key gives the same id. The API key cannot be derived from the id.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamgauge.ingest.keyed_ids import keyed_hash

API_KEY_FIELDS: tuple[bytes, ...] = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
"""Header fields (in lower case) with API keys. The first one present identifies the client."""


def client_id(fields: Mapping[bytes, bytes], key: bytes) -> str | None:
    """The client's id (32 hex digits), None without an API key. `fields`: values by lower-case name."""
    for name in API_KEY_FIELDS:
        secret = fields.get(name)
        if secret:
            scheme, sep, token = secret.partition(b" ")
            if name == b"authorization" and sep and scheme.lower() == b"bearer":
                secret = token.strip()
            return keyed_hash(secret, key)
    return None
