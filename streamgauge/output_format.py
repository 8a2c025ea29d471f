"""`--format` of the commands that report: a table for people, or JSON with the keys that docs/reference/cli.md lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click


def format_option(more: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Add `--format table|json`, passed as `form`. `more` is appended to the help text."""
    return click.option(
        "--format", "form", type=click.Choice(["table", "json"]), default="table", show_default=True,
        help=f"Output format.{more}",
    )  # fmt: skip


def print_json(found: Any) -> None:
    """Print one JSON document to stdout."""
    click.echo(json.dumps(found, ensure_ascii=False, allow_nan=False, indent=1))
