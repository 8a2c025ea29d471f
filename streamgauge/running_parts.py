"""Settings of the running parts, for commands that read what those parts write.

`run/analyze.json` and `run/ship.json` name the store and the topic, without secrets. Flags, environment and file win.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from streamgauge.analytics.storage.location import HIDDEN
from streamgauge.flags_from_settings import load_used
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.settings import Settings


def load_with_running_parts(given: Mapping[str, Any]) -> Settings:
    """As `load_used` for a command with the settings `given`. Store and topic are those of the parts that run on this data
    folder, unless they are set.

    Raises click.UsageError, also if the store that analytics uses requires a password.
    """
    settings, _ = load_used(given, given)
    running = settings_in_use(settings.data)
    running.pop("kafka_options", None)
    unset = {name: value for name, value in running.items() if name not in settings.model_fields_set}
    if HIDDEN in unset.get("store", ""):
        raise click.UsageError(
            f"the running analytics writes to {unset['store']}, which requires a password. "
            "Pass --store or set STREAMGAUGE_STORE."
        )
    return load_used({**given, **unset}, given)[0] if unset else settings


def settings_in_use(data: Path) -> dict[str, Any]:
    """Settings of the running parts: `store`, `kafka`, `kafka_topic`, and the names in `kafka_options`."""
    ship = read_ready_file(data / "run" / "ship.json") or {}
    used = {"kafka": ship.get("brokers"), "kafka_topic": ship.get("topic")}
    used |= read_ready_file(data / "run" / "analyze.json") or {}
    names = ("store", "kafka", "kafka_topic", "kafka_options")
    return {name: used[name] for name in names if used.get(name)}
