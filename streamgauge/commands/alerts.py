"""`streamgauge alerts`: show the alerts that fire, and those that resolved recently."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.query.render import render
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.ready_file import silence
from streamgauge.settings.flags import load_with_running_parts, settings_options
from streamgauge.settings.values import Duration, format_option

QUERY = """
SELECT state, severity, rule, gateway, model, {columns}fired_at, resolved_at, message, stream_id
FROM alerts WHERE state = 'firing' OR resolved_at > now() - INTERVAL ({seconds}) SECOND
ORDER BY state, severity, fired_at DESC LIMIT 1000
"""
JSON_ONLY = "metric, place, value, threshold, evidence, client_id, alert_id, instance, not_sent, began_at, "
MAX_CELL_CHARS = 200


@click.command("alerts")
@settings_options("data", "store")
@click.option(
    "--since", type=Duration(1, 400 * 86400), metavar="DURATION", default="24h", show_default=True,
    help="Also show alerts that resolved within this time.",
)  # fmt: skip
@format_option()
def alerts_command(since: float, form: str, **given: Any) -> int:
    """Show the alerts that fire, and those that resolved recently.

    Exit code 0 if no alert fires, else 1.
    """
    settings = load_with_running_parts(given)
    silent = silence(settings.data, "analyze")
    try:
        with contextlib.closing(QueryPool(locate(settings.store, settings.data), untrusted=False)) as tables:
            columns = JSON_ONLY if form == "json" else ""
            rows = tables.query(QUERY.format(columns=columns, seconds=since))
    except QueryError as e:
        raise click.ClickException(f"{e} {silent}." if silent is not None else str(e)) from None
    if silent is not None:
        click.echo(f"{silent}: newer alerts are missing.", err=True)
    click.echo(render(rows, form, max_cell_chars=MAX_CELL_CHARS), nl=False)
    return int("firing" in rows["state"])
