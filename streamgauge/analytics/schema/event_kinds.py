"""The kinds of events that are output: they have at least one non-empty fragment of generated content."""

from __future__ import annotations

from typing import Literal, get_args

OutputKind = Literal["text", "reasoning", "refusal", "tool_call", "audio", "image"]
OUTPUT_KINDS: frozenset[str] = frozenset(get_args(OutputKind))
IS_OUTPUT = f"kind IN {get_args(OutputKind)}"
"""SQL condition of rows of `events`."""
