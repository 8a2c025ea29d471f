"""Client ids: a keyed hash of the client's API key, and the key of that hash.

The same API key gives the same id. The API key cannot be derived from the id.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from ingest.private_files import write_private

API_KEY_FIELDS: tuple[bytes, ...] = (b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key")
"""Header fields (in lower case) with API keys. The first one present identifies the client."""
_KEY_BYTES = 32


def client_id(fields: Mapping[bytes, bytes], key: bytes) -> str | None:
    """The client's id (32 hex digits), None without an API key. `fields`: values by lower-case name."""
    for name in API_KEY_FIELDS:
        secret = fields.get(name)
        if secret:
            scheme, sep, token = secret.partition(b" ")
            if name == b"authorization" and sep and scheme.lower() == b"bearer":
                secret = token.strip()
            return hashlib.blake2b(secret, key=key[:64], digest_size=16).hexdigest()
    return None


def load_client_key(path: Path) -> bytes:
    """Read the hash key; create it on the first start. Processes that start at the same time get the same key.

    Raises OSError, and ValueError if the file has no valid key.
    """
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) >= _KEY_BYTES // 2:
            return key
        raise ValueError(
            f"{path} holds no key: it is too short. Remove it to create a new one; client ids change then."
        )
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    write_private(fresh, secrets.token_bytes(_KEY_BYTES))
    with contextlib.suppress(FileExistsError):
        os.link(fresh, path)
    fresh.unlink()
    return path.read_bytes()
