"""`python -m streamgauge.simulator`: the simulated upstream without the rest of the package's commands."""

from __future__ import annotations

import logging
import sys

import click

from streamgauge.simulator.command import simulate_command


def main() -> None:
    """Run the command; wrong input is one line on stderr and exit code 2."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        code = simulate_command.main(prog_name="python -m streamgauge.simulator", standalone_mode=False)
    except click.ClickException as e:
        print(f"simulate: {e.format_message()}", file=sys.stderr)
        sys.exit(2)
    except (OSError, ValueError) as e:
        print(f"simulate: {e}", file=sys.stderr)
        sys.exit(2)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
