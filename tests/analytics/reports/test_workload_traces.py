"""Traces of requests without text: blocks, sessions and subagents, times, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.measures.sessions import Sessions
from streamgauge.analytics.reports import Query
from streamgauge.analytics.reports.workload_traces import Traced, Tracer
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.keyed_ids import RECORDED_AGENT
from streamgauge.ingest.records import AnyRecord
from tests.analytics.prompts import chat_usage, finished, prompt_of, request
from tests.analytics.stores import new_store
from tests.analytics.stream_records import chunk, finish_chunk

SUBAGENT = {"headers": [(RECORDED_AGENT, "sub-1")]}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(new_store(tmp_path)) as made:
        yield made


def commit(store: Store, *streams: Sequence[AnyRecord]) -> Query:
    """Store requests in one commit. Returns the function that queries."""
    tables = measure(finished(*streams), prompts=SessionPrompts(), sessions=Sessions())
    store.commit(Commit("", tables=tables))
    cursor = store.cursor()
    return lambda sql: cursor.execute(sql).pl()


def agent(first: int, *, turns: int = 3, **more: Any) -> list[list[AnyRecord]]:
    """Requests of an agent, 10 s apart, from the second `first`. Each turn adds 100 tokens to 4,000."""
    return [
        request(
            first + n, prompt_of(n), usage=chat_usage(4000 + 100 * n, None), at_s=first + 10.0 * n, **more
        )
        for n in range(turns)
    ]


def equal_first(one: Sequence[int], other: Sequence[int]) -> int:
    return next(
        (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def test_mooncake_lines_have_times_lengths_and_equal_blocks_for_equal_first_parts(store: Store) -> None:
    lines = [*Tracer(commit(store, *agent(1)), found := Traced(64)).mooncake()]
    assert [line["timestamp"] for line in lines] == [0, 10_000, 20_000]
    assert [line["input_length"] for line in lines] == [4000, 4100, 4200]
    assert [line["output_length"] for line in lines] == [5, 5, 5]
    assert [len(line["hash_ids"]) for line in lines] == [63, 65, 66]  # the last block is not full
    # The first prompt but its last segment: the question of the turn, which the next prompt has at another place.
    shared = [equal_first(a["hash_ids"], b["hash_ids"]) for a, b in pairwise(lines)]
    last = 4000 * 63 / sum(one.size for one in prompt_of(0) if one.kind not in ("model", "settings"))
    assert shared[0] == (4000 - round(last)) // 64
    assert (found.requests, found.without_prompt, found.estimated) == (3, 0, 0)


def test_equal_prompts_have_equal_blocks_also_the_last_one(store: Store) -> None:
    same = [request(n, prompt_of(1), usage=chat_usage(4001, None), session=f"s{n}") for n in (1, 2)]
    longer = request(3, prompt_of(1), usage=chat_usage(4002, None), session="s3")
    one, other, third = Tracer(commit(store, *same, longer), Traced(64)).mooncake()
    assert one["hash_ids"] == other["hash_ids"]
    assert equal_first(one["hash_ids"], third["hash_ids"]) == 62
    assert len(set(one["hash_ids"])) == 63


def test_two_exports_share_no_id(store: Store) -> None:
    query = commit(store, *agent(1))
    ids = [{h for line in Tracer(query, Traced(64)).mooncake() for h in line["hash_ids"]} for _ in range(2)]
    sessions = [{one["id"] for one in Tracer(query, Traced(64)).weka()} for _ in range(2)]
    assert ids[0]
    assert sessions[0]
    assert ids[0].isdisjoint(ids[1])
    assert sessions[0].isdisjoint(sessions[1])
    assert max(ids[0]) < 2**53


def test_mooncake_by_session_has_delays_after_the_request_before(store: Store) -> None:
    alone = request(50, prompt_of(1), session=None, at_s=15)
    query = commit(store, *agent(1), alone)
    first, second, of_nobody, third = Tracer(query, found := Traced(512)).mooncake(by_session=True)
    assert first["session_id"] == second["session_id"] == third["session_id"]
    assert (first["timestamp"], first.get("delay")) == (0, None)
    assert (second["delay"], second.get("timestamp")) == (9_991, None)  # a request takes 9 ms
    assert of_nobody["timestamp"] == 14_000
    assert "session_id" not in of_nobody
    assert found.conversations == 1


def test_weka_conversation_has_its_subagents_and_local_blocks(store: Store) -> None:
    query = commit(
        store, *agent(1), *agent(105, turns=2, **SUBAGENT), *agent(300, turns=1, session="session-2")
    )
    one, other = Tracer(query, found := Traced(64)).weka()
    assert (one["block_size"], one["hash_id_scope"], one["models"]) == (64, "local", ["m"])
    assert [entry["type"] for entry in one["requests"]] == ["s", "s", "s", "subagent"]
    first, second, _, subagent = one["requests"]
    assert (first["t"], second["t"], first["in"], first["out"], first["api_time"]) == (0, 10, 4000, 5, 0.009)
    assert first["hash_ids"] == [*range(1, 63)]  # full blocks only
    assert second["input_types"] == ["text"]
    assert [inner["t"] for inner in subagent["requests"]] == [104, 114]
    assert subagent["requests"][0]["hash_ids"] == first["hash_ids"]
    assert (subagent["duration_ms"], subagent["total_tokens"], subagent["models"]) == (10_009, 8110, ["m"])
    assert other["requests"][0]["hash_ids"] == [*range(1, 63)]
    assert (found.conversations, found.requests) == (2, 6)


def test_subagent_that_begins_before_its_session_is_a_conversation_of_its_own(store: Store) -> None:
    query = commit(store, *agent(100), *agent(5, turns=1, **SUBAGENT))
    found = [*Tracer(query, Traced(64)).weka()]
    assert [[entry["type"] for entry in one["requests"]] for one in found] == [["s"], ["s", "s", "s"]]


def test_unknown_prompts_have_no_blocks_and_unknown_tokens_are_estimated(store: Store) -> None:
    known = [request(n, prompt_of(1), usage=chat_usage(4000, None), session=f"s{n}") for n in (1, 2)]
    silent = request(3, prompt_of(1), session="s3", events=[chunk("a"), finish_chunk()])
    unknown = request(4, None, session="s4", usage=chat_usage(77, None))
    *_, third, fourth = Tracer(commit(store, *known, silent, unknown), found := Traced(64)).mooncake()
    assert third["input_length"] == 4000
    assert (fourth["input_length"], fourth["hash_ids"]) == (77, [])
    assert (found.estimated, found.without_prompt) == (1, 1)


def test_more_input_tokens_than_a_model_reads_are_estimated(store: Store) -> None:
    """Each block of them would have an id."""
    asked = [
        request(n, prompt_of(1), usage=chat_usage(tokens, None)) for n, tokens in ((1, 4000), (2, 2 * 10**9))
    ]
    query = commit(store, *asked)
    assert query("SELECT max(input_tokens) FROM streams").item() == 2 * 10**9
    lines = list(Tracer(query, found := Traced(64)).mooncake())
    assert [one["input_length"] for one in lines] == [4000, 4000]
    assert found.estimated == 1


def test_store_without_requests_has_empty_traces(store: Store) -> None:
    tracer = Tracer(commit(store), Traced(64))
    assert [*tracer.mooncake(), *tracer.mooncake(by_session=True), *tracer.weka()] == []


def test_segments_that_are_missing_or_kept_by_the_server_are_shared_with_nobody(store: Store) -> None:
    cut = [
        request(n, prompt_of(1)[:40], usage=chat_usage(8000, None), left_out=9000, session=f"c{n}")
        for n in (1, 2)
    ]
    chained = {"previous_response_id": "r0", "has_history": False}
    kept = [
        request(n, prompt_of(1), session=f"k{n}", usage=chat_usage(9000, None), conversation=chained)
        for n in (3, 4)
    ]
    one, other, third, fourth = Tracer(commit(store, *cut, *kept), Traced(64)).mooncake()
    assert 0 < equal_first(one["hash_ids"], other["hash_ids"]) < 8000 // 64
    assert equal_first(third["hash_ids"], fourth["hash_ids"]) == 0


def test_pages_of_requests_give_the_same_trace(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    query = commit(store, *agent(1), *agent(200, session="session-2"))
    whole = [*Tracer(query, Traced(64), _key=b"k" * 32).mooncake()]
    weka = [*Tracer(query, Traced(64), _key=b"k" * 32).weka()]
    monkeypatch.setattr("streamgauge.analytics.reports.workload_traces._PAGE", 2)
    assert [*Tracer(query, Traced(64), _key=b"k" * 32).mooncake()] == whole
    assert [*Tracer(query, Traced(64), _key=b"k" * 32).weka()] == weka


def test_no_name_of_the_store_is_in_a_trace(store: Store) -> None:
    tracer = Tracer(commit(store, *agent(1), *agent(105, turns=1, **SUBAGENT)), Traced(64))
    text = json.dumps([*tracer.mooncake(by_session=True), *tracer.weka()])
    assert not any(word in text for word in ("session-1", "sub-1", "files", "Tool", "question"))
