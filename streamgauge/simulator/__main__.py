"""`python -m streamgauge.simulator`."""

import logging

from streamgauge.simulator.command import simulate_command

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    simulate_command()
