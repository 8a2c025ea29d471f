"""The LiteLLM proxy, which `make test-setup` installs in its own environment."""

from __future__ import annotations

from pathlib import Path

ENVIRONMENT = Path(__file__).parents[1] / ".venv-litellm"
LITELLM = ENVIRONMENT / "bin" / "litellm"
PYTHON = ENVIRONMENT / "bin" / "python"
