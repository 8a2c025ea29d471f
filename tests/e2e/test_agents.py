"""Real coding agents under `streamgauge run`, in a network namespace without a way out, against the simulator.

Their packages are installed into `build/agents` by the first test that needs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from streamgauge.simulator import measurement_check
from streamgauge.simulator.ledger import LedgerRow
from tests.e2e.running import ROOT
from tests.npm import installed
from tests.tables import tables

pytestmark = pytest.mark.slow

SIMULATOR = "http://127.0.0.1:4299"
IN_NAMESPACE = f"""
ip link set lo up || exit 1
{sys.executable} -m streamgauge simulate --listen 127.0.0.1:4299 --rate-faults 0 >/dev/null &
until {sys.executable} -c 'import urllib.request; urllib.request.urlopen("{SIMULATOR}/v1/models")' 2>/dev/null; do sleep 0.1; done
"$@" </dev/null
code=$?
{sys.executable} -c 'import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())' \\
    {SIMULATOR}/simulator/ledger >"$LEDGER"
kill %1
exit $code
"""
KEYS = {"OPENAI_API_KEY": "sk-1", "ANTHROPIC_API_KEY": "sk-ant-1", "GEMINI_API_KEY": "k", "CI": "1"}
AGENTS: dict[str, tuple[list[str], dict[str, str]]] = {
    "claude": (["claude", "-p", "hi"], {"ANTHROPIC_BASE_URL": SIMULATOR}),
    "codex": (["codex", "exec", "--skip-git-repo-check", "hi"], {}),
    "gemini": (["gemini", "--skip-trust", "-m", "gemini-2.5-pro", "-p", "hi"], {}),
    "opencode": (["opencode", "run", "hi"], {}),
    "qwen": (["qwen", "-p", "hi"], {}),
}
"""Name → command, and the environment that sends its requests to the simulator without a tap, where one does."""
APPS = {
    "claude": "claude-cli/",
    "codex": "codex",
    "gemini": "GeminiCLI",
    "opencode": "opencode/",
    "qwen": "QwenCode/",
}
WITH_SESSION = {"claude", "codex", "opencode"}
"""Others name none: their side calls have none, and their conversation has that of its first request."""
SIDE_OPERATIONS = ("count_tokens", "side_call")


@pytest.fixture(scope="module")
def agents() -> Path:
    if subprocess.run(["unshare", "-rn", "true"], check=False).returncode:
        pytest.skip("needs unshare for a network namespace")
    return installed(ROOT / "tests" / "agents") / ".bin"


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder whose parents only its owner may change: Gemini CLI reads settings from no other."""
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as folder:
        yield Path(folder)


def run(
    agents: Path, home: Path, *argv: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[LedgerRow]]:
    """Returns the result and the simulator's requests."""
    path = f"{agents}{os.pathsep}{os.environ['PATH']}"
    ledger = home / "ledger.json"
    own = {"HOME": str(home), "XDG_DATA_HOME": str(home / "data"), "LEDGER": str(ledger), "PATH": path}
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-mc", IN_NAMESPACE, "bash", *argv], env={**os.environ, **KEYS, **own, **environment}, cwd=home,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done, msgspec.json.Decoder(LedgerRow).decode_lines(ledger.read_bytes())


@pytest.mark.parametrize("name", AGENTS)
def test_requests_of_an_agent_are_rows_and_its_output_is_unchanged(
    agents: Path, home: Path, name: str
) -> None:
    command, direct = AGENTS[name]
    if not (agents / name).exists():
        pytest.skip(f"npm has no build of {name} for this machine")
    options = ("--no-dashboard", "--upstream", f"sim={SIMULATOR}", "--name", "run")
    since = datetime.now(UTC)
    done, requests = run(agents, home, sys.executable, "-m", "streamgauge", "run", *options, "--", *command)
    assert done.returncode == 0, done.stderr
    stored = tables(home / "data" / "streamgauge" / "runs" / "run")
    # Claude Code asks whether the server is there. A response to HEAD has no body with its error.
    heads = {row.request_id for row in requests if row.method == "HEAD"}
    requests = [row for row in requests if row.request_id not in heads]
    streams = [
        row for row in measurement_check.streams_since(stored, since) if row["request_id"] not in heads
    ]
    measurement_check.report_discrepancies(
        found := measurement_check.check_measurements(requests, streams), write=print
    )
    assert not found
    print(measurement_check.ttft_overhead(requests, streams))
    calls = stored.query(
        "SELECT operation, client_app, turn, session_id, input_tokens, output_tokens FROM streams "
        "WHERE outcome = 'ok' AND operation IS NOT NULL"
    ).to_dicts()
    print(*calls, sep="\n")
    assert all(row["client_app"].startswith(APPS[name]) and row["input_tokens"] for row in calls)
    assert all(row["output_tokens"] for row in calls if row["operation"] != "count_tokens")
    assert all(
        row["session_id"] for row in calls if name in WITH_SESSION or row["operation"] not in SIDE_OPERATIONS
    )
    turns = {row["turn"] for row in calls if row["operation"] not in SIDE_OPERATIONS}
    # Qwen Code begins with a message and an answer of its own. Then an agent of its own continues.
    assert turns == ({2, 3} if name == "qwen" else {1})
    assert {row["operation"]: row["turn"] for row in calls}.get("side_call") is None
    # A refused upgrade, of Codex, is neither an error nor a request of the session.
    [(upgrades, errors, in_sessions)] = stored.query(
        "SELECT count(*), count(*) FILTER (outcome <> 'refused'), count(*) FILTER (stream_id IN (SELECT stream_id FROM session_turns)) "
        "FROM streams WHERE outcome <> 'ok' AND method = 'GET'"
    ).rows()
    assert (upgrades > 0, errors, in_sessions) == (name == "codex", 0, 0)
    if direct:
        without, _ = run(agents, home, *command, **direct)
        assert (without.stdout, without.returncode) == (done.stdout, done.returncode)
