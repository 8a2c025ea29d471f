"""Files and folders that only their owner can read (modes 0600 and 0700).

Writes are atomic: a reader sees the old content or the new content, never a part of it. Every function raises OSError.
"""

from __future__ import annotations

import json
import os
from pathlib import Path


def make_private_folder(path: Path) -> None:
    """Create a folder and its parents. An existing folder keeps its mode."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)


def write_private(path: Path, content: bytes) -> None:
    """Write or replace a file, which has one writer. On an error the old file stays and no temporary file is left."""
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    try:
        with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            file.write(content)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: object) -> None:
    """Write or replace a JSON file."""
    write_private(path, json.dumps(value).encode())
