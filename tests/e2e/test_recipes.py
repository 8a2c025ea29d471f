"""Run the recipes of the how-to guides in a clean folder."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S, until
from tests.e2e.running import ROOT
from tests.litellm_proxy import LITELLM

HOW_TO = ROOT / "docs" / "how-to"
PORTS = (4000, 4100, 4101, 4102, 4200, 4443, 8443, 8501, 9494)


def recipe(page: str) -> str:
    """The first section of a how-to guide."""
    return re.split(r"^## ", (HOW_TO / page).read_text(), maxsplit=1, flags=re.M)[0]


def steps(text: str) -> list[tuple[str, str]]:
    """Every `$ command` of a recipe with the output that the page shows."""
    blocks = "\n".join(re.findall(r"```console\n(.*?)```", text, re.S))
    return [(c, "\n".join(out)) for c, *out in (step.splitlines() for step in blocks.split("$ ")[1:])]


def follow(text: str, folder: Path, *, deadline_s: float = 90, **variables: str) -> None:
    """Write the recipe's files, start its services, and retry its commands until their output is as documented."""
    for name, content in re.findall(r"```\w+ title=\"(.+?)\"\n(.*?)```", text, re.S):
        (folder / name).write_text(content)
    programs = os.pathsep.join([str(Path(sys.executable).parent), str(LITELLM.parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": programs, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **variables}
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command, shown in steps(text):
            if command.endswith("&") or command.startswith("make up"):
                log = (folder / f"{len(running)}.log").open("wb")
                running.append(
                    subprocess.Popen(
                        ["/bin/sh", "-c", f"exec {command.rstrip('& ')}"],
                        cwd=folder,
                        env=environment,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                    )
                )
                continue

            def shows(command: str = command, shown: str = shown) -> bool:
                assert all(process.poll() is None for process in running)
                done = subprocess.run(
                    command, shell=True, cwd=folder, env=environment, capture_output=True, text=True
                )
                return all(word in done.stdout for word in shown.split())

            until(shows, f"{shown!r} of {command!r}", deadline_s)
    except AssertionError as e:
        raise AssertionError(
            "\n".join([str(e), *(p.read_text()[-2000:] for p in folder.glob("*.log"))])
        ) from None
    finally:
        for process in reversed(running):
            process.send_signal(signal.SIGTERM)
        for process in running:
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def skip_unless_the_ports_are_free(ports: Sequence[int] = PORTS) -> None:
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                pytest.skip(f"port {port}, which the recipes use, is taken")


@pytest.mark.litellm
def test_litellm(tmp_path: Path) -> None:
    skip_unless_the_ports_are_free()
    follow(recipe("litellm.md"), tmp_path)


def test_nginx(tmp_path: Path) -> None:
    if shutil.which("nginx") is None:
        pytest.skip("nginx is not installed: make test-setup")
    skip_unless_the_ports_are_free()
    follow(recipe("nginx.md"), tmp_path)
