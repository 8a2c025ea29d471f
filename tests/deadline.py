"""How long tests wait for an event: only what hangs takes longer, on a busy machine, too."""

from __future__ import annotations

DEADLINE_S = 150.0
