"""The table `objectives`: the objectives in the settings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import astuple

from streamgauge.analytics.schema.objectives import COLUMNS, Objective
from streamgauge.analytics.storage.replaced_table import replace_rows
from streamgauge.analytics.storage.store import Store

log = logging.getLogger(__name__)


def write_objectives(store: Store, objectives: Sequence[Objective]) -> None:
    """Make the table equal to `objectives`. Raises OSError."""
    rows = [(number, *astuple(objective)) for number, objective in enumerate(objectives)]
    if replace_rows(store, "objectives", ("priority", *COLUMNS), rows):
        log.info("the store has %d objectives: %s", len(rows), ", ".join(o.name for o in objectives))
