"""`streamgauge read FILE…`: decode recorded responses and print what they contain (`recorded_response`)."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from streamgauge.allowed_values import WholeNumber
from streamgauge.output_format import format_option
from streamgauge.recorded_response import ExchangeHints, Response, read_file

_NOT_PRINTED = ("events", "measures")


def members(response: Response) -> dict[str, Any]:
    """What `--format json` prints."""
    found = msgspec.structs.asdict(response)
    return {name: value for name, value in found.items() if name not in _NOT_PRINTED}


def _table(found: dict[str, Any]) -> str:
    """The result for one file as text, without unknown and empty values."""
    lines = [found["file"]]
    for key, value in found.items():
        empty = value in (None, "", [], False) or (value == 0 and key != "event_count")
        if empty or key in ("file", "notes"):
            continue
        if isinstance(value, (dict, list)):
            value = msgspec.json.encode(value).decode()
        text = " ".join(str(value).split())
        lines.append(f"  {key:<20} {text if len(text) <= 160 else text[:159] + '…'}")
    lines += [f"  {'note':<20} {note}" for note in found["notes"]]
    return "\n".join(lines)


@click.command(name="read")
@click.argument("files", nargs=-1, required=True, metavar="FILE…", type=click.Path(path_type=Path))
@click.option("--path", metavar="PATH", help="Path or URL of the request, such as /v1/chat/completions.")
@click.option("--status", type=WholeNumber(100, 599), metavar="CODE", help="HTTP status of the response.")
@click.option("--content-type", metavar="TYPE", help="Content type of the response.")
@format_option(" json prints one object per line.")
def read_command(
    files: tuple[Path, ...], path: str | None, status: int | None, content_type: str | None, form: str
) -> int:
    """Decode recorded responses: text, tool calls, tokens, events, outcome.

    If X.json exists next to X.sse, url, http_status and content_type are taken from it.
    """
    code = 0
    for file in files:
        try:
            found = members(read_file(file, ExchangeHints(path, status, content_type)))
        except OSError as e:
            click.echo(f"streamgauge: cannot read {file}: {e.strerror or e}", err=True)
            code = 2
            continue
        if form == "json":
            line = msgspec.json.encode(found)
            sys.stdout.buffer.write(line + b"\n")
            sys.stdout.buffer.flush()
        else:
            click.echo(_table(found))
    if code:
        raise SystemExit(code)
    return os.EX_OK
