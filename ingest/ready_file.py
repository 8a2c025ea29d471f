"""Ready files: a part writes `run/<part>.json` with its pid and addresses when it is ready, and removes it when it stops.

A killed process leaves its file behind. A file can hold a token, so only its owner can read it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingest.private_files import make_private_folder, write_json


def read_ready_file(path: Path) -> dict[str, Any] | None:
    """The content of the file; None if it is missing or invalid."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and isinstance(content.get("pid"), int) else None


def write_ready_file(path: Path, content: Mapping[str, object]) -> None:
    """Write the file of this process and create its folder. Raises OSError."""
    make_private_folder(path.parent)
    write_json(path, {"pid": os.getpid(), **content})


def remove_ready_file(path: Path) -> None:
    """Remove the file unless another process wrote it."""
    content = read_ready_file(path)
    if content is not None and content["pid"] == os.getpid():
        path.unlink(missing_ok=True)
