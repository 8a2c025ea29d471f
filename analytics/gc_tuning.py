"""How often Python looks for objects that only each other hold.

The streams of a commit are some hundred thousand objects that all live until then. Looking through the young ones after every
700, and through all of them from time to time, took a sixth of the consumer's CPU, after every 50,000 still a twenty-fifth, and
found nothing: rows, records and decoders hold no cycles (a test keeps it so), so reference counts free them at once.
"""

from __future__ import annotations

import gc

YOUNG_OBJECTS = 250_000
"""So many more objects than before, more than a full commit has: then the young ones are looked through. Some 50 MB, should all
of them be garbage."""


def look_seldom() -> None:
    """For a process of ours, once it has imported what it needs: all of that stays, and is never looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
