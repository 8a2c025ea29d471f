"""What the processes of the fault tests run. It imports no more than they need."""

from __future__ import annotations

import sys


def command(*arguments: str) -> None:
    """The command `streamgauge`."""
    from streamgauge.cli import main

    sys.argv = ["streamgauge", *arguments]
    main()
