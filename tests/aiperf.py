"""The benchmark tool AIPerf: `pip install aiperf` into an environment of its own, which `AIPERF` names."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ENVIRONMENT = Path(os.environ.get("AIPERF", Path(__file__).parents[1] / ".venv-aiperf"))
AIPERF = ENVIRONMENT / "bin" / "aiperf"
PYTHON = ENVIRONMENT / "bin" / "python"
MARKS = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not AIPERF.exists(),
        reason="no AIPerf: its environment has 1 GB and takes minutes to install (AIPERF)",
    ),
]
