"""Real coding agents that call tools and a subagent: the rows equal the log of their provider, which has its own clock.

The provider (`tests/agents/scripted_provider.py`) shares no code with Streamgauge. Agents and provider run in a network namespace
without a way out.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.decoding.conversation import ConversationReader
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.reports import prompt_context, turn_timeline
from streamgauge.analytics.reports.sessions import TOOL
from streamgauge.analytics.reports.stored_prompts import prompts
from streamgauge.analytics.schema.outcomes import IS_ERROR, IS_REQUEST
from streamgauge.analytics.storage.location import SQLITE, locate
from streamgauge.commands.trace_export import export_trace
from streamgauge.ingest.redaction.record_redactor import Redactor
from tests.agents.received_prompts import message_count, received
from tests.agents.scripted_provider import PLACES, STEM, SUBAGENTS, TASK, WAITERS, planted
from tests.e2e.running import ROOT, tables_of_run
from tests.e2e.test_planted import Searched, records_of, search_folder, search_tables, segments
from tests.npm import agents as installed_agents

pytestmark = pytest.mark.slow

PROVIDER = "http://127.0.0.1:4299"
IN_NAMESPACE = f"""
ip link set lo up || exit 1
{sys.executable} {ROOT}/tests/agents/scripted_provider.py 4299 "$LOG" "$PWD/notes.txt" &
until (exec 3<>/dev/tcp/127.0.0.1/4299) 2>/dev/null; do sleep 0.1; done
"$@" </dev/null
code=$?
kill %1
exit $code
"""
ENVIRONMENT = {
    "OPENAI_API_KEY": "sk-1",
    "ANTHROPIC_API_KEY": "sk-ant-1",
    "GEMINI_API_KEY": "k",
    "CI": "1",
    "IS_SANDBOX": "1",
    "PI_OFFLINE": "1",
}
CODEX = ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", TASK)
OVER_HTTP = 'model_providers.sim={name="sim",base_url="\'"$OPENAI_BASE_URL"\'",wire_api="responses",env_key="OPENAI_API_KEY"}'
AGENTS: dict[str, tuple[str, ...]] = {
    "claude": ("claude", "--dangerously-skip-permissions", "-p", TASK),
    "codex": CODEX,
    "codex-http": ("bash", "-c", f"codex -c model_provider=sim -c '{OVER_HTTP}' {shlex.join(CODEX[1:])}"),
    "gemini": ("gemini", "--skip-trust", "--yolo", "-m", "gemini-2.5-pro", "-p", TASK),
    "opencode": ("opencode", "run", TASK),
    "pi-anthropic": ("pi", "--model", "anthropic/claude-opus-4-7", "-p", TASK),
    "pi-openai": ("pi", "--model", "openai/gpt-5", "-p", TASK),
    "pi-google": ("pi", "--model", "google/gemini-2.5-pro", "-p", TASK),
    "qwen": ("qwen", "--yolo", "-p", TASK),
}
INSTRUCTIONS = ("AGENTS.md", "CLAUDE.md", "GEMINI.md", "QWEN.md")
SUBAGENT_FOLDERS = (".claude/agents", ".config/opencode/agent", ".gemini/agents", ".qwen/agents")
"""Agents write the descriptions of these subagents into the definition of a tool, or into the system text."""
WITH_SUBAGENT = ("claude", "codex", "codex-http", "gemini", "opencode")
ELSEWHERE = {
    "codex": ("definition", "argument"),
    **dict.fromkeys(("codex-http", "pi-anthropic", "pi-openai", "pi-google"), ("definition",)),
}
"""Places of planted words that are in no request: Codex and pi have no such subagents, and a WebSocket's provider keeps its own answers."""
UNNAMED = ("pi-anthropic", "pi-google")
"""They name neither a session nor themselves, so their requests have no session."""
NESTED = ("exec_command",)
"""Tools that a tool of Codex runs: in its telemetry, and in no answer of the provider."""
INPUT_PRICE, OUTPUT_PRICE = 2.0, 30.0
LATE_S = 0.4
"""How much later than the provider the tap may see the end of an answer, on a busy machine."""


@dataclass(frozen=True)
class Ran:
    """One run of an agent."""

    name: str
    data: Path
    stderr: str
    log: Sequence[dict[str, Any]]
    """Of the provider."""
    stored: QueryPool
    rows: dict[str, dict[str, Any]]
    """Those of `streams`, by the provider's id of the request."""

    def requests(self, conversation: str | None = None) -> list[dict[str, Any]]:
        """Those in the log, in order."""
        found = [entry for entry in self.log if entry["is_request"]]
        return [entry for entry in found if conversation in (None, entry["conversation"])]

    def rows_of(self, entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        return [self.rows[entry["request_id"]] for entry in entries]

    def sessions_of(self, conversation: str, column: str = "session_id") -> set[str | None]:
        return {row[column] for row in self.rows_of(self.requests(conversation))}


@pytest.fixture(scope="module", params=AGENTS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    name = request.param
    commands, home = installed_agents(), tmp_path_factory.mktemp(name)
    if not (commands / name.partition("-")[0]).exists():
        pytest.skip(f"npm has no build of {name} for this machine")
    (home / "notes.txt").write_text(f"a note {planted('result')}\n")
    for file in INSTRUCTIONS:
        (home / file).write_text(planted("instructions"))
    for folder in SUBAGENT_FOLDERS:
        (home / folder).mkdir(parents=True)
        (home / folder / "planted.md").write_text(
            f"---\nname: planted\ndescription: {planted('definition')}\n---\nNobody calls it.\n"
        )
    (home / "prices.csv").write_text(
        f"model,input,cached_input,output,currency\n*,{INPUT_PRICE},1,{OUTPUT_PRICE},USD\n"
    )
    options = (
        "--no-dashboard",
        "--upstream",
        f"sim={PROVIDER}",
        "--name",
        "run",
        "--price-file",
        "prices.csv",
    )
    paths = {
        "HOME": str(home),
        "XDG_DATA_HOME": str(home / "data"),
        "LOG": str(home / "provider.jsonl"),
        "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        ["unshare", "-rn", "bash", "-mc", IN_NAMESPACE, "bash", sys.executable, "-m", "streamgauge", "run", *options, "--", *AGENTS[name]],
        env={**os.environ, **ENVIRONMENT, **paths}, cwd=home, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    log = [json.loads(line) for line in (home / "provider.jsonl").read_text().splitlines()]
    log.sort(key=lambda entry: int(entry["arrived_ns"]))
    data = home / "data" / "streamgauge" / "runs" / "run"
    stored = tables_of_run(data)
    found = stored.query(f"""
        SELECT *, {IS_REQUEST} AS is_request, {IS_ERROR} AS is_error FROM streams
        LEFT JOIN (SELECT stream_id, total AS cost FROM spend) USING (stream_id) ORDER BY started_at""").to_dicts()
    # The provider's ids of responses end with that of the request. An answer on a WebSocket has no other.
    ids = [
        str(row["response_id"] or row["request_id"]).rpartition("_")[2].rpartition("-")[2] for row in found
    ]
    assert sorted(ids) == sorted(entry["request_id"] for entry in log)
    return Ran(name, data, done.stderr, log, stored, dict(zip(ids, found, strict=True)))


def test_requests_and_failures_are_those_of_the_provider(ran: Ran) -> None:
    requests = ran.requests()
    assert {id for id, row in ran.rows.items() if row["is_request"]} == {e["request_id"] for e in requests}
    failed = [entry for entry in requests if entry["status"] >= 400]
    assert [row for row in ran.rows.values() if row["is_request"] and row["is_error"]] == ran.rows_of(failed)
    if "pending" not in ran.stderr:
        assert f"{len(requests)}, {len(failed)} failed" in ran.stderr


def test_tokens_times_and_cost_are_those_of_the_provider(ran: Ran) -> None:
    for entry, row in zip(ran.requests(), ran.rows_of(ran.requests()), strict=True):
        assert (row["input_tokens"], row["output_tokens"]) == (entry["input_tokens"], entry["output_tokens"])
        assert (row["response_model"], row["token_source"]) == (entry["model"], "usage")
        cost = (INPUT_PRICE * entry["input_tokens"] + OUTPUT_PRICE * entry["output_tokens"]) / 1e6
        assert row["cost"] == pytest.approx(cost)
        # The tap sees the request before the provider, and the token after it.
        assert 0 <= row["ttft_ns"] - (entry["first_token_ns"] - entry["arrived_ns"]) < LATE_S * 1e9


def test_turns_are_those_of_the_provider(ran: Ran) -> None:
    for entry, row in zip(ran.requests(), ran.rows_of(ran.requests()), strict=True):
        assert row["turn"] == (None if entry["conversation"] == "side" else entry["turn"])


def test_subagent_has_a_session_of_its_own_with_its_parent(ran: Ran) -> None:
    if ran.name in UNNAMED:
        assert ran.sessions_of("main") == {None}
        return
    [session] = ran.sessions_of("main")
    assert session is not None
    assert ran.sessions_of("main", "parent_session_id") == {None}
    assert ran.sessions_of("side") <= {None, session}
    found = ran.stored.query("SELECT session_id, parent_session_id FROM sessions").rows()
    if not ran.requests("subagent"):
        assert found == [(session, None)]
        return
    [child] = ran.sessions_of("subagent")
    assert ran.sessions_of("subagent", "parent_session_id") == {session}
    assert sorted(found) == sorted([(session, None), (child, session)])


def test_names_and_times_of_tools_are_those_of_the_provider(ran: Ran) -> None:
    """A tool runs between the end of the answer that calls it and the next request of the conversation."""
    if ran.name in UNNAMED:
        pytest.skip("a turn belongs to a session")
    for conversation in ("main", "subagent"):
        entries = ran.requests(conversation)
        calls = [
            (one["tool"], after["arrived_ns"] - one["ended_ns"])
            for one, after in itertools.pairwise(entries)
            if one["tool"] and one["tool"] not in (*SUBAGENTS, *WAITERS)
        ]
        if not entries:
            continue
        [session] = ran.sessions_of(conversation)
        found = turn_timeline.one(ran.stored.query, str(session), entries[0]["turn"])
        assert found is not None
        pauses = [
            one
            for one in found.activities
            if one.part == TOOL
            and one.session_id == session
            and one.name not in (*SUBAGENTS, *WAITERS, *NESTED)
        ]
        assert [one.name for one in pauses] == [name for name, _ in calls]
        for pause, (_, length_ns) in zip(pauses, calls, strict=True):
            # The tap sees the end of an answer after the provider, and the next request before it.
            assert 0 <= length_ns - (pause.end_ns - pause.start_ns) < LATE_S * 1e9


def test_segments_are_those_of_the_bodies_that_the_provider_received(ran: Ran) -> None:
    """Tools, system text, messages, calls and results, by name and bytes; in `prompts`, `prompt_segments` and `prompt_tools`."""
    entries = ran.requests()
    assert len({entry["tool"] for entry in entries} - {None}) >= 2
    assert ran.requests("subagent") or ran.name not in WITH_SUBAGENT
    log = {entry["request_id"]: entry for entry in ran.log}
    stored = {row["stream_id"]: row for row in ran.stored.query("FROM prompt_segments").to_dicts()}
    for entry, row in zip(entries, ran.rows_of(entries), strict=True):
        stream_id, expected = row["stream_id"], received(entry, log)
        [segments] = prompts(ran.stored.query, [str(stream_id)]).values()
        assert [
            (one.kind, one.name, one.message, one.size)
            for one in segments
            if one.kind not in ("model", "settings")
        ] == expected
        sizes, of_kind = stored[stream_id], Counter[str]()
        for part in expected:
            of_kind[part.kind] += part.size
        for kind in ("tool", "system", "text", "tool_call", "tool_result", "other"):
            assert sizes["tools_bytes" if kind == "tool" else f"{kind}_bytes"] == of_kind[kind], kind
        assert sizes["message_count"] == message_count(expected)
        assert (sizes["left_out"], sizes["incomplete"]) == (0, False)
        tools = ran.stored.query(f"""
            SELECT DISTINCT position, name, size FROM prompt_tools WHERE tool_set = {sizes["tool_set"] or "NULL"}
            ORDER BY position""").rows()
        assert [(name, size) for _, name, size in tools] == [
            (part.name, part.size) for part in expected if (part.kind, part.message) == ("tool", -1)
        ]


def test_carried_tools_are_those_of_the_bodies_that_the_provider_received(ran: Ran) -> None:
    """Those of each session, as the page Sessions shows them, and the line of the summary."""
    if ran.name in UNNAMED:
        pytest.skip("tools are those of sessions")
    log = {entry["request_id"]: entry for entry in ran.log}
    names, used = set[str | None](), set[str | None]()
    prompts_of = {c: [received(one, log) for one in ran.requests(c)] for c in ("main", "subagent")}
    for conversation, prompts_of_it in prompts_of.items():
        calls = Counter(part.name for part in (prompts_of_it or [[]])[-1] if part.kind == "tool_call")
        tools = [
            part for parts in prompts_of_it for part in parts if (part.kind, part.message) == ("tool", -1)
        ]
        requests, sizes = Counter(part.name for part in tools), Counter[str | None]()
        for part in tools:
            sizes[part.name] += part.size
        names |= requests.keys()
        used |= requests.keys() & calls.keys()
        if not prompts_of_it:
            continue
        [session] = ran.sessions_of(conversation)
        expected = {name: (requests[name], calls[name]) for name in requests}
        found = prompt_context.tools(ran.stored.query, str(session)).to_dicts()
        assert {row["name"]: (row["requests"], row["calls"]) for row in found} == expected
        stored = ran.stored.query(
            f"SELECT name, bytes FROM context_tools WHERE session_id = '{session}'"
        ).rows()
        assert dict(stored) == sizes
    line = re.search(r"(\d+) of (\d+) tools used; the others are (\d+) % of each request", ran.stderr)
    if not names:
        assert line is None
    elif "pending" not in ran.stderr:
        assert line is not None
        assert (int(line[1]), int(line[2])) == (len(used), len(names))
        tokens = unused = 0.0
        for entry in [*ran.requests("main"), *ran.requests("subagent")]:
            parts = received(entry, log)
            tokens += entry["input_tokens"]
            without_use = sum(part.size for part in parts if part.kind == "tool" and part.name not in used)
            unused += entry["input_tokens"] * without_use / sum(part.size for part in parts)
        assert int(line[3]) == pytest.approx(100 * unused / tokens, abs=0.6)


def test_no_word_of_a_prompt_is_kept(ran: Ran, tmp_path: Path) -> None:
    """In no table, file, log line, span, trace or redacted record."""
    arrived = " ".join(entry["body"] for entry in ran.log)
    words = [
        word
        for place in PLACES
        if place not in ELSEWHERE.get(ran.name, ())
        for word in planted(place).split()
    ]
    assert len(words) == 200 - 40 * len(ELSEWHERE.get(ran.name, ()))
    assert [word for word in words if word not in arrived] == []
    searched = Searched([STEM.encode()])
    search_tables(searched, ran.stored)
    search_folder(searched, ran.data, "gemini-home")  # the agent's own files
    key = (ran.data / "client.key").read_bytes()
    redactor = Redactor(conversation=ConversationReader(key, ()), key=key)
    raw = [record for file in segments(ran.data) for record in records_of(file)]
    assert STEM in repr(raw)
    searched.search("redacted records", repr(redactor.redact(raw)))
    for form in ("mooncake", "weka"):
        to = tmp_path / form
        export_trace(
            locate(SQLITE, ran.data), form, to, since=None, until=None, block_size=None, by_session=False
        )
        for file in [to, *to.rglob("*")]:
            if file.is_file():
                searched.search(f"trace {form}", file.read_bytes())
    assert searched.found == []
    traces = {"trace mooncake"} if ran.name in UNNAMED else {"trace mooncake", "trace weka"}
    assert {
        "table main.prompt_segments",
        "table main.spans",
        "file run.log",
        *traces,
    } <= searched.sources.keys()
