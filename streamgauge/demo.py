"""`streamgauge demo`: options of the demo (see `demo_run`)."""

from __future__ import annotations

from pathlib import Path

import click

from streamgauge.demo_run import Demo, DemoOptions


@click.command("demo")
@click.option("--seconds", type=click.FloatRange(1), help="End after so long, with a summary and a verdict.")
@click.option("--no-dashboard", is_flag=True, help="Start no dashboard.")
@click.option("--listen", default="127.0.0.1:4100", show_default=True, help="Address of the tap.")
@click.option("--admin", default="127.0.0.1:4101", show_default=True, help="Address of the tap's admin page.")
@click.option("--dashboard-port", type=click.IntRange(0, 65535), default=8501, show_default=True)
@click.option("--simulator", help="Address of the simulator.  [default: 127.0.0.1:4200, or a free port]")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Data folder.  [default: a temporary one, removed at the end]",
)
@click.option(
    "--rate", type=click.FloatRange(0.01, 2000), default=6.0, show_default=True, help="Requests a second."
)
@click.option(
    "--concurrency", type=click.IntRange(1, 5000), default=64, show_default=True, help="Clients at most."
)
@click.option(
    "--rate-faults", type=click.FloatRange(0, 1), default=0.08, show_default=True, help="Share that fails."
)
@click.option(
    "--time-scale",
    type=click.FloatRange(0.01, 100),
    default=1.0,
    show_default=True,
    help="Multiplies simulated times.",
)
@click.option("--kafka", help="HOST:PORT of a Kafka broker to send the log through.")
@click.option(
    "--workers", type=click.IntRange(1, 256), default=1, show_default=True, help="Processes of the tap."
)
@click.option("--seed", help="Draw the same requests and fates again.")
def demo_command(
    seconds: float | None,
    no_dashboard: bool,
    listen: str,
    admin: str,
    dashboard_port: int,
    simulator: str | None,
    data: Path | None,
    rate: float,
    concurrency: int,
    rate_faults: float,
    time_scale: float,
    kafka: str | None,
    workers: int,
    seed: str | None,
) -> int:
    """Run everything with simulated traffic.

    A simulated gateway speaks every dialect; clients send requests through the tap; the dashboard shows the measurements. Runs
    until Ctrl-C. With --seconds it ends by itself, compares measured with simulated values, and exits with 0 if they agree.
    """
    for name, address in (
        ("--listen", listen),
        ("--admin", admin),
        ("--simulator", simulator),
        ("--kafka", kafka),
    ):
        if address is not None:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or int(port) > 65535:
                raise click.BadParameter(
                    f"{address!r} is not HOST:PORT, such as 127.0.0.1:4100", param_hint=name
                )
    options = DemoOptions(
        listen=listen,
        admin=admin,
        dashboard_port=dashboard_port,
        no_dashboard=no_dashboard,
        simulator=simulator,
        data=data,
        seconds=seconds,
        seed=seed,
        rate_per_s=rate,
        concurrency=concurrency,
        rate_faults=rate_faults,
        time_scale=time_scale,
        up_flags=("--workers", str(workers), *(("--kafka", kafka) if kafka else ())),
    )
    return Demo(options).run()
