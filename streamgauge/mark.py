"""`streamgauge mark "deploy v2"`: store a marker, such as a deployment, that charts show."""

from __future__ import annotations

import datetime as dt
import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import click

from streamgauge.flags import load, settings_options
from streamgauge.ingest.ready_file import read_of_running
from streamgauge.settings import Settings
from streamgauge.values import format_option, parse_duration_s, print_json

TIMEOUT_S = 15.0


@click.command("mark")
@click.argument("text")
@click.option(
    "--at",
    metavar="DURATION|TIME",
    help="Time of the event: 5m (ago), or a time with its zone: 2026-11-22T07:00:00Z.  [default: now]",
)
@click.option("--source", metavar="TEXT", default="mark", show_default=True, help="Who reports the event.")
@settings_options("data", "otlp_token")
@format_option()
def mark_command(text: str, at: str | None, source: str, form: str, **given: Any) -> int:
    """Store a marker, such as a deployment.

    Charts show it. Analytics must be running, with --metrics.
    """
    settings = load(given)
    marker = {"text": text, "source": source, "at": _time(at)}
    stored = store_item(settings, "marker", marker)
    if form == "json":
        print_json(stored)
    else:
        click.echo(f"{stored['at']}  {stored['text']}")
    return 0


def _time(text: str | None) -> str:
    """Now, or a duration before now, as a time. Analytics checks other texts, as it does for all of its clients."""
    try:
        seconds = parse_duration_s(text) or 0
    except ValueError:
        return str(text)
    return (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)).isoformat()


def store_item(settings: Settings, noun: str, item: Mapping[str, object]) -> dict[str, str]:
    """Send an item to the running analytics, which stores it. Returns what it stored. Raises click.ClickException."""
    ready = read_of_running(settings.data / "run" / "analyze.json")
    if ready is None:
        raise click.ClickException(
            f"cannot store the {noun}: analytics does not run on {settings.data}. Start it, or pass --data."
        )
    url = ready.get(f"{noun}s")
    if not url:
        raise click.ClickException(
            f"cannot store the {noun}: analytics has no HTTP address. Start it with --metrics HOST:PORT."
        )
    parts = urlsplit(str(url))
    headers = {"Content-Type": "application/json"}
    if settings.otlp_token is not None:
        headers["Authorization"] = f"Bearer {settings.otlp_token.get_secret_value()}"
    # `http.client` ignores proxy environment variables.
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
    try:
        connection.request("POST", parts.path, json.dumps(item), headers)
        response = connection.getresponse()
        answer: dict[str, str] = json.loads(response.read())
    except (OSError, http.client.HTTPException, ValueError) as e:
        raise click.ClickException(
            f"cannot store the {noun} at {url}: {e}. `streamgauge status` shows whether analytics runs."
        ) from None
    finally:
        connection.close()
    if response.status != 201:
        raise click.ClickException(f"cannot store the {noun}: {answer.get('error')}.")
    return answer
