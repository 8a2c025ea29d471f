"""`streamgauge silence`: no messages about some alerts for a time."""

from __future__ import annotations

from typing import Any

import click

from streamgauge.flags import load, settings_options
from streamgauge.mark import store_item
from streamgauge.values import Duration, format_option, print_json


@click.command("silence")
@click.option("--rule", metavar="GLOB", default="*", show_default=True, help="Rules, such as burn_rate.")
@click.option("--model", metavar="GLOB", default="*", show_default=True, help="Models, such as 'gpt-*'.")
@click.option("--gateway", metavar="GLOB", default="*", show_default=True, help="Gateways.")
@click.option(
    "--for", "seconds", type=Duration(0, 30 * 86400), metavar="DURATION", default="1h", show_default=True,
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
    if form == "json":
        print_json(stored)
    else:
        click.echo("silent until {ends_at}: rule {rule}, model {model}, gateway {gateway}".format(**stored))
    return 0
