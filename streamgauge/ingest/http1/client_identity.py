"""Client ids: a keyed hash of the client's API key.

The same API key gives the same id, and so does the same access key of requests that are signed for AWS. The API key cannot
be derived from the id.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamgauge.ingest.keyed_ids import keyed_hash

_MAX_IDS = 4096
_ids: dict[int, str] = {}
"""Ids by a hash of the API key, cleared when it is full. An id takes 2 µs to compute, twenty times as long as the hash. The key
itself is not kept in memory. The seed of the hash is random, so a second API key with the same hash cannot be constructed."""

API_KEY_FIELDS: tuple[bytes, ...] = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
"""Header fields (in lower case) with API keys. The first one present identifies the client."""
AWS_SIGNATURE = b"AWS4-"
"""The start of `Authorization` in a request that is signed for AWS (SigV4)."""


def client_id(fields: Mapping[bytes, bytes], key: bytes) -> str | None:
    """The client's id (32 hex digits), None without an API key. `fields`: values by lower-case name."""
    for name in API_KEY_FIELDS:
        secret = fields.get(name)
        if secret:
            scheme, sep, token = secret.partition(b" ")
            if name == b"authorization" and sep:
                if scheme.lower() == b"bearer":
                    secret = token.strip()
                elif scheme.startswith(AWS_SIGNATURE):
                    # The rest differs between requests. The id of the access key is before the first slash.
                    secret = secret.partition(b"/")[0]
            known_as = hash((secret, key))
            found = _ids.get(known_as)
            if found is None:
                if len(_ids) >= _MAX_IDS:
                    _ids.clear()
                found = _ids[known_as] = keyed_hash(secret, key)
            return found
    return None
