"""Append alerts, and the numbers of streams by outcome, to files in the folder ACME_FOLDER."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl


def append_alert(notification: Mapping[str, Any]) -> None:
    """One JSON object per alert that fires or resolves."""
    _append("alerts.jsonl", notification)


def append_outcomes(tables: Mapping[str, pl.DataFrame]) -> None:
    """One JSON object per commit with streams: outcome → streams."""
    streams = tables.get("streams")
    if streams is not None and streams.height:
        _append("outcomes.jsonl", dict(streams["outcome"].value_counts().iter_rows()))


def _append(name: str, value: Mapping[str, Any]) -> None:
    with (Path(os.environ["ACME_FOLDER"]) / name).open("a") as file:
        file.write(json.dumps(value, default=str) + "\n")
