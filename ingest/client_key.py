"""The key of the keyed hashes of client ids and session ids, and the hash.

Equal values have equal hashes under one key. A value cannot be derived from its hash. The tap, `ship` and analytics on one data
folder share the key, so a session has the same id in a header and in a body.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path

from streamgauge.ingest.private_files import write_private

FILE = "client.key"
"""File of the key in the data folder, unless `--client-key` is set."""
_KEY_BYTES = 32


def keyed_hash(value: bytes, key: bytes, *, kind: bytes = b"") -> str:
    """32 hex digits. The same value has different hashes for different kinds."""
    return hashlib.blake2b(value, key=key[:64], digest_size=16, person=kind).hexdigest()


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
