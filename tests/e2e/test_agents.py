"""Real coding agents under `streamgauge run`, in a network namespace without a way out, against the simulator.

Their packages are installed into `build/agents` by the first test that needs them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from streamgauge.simulator import measurement_check
from streamgauge.simulator.ledger import LedgerRow
from tests.e2e.running import tables_of_run
from tests.npm import agents as installed_agents

pytestmark = pytest.mark.slow

SIMULATOR = "http://127.0.0.1:4299"
IN_NAMESPACE = f"""
ip link set lo up || exit 1
{sys.executable} -m streamgauge simulate --listen 127.0.0.1:4299 --rate-faults 0 $SIMULATOR_FLAGS >/dev/null &
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
    return installed_agents()


def run(
    agents: Path, tmp_path: Path, *argv: str, **environment: str
) -> tuple[subprocess.CompletedProcess[str], list[LedgerRow]]:
    """Returns the result and the simulator's requests."""
    path = f"{agents}{os.pathsep}{os.environ['PATH']}"
    ledger = tmp_path / "ledger.json"
    own = {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "LEDGER": str(ledger),
        "PATH": path,
    }
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-mc", IN_NAMESPACE, "bash", *argv], env={**os.environ, **KEYS, **own, **environment}, cwd=tmp_path,
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    return done, msgspec.json.Decoder(LedgerRow).decode_lines(ledger.read_bytes())


@pytest.mark.parametrize("name", AGENTS)
def test_requests_of_an_agent_are_rows_and_its_output_is_unchanged(
    agents: Path, tmp_path: Path, name: str
) -> None:
    command, direct = AGENTS[name]
    if not (agents / name).exists():
        pytest.skip(f"npm has no build of {name} for this machine")
    options = ("--no-dashboard", "--upstream", f"sim={SIMULATOR}", "--name", "run")
    since = datetime.now(UTC)
    done, requests = run(
        agents, tmp_path, sys.executable, "-m", "streamgauge", "run", *options, "--", *command
    )
    assert done.returncode == 0, done.stderr
    stored = tables_of_run(tmp_path / "data" / "streamgauge" / "runs" / "run")
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
        "SELECT operation, transport, client_app, turn, session_id, input_tokens, output_tokens FROM streams "
        "WHERE outcome = 'ok' AND operation NOT IN ('websocket', 'warm_up')"
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
    transports = {row["transport"] for row in calls}
    assert transports == {"websocket" if name == "codex" else "http"}
    if direct:
        without, _ = run(agents, tmp_path, *command, **direct)
        assert (without.stdout, without.returncode) == (done.stdout, done.returncode)


OUTPUTS = f"""outputs() {{ {sys.executable} -c 'import re, urllib.request
print(len(re.findall(rb"first_output_ns.:[0-9]", urllib.request.urlopen("{SIMULATOR}/simulator/ledger").read())))'; }}"""
"""The number of answers with output, as a function of the shell."""


def interrupted(forced: str, answers: int) -> str:
    """A command with answers of this kind, and Ctrl-C when that many have output."""
    provider = (
        '{name="sim",base_url="\'"$OPENAI_BASE_URL"\'",wire_api="responses",supports_websockets=true,env_key="OPENAI_API_KEY",'
        f'http_headers={{"x-simulate"="{forced}"}}}}'
    )
    options = f"-c model_provider=sim -c 'model_providers.sim={provider}'"
    return f"""before=$(outputs)
codex {options} exec --skip-git-repo-check hi &
until [ $(outputs) -ge $((before + {answers})) ]; do sleep 0.1; done
kill -INT $!; wait $!"""


CODEX = 'codex -c openai_base_url="$OPENAI_BASE_URL" exec --skip-git-repo-check'
ON_SOCKETS = "\n".join(
    (
        "set -m",
        OUTPUTS,
        f"{CODEX} hi",
        f"{CODEX} resume --last 'and now'",
        interrupted(r"{\"tool_calls\":1,\"tokens\":0,\"ttft_ms\":200,\"gap_ms\":0}", 3),
        interrupted(r"{\"tokens\":500,\"ttft_ms\":100,\"gap_ms\":100}", 1),
        "true",
    )
)


def run_codex(agents: Path, tmp_path: Path, command: str, **environment: str) -> list[dict[str, Any]]:
    """The rows of `streams`, in order. Those of answers agree with the simulator."""
    options = ("--no-dashboard", "--upstream", f"sim={SIMULATOR}", "--name", "run")
    since = datetime.now(UTC)
    done, requests = run(
        agents, tmp_path, sys.executable, "-m", "streamgauge", "run", *options, "--", "bash", "-c", command, **environment
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    stored = tables_of_run(tmp_path / "data" / "streamgauge" / "runs" / "run")
    streams = measurement_check.streams_since(stored, since)
    measurement_check.report_discrepancies(
        found := measurement_check.check_measurements(requests, streams), write=print
    )
    assert not [one for one in found if one.kind != "unknown"]
    return stored.query("SELECT * FROM streams ORDER BY started_at").to_dicts()


def test_codex_over_websocket_has_turns_tool_calls_and_an_interruption(agents: Path, tmp_path: Path) -> None:
    rows = run_codex(agents, tmp_path, ON_SOCKETS)
    assert {row["transport"] for row in rows} == {"websocket"}
    answers = [row for row in rows if row["operation"] == "chat"]
    sessions = list(dict.fromkeys(row["session_id"] for row in answers))
    turns, tools, aborted = ([row for row in answers if row["session_id"] == one] for one in sessions)
    assert [(row["turn"], row["outcome"]) for row in turns] == [(1, "ok"), (2, "ok")]
    assert all(row["input_tokens"] and row["output_tokens"] for row in turns)
    assert len(tools) > 2
    assert {(row["turn"], row["tool_call_count"]) for row in tools if row["outcome"] == "ok"} == {(1, 1)}
    assert [row["response_index"] for row in tools] == list(range(1, len(tools) + 1))
    assert [(row["outcome"], row["turn"]) for row in aborted] == [("client_abort", 1)]
    assert 0 < aborted[0]["output_event_count"] < 500
    assert {row["outcome"] for row in rows if row["operation"] == "warm_up"} == {"ok"}


def test_codex_falls_back_to_http_where_the_upgrade_is_refused(agents: Path, tmp_path: Path) -> None:
    rows = run_codex(agents, tmp_path, f"{CODEX} hi", SIMULATOR_FLAGS="--no-websockets")
    refused = [row for row in rows if row["method"] == "GET"]
    assert {(row["outcome"], row["error_type"]) for row in refused} == {("refused", "websocket")}
    (answer,) = [row for row in rows if row["method"] == "POST"]
    assert (answer["outcome"], answer["transport"], answer["turn"]) == ("ok", "http", 1)
    assert answer["session_id"] == refused[0]["session_id"]
