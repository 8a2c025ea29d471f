"""Real clients fail on exactly the streams that break a rule of theirs, or lose what these carry, and read all others whole."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.schema.strict_clients import clients_of
from tests.analytics.strict_streams import STREAMS, Stream
from tests.e2e.running import ROOT
from tests.npm import installed
from tests.strict_clients import driver
from tests.strict_clients.reading import lost, reading_of

ALONE = ["unshare", "-rn", "bash", "-c", 'ip link set lo up && "$@"', "bash"]
"""In a network namespace without a way out."""


def check(client: str, broken: set[str], streams: Sequence[Stream], answers: dict[str, Any]) -> None:
    listed = {s.name for s in streams if any(client in clients_of(rule, s.dialect) for rule in s.rules)}
    print(client, f"{len(broken)} of {len(streams)} streams rejected or misread")
    wrong = {name: answers[name] for name in broken ^ listed}
    assert not wrong, f"{client}: {json.dumps(wrong, indent=1)}"
    assert broken


@pytest.mark.parametrize(
    "packages",
    [pytest.param("", id="python"), pytest.param("strict_clients", id="node", marks=pytest.mark.slow)],
)
def test_sdks_break_on_the_streams_that_are_said_to_break_them(packages: str) -> None:
    modules = installed(ROOT / "tests" / packages) if packages else None
    found = driver.sdk_answers([(s.dialect, s.content_type, s.body) for s in STREAMS], modules)
    for client in {client for answers in found for client in answers}:
        of_client = {
            s.name: answers[client] for s, answers in zip(STREAMS, found, strict=True) if client in answers
        }
        streams = [s for s in STREAMS if s.name in of_client]
        broken = {
            s.name
            for s in streams
            if any(
                lost(answer, reading_of(s.dialect, s.body), client, s.dialect) for answer in of_client[s.name]
            )
        }
        check(client, broken, streams, of_client)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["codex", "claude"])
def test_agents_break_on_the_streams_that_are_said_to_break_them(kind: str) -> None:
    modules = installed(ROOT / "tests" / "agents")
    if subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("needs unshare for a network namespace")
    command = [*ALONE, sys.executable, "-m", "tests.strict_clients.driver", kind, str(modules)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    # Replaced bytes are no loss. The answers to thinking have another base, and an agent that reads 1.5 tokens reads what was sent.
    answers = json.loads(done.stdout.replace("\\ufffd", ""))
    for client, found in answers.items():
        streams = [s for s in STREAMS if s.name in found and "thinking" not in s.name and "1.5" not in s.name]
        base = {
            s.is_tool_call: found[s.name]
            for s in streams
            if s.name.endswith((": as sent by the API", ": tool call"))
        }
        broken = {s.name for s in streams if found[s.name] != base[s.is_tool_call]}
        check(client, broken, streams, found)


def test_packages_are_locked() -> None:
    folder = Path(driver.__file__).parent
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
