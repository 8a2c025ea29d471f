"""Two taps behind a proxy, configured as the guide says, restart one after the other without a failed request."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from bench.tap.peers import Missing, running
from tests.deadline import DEADLINE_S, until
from tests.e2e.proxies import HOW_TO, PROXIES
from tests.e2e.running import answers, simulator
from tests.e2e.test_replaced_tap import sending
from tests.ports import free_port

TITLES = {"nginx": "two-taps.conf", "haproxy": "two-taps.cfg", "caddy": "two-taps.Caddyfile"}
PORTS = ("8080", "4100", "4101", "4110", "4111")
"""Those of the guide: the proxy, then the taps with their admin ports."""


@contextmanager
def tap(upstream: str, data: Path, port: str, admin: str) -> Iterator[subprocess.Popen[bytes]]:
    """A tap that is ready. At the end it has stopped by itself."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "streamgauge", "tap", "--upstream", upstream, "--data", str(data),
            "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{admin}",
        ]
    )  # fmt: skip
    try:
        until(lambda: answers(f"http://127.0.0.1:{admin}/readyz"), "the tap")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(DEADLINE_S)
    assert process.returncode == 0


@pytest.mark.parametrize("name", ["nginx", "haproxy", pytest.param("caddy", marks=pytest.mark.slow)])
def test_taps_restart_one_after_the_other(name: str, tmp_path: Path) -> None:
    blocks = dict(re.findall(r"```\w* ?title=\"(.+?)\"\n(.*?)```", (HOW_TO / "nginx.md").read_text(), re.S))
    ports = {number: str(free_port()) for number in PORTS}
    file = tmp_path / TITLES[name]
    file.write_text(re.sub("|".join(PORTS), lambda found: ports[found[0]], blocks[TITLES[name]]))
    try:
        program = PROXIES[name].program()
    except Missing as e:
        pytest.skip(str(e))
    if program is None:
        pytest.skip(f"{name} is not installed")
    address, *of_taps = ports.values()
    pairs = [("a", *of_taps[:2]), ("b", *of_taps[2:])]
    with simulator() as upstream, ExitStack() as stopped:
        taps = {}
        for folder, *numbers in pairs:
            taps[folder] = stopped.enter_context(ExitStack())
            taps[folder].enter_context(tap(upstream, tmp_path / folder, *numbers))
        with (
            running(name, PROXIES[name].argv(program, file), int(address), tmp_path / "log"),
            sending(f"http://127.0.0.1:{address}") as clients,
        ):

            def more() -> None:
                before = len(clients.sent)
                until(lambda: len(clients.sent) > before + 40, "requests")

            for folder, *numbers in pairs * 2:
                more()
                taps[folder].close()
                more()
                taps[folder].enter_context(tap(upstream, tmp_path / folder, *numbers))
            more()
        assert clients.failures == []
