"""`streamgauge demo`: the command-line options. `demo_run` runs the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from streamgauge.analytics.extras import require
from streamgauge.settings.flags import default_text
from streamgauge.settings.values import Address, Duration, Number, WholeNumber
from streamgauge.simulator.incidents import INCIDENTS


@cloup.command("demo")
@cloup.option_group(
    "Common options",
    cloup.option(
        "--seconds", type=Duration(1), metavar="DURATION", help="Stop after this time, as Ctrl-C does."
    ),
    cloup.option(
        "--rate", "rate_per_s", type=Number(0.01, 2000), metavar="REQUESTS/S", default=6.0, show_default=True,
        help="Request rate.",
    ),
    cloup.option(
        "--agents", type=WholeNumber(0, 64), metavar="N", default=3, show_default=True,
        help="Coding agents besides, with tools and subagents.",
    ),
    cloup.option(
        "--rate-faults", type=Number(0, 1), metavar="SHARE", default=0.02, show_default=True,
        help="Share of requests with a fault, besides incidents.",
    ),
    cloup.option(
        "--incident", type=click.Choice(["all", *INCIDENTS, "none"]), metavar="KIND", default="all", show_default=True,
        help=f"Incidents to stage: all in turn, none, or one of {', '.join(INCIDENTS)}.",
    ),
    cloup.option("--no-dashboard", is_flag=True, help="Do not start the dashboard."),
    cloup.option(
        "--data", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
        help="Data folder.  [default: a temporary folder]",
    ),
)  # fmt: skip
@cloup.option_group(
    "Advanced",
    cloup.option(
        "--listen", type=Address(), metavar="HOST:PORT", default=default_text("listen"), show_default=True, help="Address of the tap."
    ),
    cloup.option(
        "--admin", type=Address(), metavar="HOST:PORT", default=default_text("admin"), show_default=True,
        help="Address of the tap's admin port.",
    ),
    cloup.option(
        "--dashboard-listen", type=Address(), metavar="HOST:PORT", default=default_text("dashboard_listen"), show_default=True,
        help="Address of the dashboard; port 0 = any free port.",
    ),
    cloup.option(
        "--simulator", type=Address(), metavar="HOST:PORT", help="Address of the simulator.  [default: 127.0.0.1:4200, or a free port]"
    ),
    cloup.option("--kafka", type=Address(), metavar="HOST:PORT", help="Kafka broker for the record log."),
    cloup.option(
        "--workers", type=WholeNumber(1, 256), metavar="N", default=1, show_default=True,
        help="Worker processes of the tap.",
    ),
    cloup.option(
        "--concurrency", type=WholeNumber(1, 5000), metavar="N", default=64, show_default=True,
        help="Maximum number of open requests.",
    ),
    cloup.option(
        "--time-scale", type=Number(0.01, 100), metavar="N", default=1.0, show_default=True,
        help="Multiplier of simulated times; 0.1 = ten times faster.",
    ),
    cloup.option(
        "--incident-after", "incident_after_s", type=Duration(0), metavar="DURATION", default="90s", show_default=True,
        help="Time until the first incident.",
    ),
    cloup.option(
        "--incident-length", "incident_length_s", type=Duration(0.1), metavar="DURATION", default="2m", show_default=True,
        help="Length of an incident, and of the pause after it.",
    ),
    cloup.option("--seed", metavar="TEXT", help="Random seed, for a reproducible run."),
)  # fmt: skip
def demo_command(workers: int, kafka: str | None, **options: Any) -> int:
    """Run everything with simulated traffic.

    Starts a simulated gateway in every dialect, the tap, analytics, the dashboard, and clients that send requests through the
    tap. Every few minutes an incident begins and ends, which the terminal announces and the Overview names. The clients belong to
    teams, and some are coding agents; prices and budgets are part of the demo. Ctrl-C ends it, compares measured with simulated
    values, and exits with 0 if they agree.
    """
    require("duckdb" if options["no_dashboard"] else "streamlit")
    from streamgauge.commands.demo_run import Demo, DemoOptions

    up_flags = ("--workers", str(workers), *(("--kafka", kafka) if kafka else ()))
    return Demo(DemoOptions(**options, up_flags=up_flags)).run()
