"""`streamgauge simulate`: run the simulated upstream."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from streamgauge.simulator.server import Simulator, SimulatorOptions, run
from streamgauge.values import Address, Duration, Number, WholeNumber


@click.command("simulate")
@click.option(
    "--listen", type=Address(), metavar="HOST:PORT", default="127.0.0.1:4200", show_default=True,
    help="Address to listen on; port 0 = any free port.",
)  # fmt: skip
@click.option("--seed", metavar="TEXT", default="streamgauge", show_default=True, help="Random seed.")
@click.option(
    "--rate-faults",
    type=Number(0, 1),
    metavar="SHARE",
    default=0.05,
    show_default=True,
    help="Share of requests with a fault.",
)
@click.option(
    "--time-scale",
    type=Number(0, 1000),
    metavar="N",
    default=1.0,
    show_default=True,
    help="Multiplier of simulated times; 0.1 = ten times faster.",
)
@click.option(
    "--keepalive",
    "keepalive_s",
    type=Duration(0.01),
    metavar="DURATION",
    default="1s",
    show_default=True,
    help="Silence before a keep-alive, for vendors that send them.",
)
@click.option(
    "--ledger-rows",
    type=WholeNumber(1),
    metavar="N",
    default=10_000,
    show_default=True,
    help="Maximum number of requests in the ledger.",
)
@click.option("--keep-text", is_flag=True, help="Keep generated text in the ledger.")
@click.option(
    "--announce", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write pid and URL to this file when ready."
)  # fmt: skip
def simulate_command(**options: Any) -> int:
    """Run a simulated LLM upstream.

    The model of a request selects the dialect; GET /v1/models lists the models. The header x-simulate forces values, such as
    x-simulate: {"ttft_ms": 200, "gap_ms": 10, "tokens": 50, "fault": "truncate"}. GET /simulator/ledger returns the ground
    truth.
    """
    return run(SimulatorOptions(**options), _welcome)


def _welcome(simulator: Simulator) -> None:
    click.echo(f"The simulator listens at {simulator.url}. Ctrl-C stops.")
    click.echo(f"  models   {simulator.url}/v1/models")
    click.echo(f"  truth    {simulator.url}/simulator/ledger")
