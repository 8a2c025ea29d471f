"""Recorded streams outside the repository, with the result of an independent reader."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORPUS = Path(
    os.environ.get("STREAMGAUGE_CORPUS") or Path(__file__).resolve().parents[3] / "shared" / "corpus"
)
SKIP_REASON = f"no recorded streams in {CORPUS} (set STREAMGAUGE_CORPUS to their folder)"


@dataclass(frozen=True)
class Recording:
    body: Path

    @property
    def folder(self) -> str:
        return self.body.parent.name

    @property
    def found(self) -> dict[str, Any]:
        """The result of the independent reader."""
        value: dict[str, Any] = json.loads(self.body.with_suffix(".json").read_bytes())
        return value

    def __str__(self) -> str:
        return f"{self.folder}/{self.body.stem}"


def recordings(*folders: str) -> list[Recording]:
    """All recordings, or those of the given folders."""
    if not CORPUS.is_dir():
        return []
    return [
        Recording(body)
        for body in sorted(CORPUS.glob("*/*.sse"))
        if not folders or body.parent.name in folders
    ]
