"""Garbage collection settings for analytics processes.

The streams of a commit are several hundred thousand objects that live until the commit. Rows, records and decoders contain
no reference cycles (a test checks this), so reference counting frees them. With Python's default thresholds the cycle
collector took a sixth of the consumer's CPU, and with a threshold of 50,000 objects still 4 %.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 250_000
"""More objects than a full commit creates. At most about 50 MB of cyclic garbage."""


def tune_gc() -> None:
    """Freeze all imported objects and collect rarely. Call once, after the imports."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
