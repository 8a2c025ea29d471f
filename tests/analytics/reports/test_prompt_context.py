"""What fills the prompts of a session, and the tools that it carries: views `context_parts`, `context_tools`, and their reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pytest

from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.reports import Query, prompt_context
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.records import AnyRecord, Segment
from tests.analytics.prompts import chat_usage, finished, request, segment
from tests.analytics.stores import new_store
from tests.analytics.stream_records import START_NS, chunk, finish_chunk

ALL = Selection(
    since=datetime.fromtimestamp(START_NS / 1e9, UTC),
    until=datetime.fromtimestamp(START_NS / 1e9, UTC) + timedelta(days=1),
)
HEAD = [
    segment("model", "m" * 500),
    segment("tool", "r" * 200, name="Read"),
    segment("tool", "w" * 300, name="Write"),
    segment("tool", "l" * 500, name="mcp__db__list"),
    segment("system", "s" * 1000),
    segment("text", "q" * 2000, 0, role="user"),
]
CALL = segment("tool_call", "c" * 100, 1, name="Read", role="assistant")
RESULT = segment("tool_result", "f" * 1900, 2, role="user")
IMAGE = Segment("image", None, 2, 100_000, b"picture", "user")


def at(message: int, *segments: Segment) -> list[Segment]:
    return [msgspec.structs.replace(one, message=message) for one in segments]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(new_store(tmp_path)) as made:
        yield made


def commit(store: Store, *streams: Sequence[AnyRecord]) -> Query:
    store.commit(
        Commit("", tables=measure(finished(*streams), prompts=SessionPrompts(), sessions=Sessions()))
    )
    cursor = store.cursor()
    return lambda sql: cursor.execute(sql).pl()


def session(store: Store) -> Query:
    """Two requests of a session that calls one of three tools, and an image in another one."""
    return commit(
        store,
        request(1, HEAD, usage=chat_usage(1000, None)),
        request(2, [*HEAD, CALL, RESULT], usage=chat_usage(1500, None)),
        request(3, [*HEAD, IMAGE], usage=chat_usage(7000, None), session="session-2"),
    )


def test_parts_of_a_prompt_add_up_to_its_reported_tokens(store: Store) -> None:
    found = (
        prompt_context.parts(session(store), "session-1").select("request", "part", "bytes", "tokens").rows()
    )
    assert found == [
        (1, "history", 2000, 500), (1, "system", 1000, 250), (1, "tools", 1000, 250),
        (2, "history", 2100, 525), (2, "system", 1000, 250), (2, "tool results", 1900, 475), (2, "tools", 1000, 250),
    ]  # fmt: skip


def test_image_weighs_less_than_text(store: Store) -> None:
    found = dict(prompt_context.parts(session(store), "session-2").select("part", "tokens").rows())
    assert found == {"history": 2000, "system": 1000, "tools": 1000, "images": 3000}


def test_tokens_that_were_not_reported_follow_from_the_model(store: Store) -> None:
    silent = request(2, HEAD, events=[chunk("a"), finish_chunk()], session="s2")
    query = commit(store, request(1, HEAD, usage=chat_usage(2000, None)), silent)
    assert prompt_context.parts(query, "s2")["tokens"].sum() == 2000


def test_tools_have_their_size_and_calls(store: Store) -> None:
    query = session(store)
    found = prompt_context.tools(query, "session-1").select(
        "name", "mcp_server", "requests", "tokens_per_request", "share", "calls"
    )
    assert found.rows() == [
        ("mcp__db__list", "db", 2, 125.0, pytest.approx(0.1), 0),
        ("Write", None, 2, 75.0, pytest.approx(0.06), 0),
        ("Read", None, 2, 50.0, pytest.approx(0.04), 1),
    ]
    servers = prompt_context.tools(query, "session-1", prompt_context.SERVER).select(
        "name", "tools", "tokens", "calls"
    )
    assert servers.rows() == [("(none)", 2, 250, 1), ("db", 1, 250, 0)]


def test_a_call_counts_once_however_often_it_is_in_the_history(store: Store) -> None:
    longer = [*HEAD, CALL, RESULT, segment("text", "next", 3, role="user")]
    query = commit(
        store, *(request(n, prompt) for n, prompt in enumerate(([*HEAD, CALL], longer, longer[:-1]), 1))
    )
    assert prompt_context.tools(query, "session-1")["calls"].to_list() == [0, 0, 1]


def test_equal_calls_of_one_prompt_are_several_and_a_call_that_moves_and_changes_is_one(store: Store) -> None:
    """Gemini CLI sends calls without ids, inserts messages, and removes the signatures of earlier calls."""
    unsigned = segment("tool_call", "c" * 90, 2, name="Read", role="assistant")
    after = [*HEAD, segment("text", "note", 1), unsigned, *at(3, RESULT)]
    asked = ([*HEAD, CALL, RESULT], after, [*after, *at(4, CALL), *at(5, RESULT)])
    query = commit(store, *(request(n, prompt) for n, prompt in enumerate(asked, 1)))
    assert prompt_context.tools(query, "session-1")["calls"].to_list() == [0, 0, 2]


def test_calls_of_a_request_that_is_repeated_because_it_failed_count_once(store: Store) -> None:
    longer = [*HEAD, CALL, RESULT]
    failed = request(2, longer, events=[b'data: {"error": {"message": "overloaded"}}\n\n'])
    query = commit(store, request(1, HEAD), failed, request(3, longer))
    assert prompt_context.tools(query, "session-1")["calls"].to_list() == [0, 0, 1]


def test_carrying_tools_costs_what_the_input_costs(store: Store) -> None:
    query = session(store)
    store.cursor().execute(
        "INSERT INTO prices BY NAME SELECT 0 AS priority, '*' AS model, 4 AS input, 4 AS cached_input, 'USD' AS currency, "
        "8 AS output, 4 AS cache_write_5m, 4 AS cache_write_1h, 4 AS input_audio, 4 AS input_image, 4 AS cached_audio, 8 AS reasoning, "
        "8 AS output_audio, 8 AS output_image, 0 AS web_search"
    )
    assert prompt_context.tools(query, "session-1")["cost"].to_list() == [
        "0.0010 USD",
        "0.0006 USD",
        "0.0004 USD",
    ]


def test_summary_names_used_tools_and_the_share_of_the_others(store: Store) -> None:
    query = session(store)
    found = prompt_context.carried(query, "session-1")
    assert found is not None
    assert found == {"tools": 3, "used": 1, "unused_share": pytest.approx(0.16)}
    assert prompt_context.carried_text(found) == "1 of 3 tools used; the others are 16 % of each request"
    of_all = prompt_context.carried(query, ALL)
    assert of_all is not None
    assert of_all["unused_share"] == pytest.approx((400 + 800) / 9500)
    assert prompt_context.carried(query, "nobody") is None
