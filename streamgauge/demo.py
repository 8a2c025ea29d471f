"""`streamgauge demo`: the command-line options. `demo_run` runs the demo."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import cloup

from streamgauge.demo_run import Demo, DemoOptions


@cloup.command("demo")
@cloup.option_group(
    "Common options",
    cloup.option(
        "--seconds", type=click.FloatRange(1), metavar="SECONDS", help="Stop after this time and compare measured with simulated values."
    ),
    cloup.option(
        "--rate", "rate_per_s", type=click.FloatRange(0.01, 2000), metavar="REQUESTS/S", default=6.0, show_default=True,
        help="Request rate.",
    ),
    cloup.option(
        "--rate-faults", type=click.FloatRange(0, 1), metavar="SHARE", default=0.08, show_default=True,
        help="Share of requests with a fault.",
    ),
    cloup.option("--no-dashboard", is_flag=True, help="Do not start the dashboard."),
    cloup.option(
        "--data", type=click.Path(file_okay=False, path_type=Path), metavar="FOLDER",
        help="Data folder.  [default: a temporary folder]",
    ),
)  # fmt: skip
@cloup.option_group(
    "Advanced",
    cloup.option("--listen", metavar="HOST:PORT", default="127.0.0.1:4100", show_default=True, help="Address of the tap."),
    cloup.option(
        "--admin", metavar="HOST:PORT", default="127.0.0.1:4101", show_default=True, help="Address of the tap's admin port."
    ),
    cloup.option(
        "--dashboard-port", type=click.IntRange(0, 65535), metavar="PORT", default=8501, show_default=True,
        help="Dashboard port; 0 = any free port.",
    ),
    cloup.option(
        "--simulator", metavar="HOST:PORT", help="Address of the simulator.  [default: 127.0.0.1:4200, or a free port]"
    ),
    cloup.option("--kafka", metavar="HOST:PORT", help="Kafka broker for the record log."),
    cloup.option(
        "--workers", type=click.IntRange(1, 256), metavar="N", default=1, show_default=True,
        help="Worker processes of the tap.",
    ),
    cloup.option(
        "--concurrency", type=click.IntRange(1, 5000), metavar="N", default=64, show_default=True,
        help="Maximum number of open requests.",
    ),
    cloup.option(
        "--time-scale", type=click.FloatRange(0.01, 100), metavar="N", default=1.0, show_default=True,
        help="Multiplier of simulated times; 0.1 = ten times faster.",
    ),
    cloup.option("--seed", metavar="TEXT", help="Random seed, for a reproducible run."),
)  # fmt: skip
def demo_command(workers: int, kafka: str | None, **options: Any) -> int:
    """Run everything with simulated traffic.

    Starts a simulated gateway in every dialect, the tap, analytics, the dashboard, and clients that send requests through the
    tap. Runs until Ctrl-C. With --seconds it stops by itself and exits with 0 if measured and simulated values agree.
    """
    for name in ("listen", "admin", "simulator", "kafka"):
        address = kafka if name == "kafka" else options[name]
        if address is not None:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise click.BadParameter(
                    f"{address!r} is not HOST:PORT, such as 127.0.0.1:4100", param_hint=f"--{name}"
                )
    up_flags = ("--workers", str(workers), *(("--kafka", kafka) if kafka else ()))
    return Demo(DemoOptions(**options, up_flags=up_flags)).run()
