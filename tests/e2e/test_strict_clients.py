"""Real clients reject or misread exactly the streams that break a rule of theirs, and read all others as the API's own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from streamgauge.analytics.schema.strict_clients import clients_of
from tests.analytics.strict_streams import STREAMS, Stream
from tests.e2e.running import ROOT
from tests.npm import installed
from tests.strict_clients import driver

ALONE = ["unshare", "-rn", "bash", "-c", 'ip link set lo up && "$@"', "bash"]
"""In a network namespace without a way out."""


def answers(
    kind: str, *, packages: str = "", alone: bool = False
) -> dict[str, dict[str, list[driver.Answer]]]:
    """Client → stream → its answers."""
    modules = [str(installed(ROOT / "tests" / packages))] if packages else []
    if alone and subprocess.run([*ALONE, "true"], check=False).returncode:
        pytest.skip("needs unshare for a network namespace")
    command = [*(ALONE if alone else []), sys.executable, "-m", "tests.strict_clients.driver", kind, *modules]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, dict[str, list[driver.Answer]]] = json.loads(done.stdout)
    return found


def expected(stream: Stream, of_client: dict[str, list[driver.Answer]]) -> list[driver.Answer]:
    """What the client reads from a stream that it accepts."""
    return of_client[driver.base_of(stream, is_tool_call=stream.is_tool_call).name]


def without_replaced_bytes(found: list[driver.Answer]) -> list[driver.Answer]:
    return [{k: v.replace("\ufffd", "") if k == "text" else v for k, v in answer.items()} for answer in found]


def check(found: dict[str, dict[str, list[driver.Answer]]]) -> None:
    for client, of_client in found.items():
        streams = [stream for stream in STREAMS if stream.name in of_client]
        broken = {
            s.name
            for s in streams
            if without_replaced_bytes(of_client[s.name]) != expected(s, of_client)
        }  # fmt: skip
        listed = {s.name for s in streams if any(client in clients_of(rule, s.dialect) for rule in s.rules)}
        print(client, f"{len(broken)} of {len(streams)} streams rejected or misread")
        wrong = {name: of_client[name] for name in broken ^ listed}
        assert not wrong, f"{client}: {json.dumps(wrong, indent=1)}"
        assert broken
        assert not any(answer.get("error") for s in streams if not s.rules for answer in of_client[s.name])


def test_sdks_for_python_break_on_the_streams_that_are_said_to_break_them() -> None:
    check(answers("python"))


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("kind", "packages"), [("node", "strict_clients"), ("codex", "agents"), ("claude", "agents")]
)
def test_clients_of_npm_break_on_the_streams_that_are_said_to_break_them(kind: str, packages: str) -> None:
    check(answers(kind, packages=packages, alone=True))


def test_packages_are_locked() -> None:
    folder = Path(driver.__file__).parent
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    assert {name: locked[f"node_modules/{name}"]["version"] for name in wanted} == wanted
