"""The telemetry of real Claude Code, Codex and Gemini CLI through `run` and `up`: each tool is a script that logs its own clock.

The provider (`tests/agents/scripted_provider.py`) calls the scripts. Agents and provider run in a network namespace without a way out.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports import spend, turn_timeline
from streamgauge.analytics.reports.sessions import TOOL
from tests.agents.scripted_provider import STEM, TASK, planted
from tests.e2e.running import ROOT, tables_of_run
from tests.e2e.test_planted import Searched, search_folder, search_tables
from tests.e2e.test_scripted_agents import CODEX, ENVIRONMENT, INPUT_PRICE, OUTPUT_PRICE, PROVIDER
from tests.npm import agents as installed_agents

pytestmark = pytest.mark.slow

IN_NAMESPACE = f"""
ip link set lo up || exit 1
{sys.executable} {ROOT}/tests/agents/scripted_provider.py 4299 "$LOG" notes.txt \\
    "$T first 0 0.4 {planted("argument")}" "$T second 3 0.3" "$T third 0 0.2" &
until (exec 3<>/dev/tcp/127.0.0.1/4299) 2>/dev/null; do sleep 0.1; done
if [ "$THROUGH" = up ]; then
    {sys.executable} -m streamgauge up --no-dashboard --data "$DATA" --upstream sim={PROVIDER} --price-file prices.csv \\
        --listen 127.0.0.1:4297 --admin 127.0.0.1:4298 --metrics= --otlp-listen 127.0.0.1:4296 >up.log 2>&1 &
    until grep -q "is ready" up.log; do sleep 0.2; done
fi
"$@" </dev/null
code=$?
[ "$THROUGH" = up ] && kill -INT %2 && wait %2
kill %1
exit $code
"""
TOOL_SCRIPT = """#!/bin/bash
began=$(date +%s%N)
sleep "$3"
echo "{result}"
echo "$1 $began $(date +%s%N) $2" >>{log}
exit "$2"
"""
AGENTS: dict[str, tuple[str, ...]] = {
    "claude": ("claude", "--dangerously-skip-permissions", "--output-format", "json", "-p", TASK),
    "codex": CODEX,
    "gemini": ("gemini", "--skip-trust", "--yolo", "-m", "gemini-2.5-pro", "-p", TASK),
}
SHELL_TOOLS = {"claude": "Bash", "codex": "exec_command", "gemini": "run_shell_command"}
"""Codex runs its shell inside the tool `exec`."""
RUNS = 4
"""Three of the agent, and one of its subagent."""


@dataclass(frozen=True)
class Ran:
    name: str
    data: Path
    stdout: str
    stderr: str
    stored: QueryPool
    scripts: list[tuple[str, int, int, int]]
    """Name, start and end by their clock in ns, and exit code of each run of a script, by start."""

    def events(self, where: str) -> list[dict[str, Any]]:
        return self.stored.query(
            f"SELECT *, epoch_us(occurred_at) * 1000 AS ended_ns FROM turn_events WHERE {where} ORDER BY occurred_at"
        ).to_dicts()


@pytest.fixture(
    scope="module", params=[(name, through) for name in AGENTS for through in ("run", "up")], ids="-".join
)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    name, through = request.param
    commands, home = installed_agents(), tmp_path_factory.mktemp(name)
    if not (commands / name).exists():
        pytest.skip(f"npm has no build of {name} for this machine")
    data, tool = home / "data", home / "tool.sh"
    tool.write_text(TOOL_SCRIPT.format(result=planted("result"), log=home / "tools.log"))
    tool.chmod(0o755)
    (home / "prices.csv").write_text(
        f"model,input,cached_input,output,currency\n*,{INPUT_PRICE},1,{OUTPUT_PRICE},USD\n"
    )
    options = ["--no-dashboard", "--upstream", f"sim={PROVIDER}", "--price-file", "prices.csv"]
    options = ["--data", str(data), *(["--join"] if through == "up" else options)]
    own = {
        "HOME": str(home), "DATA": str(data), "LOG": str(home / "provider.jsonl"), "T": str(tool), "THROUGH": through,
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
    }  # fmt: skip
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-mc", IN_NAMESPACE, "bash", sys.executable, "-m", "streamgauge", "run", *options, "--", *AGENTS[name]],
        env={**os.environ, **ENVIRONMENT, **own}, cwd=home, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in (home / "tools.log").read_text().splitlines()]
    scripts = sorted(((n, int(a), int(b), int(c)) for n, a, b, c in lines), key=lambda one: one[1])
    assert sorted(one[0] for one in scripts) == ["first", "first", "second", "third"]
    return Ran(name, data, done.stdout, done.stderr, tables_of_run(data), scripts)


def test_each_run_of_a_tool_has_its_event_with_time_and_success(ran: Ran) -> None:
    events = ran.events(f"kind = 'tool_result' AND tool = '{SHELL_TOOLS[ran.name]}'")
    assert len(events) == RUNS, ran.stderr
    late_ms = []
    for event, (_, began_ns, ended_ns, code) in zip(events, ran.scripts, strict=True):
        before_ns = began_ns - (event["ended_ns"] - event["duration_ns"])
        after_ns = event["ended_ns"] - ended_ns
        # Agents round to milliseconds, and start a shell before the script: on a busy machine, that takes long.
        assert -3e6 <= before_ns < 2e9
        assert -3e6 <= after_ns < 2e9
        late_ms.append(after_ns / 1e6)
        # To Codex and Gemini CLI, a command that exits with another code than 0 is a success: the model gets the code.
        assert event["success"] == (code == 0 or ran.name != "claude")
    assert min(late_ms) <= 50
    print(
        f"{ran.name}: events end {statistics.median(late_ms):.0f} ms after the scripts (p50), {max(late_ms):.0f} ms at most"
    )


def test_events_belong_to_the_turn_and_to_the_request_that_called_the_tool(ran: Ran) -> None:
    streams = {row["stream_id"]: row for row in ran.stored.query("FROM streams").to_dicts()}
    results = ran.events(f"kind = 'tool_result' AND tool = '{SHELL_TOOLS[ran.name]}'")
    assert {event["turn"] for event in results} == {1}
    assert len({event["session_id"] for event in results}) == 2
    for event in results:
        of = streams[event["stream_id"]]
        assert (of["session_id"], of["tool_call_count"]) == (event["session_id"], 1)
    assert len({event["stream_id"] for event in results}) == RUNS
    requests = ran.events("kind = 'api_request' AND turn IS NOT NULL")
    assert len(requests) == len({event["stream_id"] for event in requests}) > RUNS
    for event in requests:
        of = streams[event["stream_id"]]
        assert (event["input_tokens"], event["output_tokens"]) == (of["input_tokens"], of["output_tokens"])


def test_waterfall_of_the_turn_has_the_times_of_the_tools(ran: Ran) -> None:
    [session] = ran.stored.query("SELECT session_id FROM sessions WHERE parent_session_id IS NULL")[
        "session_id"
    ]
    found = turn_timeline.one(ran.stored.query, session, 1)
    assert found is not None
    tools = [one for one in found.activities if one.part == TOOL and one.source == "agent"]
    for _, began_ns, ended_ns, _ in ran.scripts:
        assert any(one.start_ns <= began_ns + 3e6 and one.end_ns >= ended_ns - 3e6 for one in tools)
    taken = turn_timeline.parts_ns(found)
    assert taken[TOOL] > sum(ended - began for _, began, ended, _ in ran.scripts) * 0.9
    assert sum(taken.values()) == found.length_ns


def test_cost_as_the_agent_says_it_is_beside_ours(ran: Ran) -> None:
    ours = ran.stored.query("SELECT sum(total) FROM spend").item()
    tokens = ran.stored.query(
        "SELECT sum(input_tokens), sum(output_tokens) FROM streams WHERE operation <> 'warm_up'"
    ).row(0)
    assert ours == pytest.approx((INPUT_PRICE * tokens[0] + OUTPUT_PRICE * tokens[1]) / 1e6)
    said = ran.stored.query("SELECT sum(cost) FROM agent_events").item()
    costs = spend.of_sessions(ran.stored.query, ran.stored.query("FROM sessions"))
    if ran.name != "claude":
        assert said is None
        assert costs["agent_cost"].to_list() == [None, None]
        return
    assert said == pytest.approx(json.loads(ran.stdout)["total_cost_usd"])
    assert all(cost.endswith(" USD") for name in ("cost", "agent_cost") for cost in costs[name])
    assert f"{said:.4f} USD" in ran.stderr


def test_no_word_of_a_prompt_or_of_a_tool_is_stored(ran: Ran) -> None:
    assert STEM in (ran.data.parent / "provider.jsonl").read_text()
    searched = Searched([STEM.encode()])
    search_tables(searched, ran.stored)
    search_folder(searched, ran.data, "gemini-home")
    assert searched.found == []
    assert {"table main.agent_events", "table main.turn_events"} <= searched.sources.keys()
