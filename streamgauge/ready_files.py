"""Ready files: a part writes `run/<part>.json` with its pid and addresses when it is ready, and removes it when it stops."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def read_ready_file(run_dir: Path, part: str) -> dict[str, Any] | None:
    """The content of `run/<part>.json`; None if there is none."""
    try:
        content: dict[str, Any] = json.loads((run_dir / f"{part}.json").read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) and "pid" in content else None
