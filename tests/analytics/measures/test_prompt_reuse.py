"""What a prompt cache could have of a prompt, what it had, and why it did not have the rest: view `prompt_reuse`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.reports import prompt_reuse
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.records import AnyRecord, ResponseHeaders, Segment
from tests.analytics.prompts import chat_usage, finished, marked, prompt_of, request
from tests.analytics.stores import new_store
from tests.analytics.stream_records import START_NS, head

LOST = ("expired", "short", "instance", "changed", "other")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(new_store(tmp_path)) as made:
        yield made


def sent(
    number: int,
    segments: Sequence[Segment],
    tokens: int,
    cached: int | None,
    *,
    at_s: float,
    worker: str | None = None,
    **more: Any,
) -> list[AnyRecord]:
    response = head()
    if worker is not None:
        response = ResponseHeaders(200, [*response.headers, ("x-worker-id", worker)], 50)
    usage = chat_usage(tokens, cached)
    return request(
        number,
        segments,
        usage=usage,
        at_s=at_s,
        response=response,
        **{"server_address": "api.openai.com", **more},
    )


def reuse_of(
    store: Store, *streams: Sequence[AnyRecord], known: SessionPrompts | None = None
) -> dict[str, Any]:
    """The row of `prompt_reuse` of the last request."""
    known = known or SessionPrompts()
    for one in streams:
        store.commit(Commit("", tables=measure(finished(one), prompts=known)))
    with closing(store.cursor()) as cursor:
        return cursor.execute("FROM prompt_reuse ORDER BY started_at DESC LIMIT 1").pl().to_dicts()[0]


def losses(row: dict[str, Any]) -> dict[str, int]:
    return {name: row[f"lost_{name}_tokens"] for name in LOST if row[f"lost_{name}_tokens"]}


FIRST = sent(1, prompt_of(1)[:-1], 4000, 0, at_s=0)
LONGER = prompt_of(2)


def test_first_request_has_nothing_available(store: Store) -> None:
    row = reuse_of(store, FIRST)
    assert (row["provider"], row["available_tokens"], row["delivered_tokens"], losses(row)) == (
        "openai",
        0,
        0,
        {},
    )


def test_continued_prompt_has_the_whole_earlier_one_available(store: Store) -> None:
    row = reuse_of(store, FIRST, sent(2, LONGER, 4400, 3968, at_s=30))
    assert (row["seen_tokens"], row["available_tokens"], row["delivered_tokens"]) == (4000, 4000, 3968)
    assert losses(row) == {"other": 32}


def test_prompt_of_another_session_with_the_same_key_is_available(store: Store) -> None:
    row = reuse_of(store, FIRST, sent(2, LONGER, 4400, 0, at_s=30, session="session-2"))
    assert losses(row) == {"other": 4000}


def test_prompt_that_expired_is_lost(store: Store) -> None:
    row = reuse_of(store, FIRST, sent(2, LONGER, 4400, 0, at_s=601))
    assert (row["seen_tokens"], row["available_tokens"], losses(row)) == (4000, 0, {"expired": 4000})


def test_prompt_below_the_least_length_is_lost(store: Store) -> None:
    row = reuse_of(store, sent(1, prompt_of(1)[:-1], 900, 0, at_s=0), sent(2, LONGER, 1200, 0, at_s=30))
    assert (row["seen_tokens"], row["available_tokens"], losses(row)) == (900, 0, {"short": 900})


def test_prompt_that_another_instance_has_read_is_lost_to_a_router(store: Store) -> None:
    first = sent(1, prompt_of(1)[:-1], 4000, 0, at_s=0, worker="a")
    row = reuse_of(store, first, sent(2, LONGER, 4400, 0, at_s=30, worker="b"))
    assert (row["server_instance"], row["available_tokens"], losses(row)) == ("b", 4000, {"instance": 4000})
    row = reuse_of(store, first, sent(3, LONGER, 4400, 0, at_s=60, worker="a"))
    assert losses(row) == {"other": 4000}


def test_part_behind_a_change_is_lost(store: Store) -> None:
    changed = [*LONGER]
    at = next(n for n, one in enumerate(changed) if one.kind == "system")
    changed[at] = Segment("system", None, -1, changed[at].size, b"other---")
    row = reuse_of(store, FIRST, sent(2, changed, 4400, 0, at_s=30))
    of_tools = row["seen_tokens"]
    assert 1000 < of_tools < 3000
    assert losses(row) == {"other": of_tools, "changed": 4000 - of_tools}


def test_losses_are_unknown_without_reported_cached_tokens(store: Store) -> None:
    row = reuse_of(store, FIRST, sent(2, LONGER, 4400, None, at_s=30))
    assert (row["available_tokens"], row["delivered_tokens"]) == (4000, None)
    assert [row[f"lost_{name}_tokens"] for name in LOST] == [None] * 5


def test_mark_of_an_hour_keeps_a_prompt(store: Store) -> None:
    hour = marked(prompt_of(1)[:-1], -1, ttl="1h")
    row = reuse_of(
        store, sent(1, hour, 4000, 0, at_s=0), sent(2, marked(LONGER, -1, ttl="1h"), 4400, 0, at_s=3000)
    )
    assert row["available_tokens"] == 4000


def test_prompt_that_the_server_still_reads_is_not_available(store: Store) -> None:
    row = reuse_of(store, FIRST, sent(2, LONGER, 4400, 0, at_s=0.0005))
    assert (row["seen_tokens"], row["available_tokens"], losses(row)) == (0, 0, {})


def test_prompts_are_known_after_a_restart(store: Store) -> None:
    reuse_of(store, FIRST)
    restored = SessionPrompts()
    restored.restore(store.recent_prompts())
    assert reuse_of(store, sent(2, LONGER, 4400, 3968, at_s=30), known=restored)["available_tokens"] == 4000


def test_router_saves_what_other_instances_had_read(store: Store) -> None:
    hit = sent(1, prompt_of(1), 1000, 500, at_s=0, worker="a", session="other")
    asked = [
        hit,
        sent(2, prompt_of(2)[:-1], 4000, 0, at_s=10, worker="a"),
        sent(3, prompt_of(3), 4400, 0, at_s=30, worker="b"),
    ]
    known = SessionPrompts()
    for one in asked:
        store.commit(Commit("", tables=measure(finished(one), prompts=known)))
    with closing(store.cursor()) as cursor:
        cursor.execute(
            "INSERT INTO prices BY NAME SELECT 0 AS priority, '*' AS model, 4 AS input, 1 AS cached_input, 'USD' AS currency, 8 AS output, "
            "4 AS cache_write_5m, 4 AS cache_write_1h, 4 AS input_audio, 4 AS input_image, 1 AS cached_audio, 8 AS reasoning, "
            "8 AS output_audio, 8 AS output_image, 0 AS web_search"
        )
        since = datetime.fromtimestamp(START_NS / 1e9, UTC)
        selection = Selection(since=since, until=since + timedelta(hours=1))
        found = prompt_reuse.table(lambda sql: cursor.execute(sql).pl(), selection, "USD").to_dicts()
    by_instance = {row["server_instance"]: row for row in found}
    lost = by_instance["b"]["instance"] * 4400
    assert 3000 < lost <= 4000
    assert by_instance["b"]["router_saves"] == pytest.approx(lost * 3e-6)
    assert by_instance["b"]["available"] == pytest.approx(lost / 4400)
    assert by_instance["a"]["instance"] == 0
