"""The MCP tool `context`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.location import locate
from streamgauge.mcp_server import tools as module
from streamgauge.mcp_server.tools import Tools
from tests.analytics.prompts import chat_usage, finished, prompt_of, request
from tests.analytics.stores import new_store


@pytest.fixture
def tools(tmp_path: Path) -> Iterator[Tools]:
    asked = [
        request(n, prompt_of(n, tools=4), usage=chat_usage(4000 + 100 * n, None), conversation={"turns": n})
        for n in (1, 2, 3)
    ]
    with closing(new_store(tmp_path)) as store:
        tables = measure(finished(*asked), prompts=SessionPrompts(), sessions=Sessions())
        store.commit(Commit("", tables=tables))
    with closing(Tools(locate("sqlite", tmp_path))) as made:
        yield made


def test_context_shows_growth_by_turn_and_carried_tools(
    tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tools.context("session-1")
    assert found["summary"] == "0 of 4 tools used; the others are 18 % of each request"
    assert [(row["turn"], row["request"]) for row in found["growth"]] == [(1, 1), (2, 2), (3, 3)]
    assert [sum(row[part] for part in row if part not in ("turn", "request")) for row in found["growth"]] == [
        pytest.approx(4000 + 100 * n, abs=2) for n in (1, 2, 3)
    ]
    assert {(row["name"], row["requests"], row["calls"]) for row in found["tools"]} == {
        ("Tool0", 3, 0), ("mcp__files__t1", 3, 0), ("mcp__files__t2", 3, 0), ("mcp__files__t3", 3, 0),
    }  # fmt: skip
    assert [(row["name"], row["tools"]) for row in found["servers"]] == [("files", 3), ("(none)", 1)]
    assert found["note"] is None
    monkeypatch.setattr(module, "MAX_GROUPS", 2)
    found = tools.context("session-1")
    assert [row["turn"] for row in found["growth"]] == [2, 3]
    assert found["note"] == "1 earlier turns are left out."


def test_session_without_a_known_prompt_is_an_error(tools: Tools) -> None:
    with pytest.raises(
        ValueError, match="cannot show the context of the session 'x': no prompt of it is known"
    ):
        tools.context("x")
