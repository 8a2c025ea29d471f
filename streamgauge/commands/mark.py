"""Commands that store what analytics does not measure: `mark` a deployment, `silence` alerts."""

from __future__ import annotations

import datetime as dt
import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import click

from streamgauge.analytics.schema.tables import MAX_SILENCE_S
from streamgauge.ingest.ready_file import read_of_running
from streamgauge.settings.flags import load, settings_options
from streamgauge.settings.model import Settings
from streamgauge.settings.values import Duration, format_option, parse_duration_s, print_report

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
    print_report(stored, f"{stored['at']}  {stored['text']}", form)
    return 0


def _time(text: str | None) -> str:
    """Now, or a duration before now, as a time. Analytics checks other texts, as it does for all of its clients."""
    try:
        seconds = parse_duration_s(text) or 0
    except ValueError:
        return str(text)
    return (dt.datetime.now(dt.UTC) - dt.timedelta(seconds=seconds)).isoformat()


@click.command("silence")
@click.option("--rule", metavar="GLOB", default="*", show_default=True, help="Rules, such as burn_rate.")
@click.option("--model", metavar="GLOB", default="*", show_default=True, help="Models, such as 'gpt-*'.")
@click.option("--gateway", metavar="GLOB", default="*", show_default=True, help="Gateways.")
@click.option(
    "--for", "seconds", type=Duration(0, MAX_SILENCE_S), metavar="DURATION", default="1h", show_default=True,
    help="How long; 0 ends the silence with the same globs.",
)  # fmt: skip
@click.option(
    "--reason", metavar="TEXT", default="silenced", show_default=True, help="Why, for the page Alerts."
)
@settings_options("data", "otlp_token")
@format_option()
def silence_command(
    rule: str, model: str, gateway: str, seconds: float, reason: str, form: str, **given: Any
) -> int:
    """Send no messages about some alerts for a time.

    The alerts are still stored. Analytics must be running, with --metrics.
    """
    item = {"rule": rule, "model": model, "gateway": gateway, "seconds": seconds, "reason": reason}
    stored = store_item(load(given), "silence", item)
    text = "silent until {ends_at}: rule {rule}, model {model}, gateway {gateway}".format(**stored)
    print_report(stored, text, form)
    return 0


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
