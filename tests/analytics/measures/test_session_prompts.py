"""Rows of `prompt_segments` and `prompt_tools`, and whole prompts that are read back from them."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import polars as pl
import pytest

from streamgauge.analytics.measures import session_prompts as measured
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.analytics.reports.stored_prompts import MAX_CHAIN, prompts
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.forget import Caller, forget
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.records import AnyRecord, Segment
from tests.analytics.prompts import SECOND_NS, chat_usage, finished, marked, prompt_of, request, segment
from tests.analytics.stores import new_store
from tests.analytics.stream_records import START_NS, stream_id


def stored(known: SessionPrompts, *streams: Sequence[AnyRecord]) -> pl.DataFrame:
    """Rows of `prompt_segments`, measured one by one."""
    tables = [measure(finished(one), prompts=known) for one in streams]
    return pl.concat([one["prompt_segments"] for one in tables if "prompt_segments" in one])


def commit(store: Store, known: SessionPrompts, *streams: Sequence[AnyRecord]) -> None:
    for one in streams:
        tables = measure(finished(one), prompts=known)
        names = [name for name in tables if name in ("streams", "prompt_segments", "prompt_tools")]
        store.commit(Commit("", tables={name: tables[name] for name in names}))


def read_back(store: Store, numbers: Sequence[int]) -> dict[str, list[Segment]]:
    with closing(store.cursor()) as cursor:
        return prompts(lambda sql: cursor.execute(sql).pl(), [stream_id(n) for n in numbers])


def test_prompt_is_stored_as_the_difference_from_the_one_before() -> None:
    first, second = stored(SessionPrompts(), request(1, prompt_of(1)), request(2, prompt_of(2))).to_dicts()
    assert (first["base_stream_id"], first["kept_first"]) == (None, 0)
    assert len(json.loads(first["segments"])) == first["segment_count"] == len(prompt_of(1))
    assert second["base_stream_id"] == stream_id(1)
    assert second["kept_first"] == len(prompt_of(1)) - 1
    assert [(kind, message) for kind, _, message, *_ in json.loads(second["segments"])] == [
        ("tool_result", 2), ("text", 3), ("tool_call", 3), ("text", 4),
    ]  # fmt: skip
    assert second["message_count"] == 5


def test_bytes_by_kind_are_those_of_the_whole_prompt() -> None:
    rows = stored(SessionPrompts(), *(request(n, prompt_of(n, tools=3)) for n in range(1, 4))).to_dicts()
    for number, row in enumerate(rows, 1):
        whole = prompt_of(number, tools=3)
        for column, kinds in {
            "tools_bytes": ["tool"], "settings_bytes": ["model", "settings"], "text_bytes": ["text"],
            "tool_result_bytes": ["tool_result"], "tool_call_bytes": ["tool_call"], "image_bytes": ["image"],
        }.items():  # fmt: skip
            assert row[column] == sum(one.size for one in whole if one.kind in kinds), column


def test_removed_message_keeps_the_last_segments_with_other_numbers(tmp_path: Path) -> None:
    whole = prompt_of(6)
    shorter = [
        Segment(s.kind, s.name, s.message - 2 * (s.message > 5), s.size, s.hash, s.role, s.mark)
        for s in whole
        if s.message not in (4, 5)
    ]
    with closing(new_store(tmp_path)) as store:
        known = SessionPrompts()
        commit(store, known, request(1, whole), request(2, shorter))
        assert read_back(store, [1, 2]) == {stream_id(1): whole, stream_id(2): shorter}
        with closing(store.cursor()) as cursor:
            row = cursor.execute("FROM prompt_segments WHERE base_stream_id IS NOT NULL").pl().to_dicts()[0]
    assert (row["segments"], row["kept_last"]) == ("[]", 10)


def test_chain_is_short_and_each_prompt_is_read_back(tmp_path: Path) -> None:
    bodies = [marked(prompt_of(n), 42, -1, -4) for n in range(1, 40)]
    with closing(new_store(tmp_path)) as store:
        commit(store, SessionPrompts(), *(request(n, one) for n, one in enumerate(bodies, 1)))
        assert read_back(store, range(1, 40)) == {stream_id(n): one for n, one in enumerate(bodies, 1)}
        with closing(store.cursor()) as cursor:
            whole = cursor.execute(
                "SELECT stream_id::VARCHAR FROM prompt_segments WHERE base_stream_id IS NULL ORDER BY 1"
            ).fetchall()
            assert whole == [(stream_id(n),) for n in range(1, 40, MAX_CHAIN + 1)]
            cursor.execute(f"DELETE FROM prompt_segments WHERE stream_id = '{stream_id(5)}'")
        # What repeats the deleted one is unknown up to the next that is stored whole.
        assert set(read_back(store, range(1, 40))) == {stream_id(n) for n in [*range(1, 5), *range(17, 40)]}


def test_any_change_is_read_back(tmp_path: Path) -> None:
    choose = random.Random(7)
    bodies, body = [], prompt_of(5, tools=6)
    for n in range(60):
        place = choose.randrange(len(body))
        kind = choose.choice(["text", "image", "tool_result"])
        new = segment(kind, f"new {n}", body[place].message, role="user")  # type: ignore[arg-type]
        body = [
            *body[:place],
            *([new] if choose.random() < 0.6 else []),
            *body[place + choose.randrange(2) :],
        ]
        bodies.append(body or prompt_of(1))
    with closing(new_store(tmp_path)) as store:
        commit(store, SessionPrompts(), *(request(n, one) for n, one in enumerate(bodies, 1)))
        assert read_back(store, range(1, 61)) == {stream_id(n): one for n, one in enumerate(bodies, 1)}


def test_side_call_and_subagent_are_not_taken_for_the_request_before() -> None:
    side = [segment("model", "haiku"), segment("system", "title"), segment("text", "q", 0, role="user")]
    sub = [*prompt_of(0)[:30], segment("system", "subagent"), segment("text", "task", 0, role="user")]
    rows = stored(
        SessionPrompts(), request(1, prompt_of(3)), request(2, side), request(3, sub), request(4, prompt_of(4)), request(5, side)
    ).to_dicts()  # fmt: skip
    bases = [row["base_stream_id"] for row in rows]
    assert bases == [None, None, stream_id(1), stream_id(1), stream_id(2)]


def test_sessions_and_clients_are_apart() -> None:
    rows = stored(
        SessionPrompts(), request(1, prompt_of(1)), request(2, prompt_of(1), session="other"), request(3, prompt_of(1), session=None),
        request(4, prompt_of(2), session=None), request(5, prompt_of(2), session=None, client_id="another"),
    ).to_dicts()  # fmt: skip
    assert [row["base_stream_id"] for row in rows] == [None, None, None, stream_id(3), None]
    assert [row["session_id"] for row in rows[:3]] == ["session-1", "other", None]


def test_tools_are_stored_once_for_each_set_of_a_session_and_again_after_a_day() -> None:
    known, changed = SessionPrompts(), prompt_of(3)
    changed[2], changed[3] = changed[3], changed[2]
    day_s = 86_400
    streams = [request(1, prompt_of(1)), request(2, prompt_of(2)), request(3, changed), request(4, prompt_of(4), at_s=day_s + 9),
               request(5, prompt_of(1), session="other")]  # fmt: skip
    tables = [measure(finished(one), prompts=known) for one in streams]
    found = pl.concat([one["prompt_tools"] for one in tables if "prompt_tools" in one])
    sizes = found.group_by("stream_id", maintain_order=True).len()
    assert sizes.rows() == [(stream_id(n), 40) for n in (1, 3, 4, 5)]
    assert found["tool_set"].n_unique() == 3
    first = found.head(2).to_dicts()
    assert [(row["position"], row["name"], row["mcp_server"], row["size"]) for row in first] == [
        (0, "Tool0", None, 540), (1, "mcp__files__t1", "files", 540),
    ]  # fmt: skip


def test_messages_that_the_server_keeps_are_part_of_the_prompt(tmp_path: Path) -> None:
    head = prompt_of(0)[:-1]
    question = [*head, segment("text", "q", 0, role="user")]
    result = [*head, segment("tool_result", "r", 0, role="user")]
    unknown = {"previous_response_id": "resp_9", "has_history": False}
    with closing(new_store(tmp_path)) as store:
        commit(
            store, SessionPrompts(), request(1, question),
            request(2, result, conversation={"previous_response_id": "c1", "has_history": False}),
            request(3, result, session="other", conversation=unknown),
        )  # fmt: skip
        first, second, third = (read_back(store, [n])[stream_id(n)] for n in (1, 2, 3))
        with closing(store.cursor()) as cursor:
            rows = cursor.execute(
                "SELECT incomplete, kept_first, message_count FROM prompt_segments ORDER BY stream_id"
            ).fetchall()
    assert (first, third) == (question, result)
    assert second[:-2] == question
    assert [(one.kind, one.message, one.role) for one in second[-2:]] == [
        ("other", 1, "assistant"),
        ("tool_result", 2, "user"),
    ]
    assert rows == [(False, 0, 1), (False, len(question), 3), (True, 0, 1)]


@pytest.mark.parametrize("size", [1, 2])  # the model, and settings
def test_warm_up_has_no_answer_in_the_prompt_that_continues_it(tmp_path: Path, size: int) -> None:
    settings, question = prompt_of(0)[:size], [*prompt_of(0)[:2], segment("text", "q", 0, role="user")]
    warm_up = request(1, settings)
    warm_up[1] = msgspec.structs.replace(warm_up[1], body=b'{"model":"m","generate":false}')
    follows = request(2, question, conversation={"previous_response_id": "c1", "has_history": False})
    with closing(new_store(tmp_path)) as store:
        known, restored = SessionPrompts(), SessionPrompts()
        commit(store, known, warm_up)
        restored.restore(store.recent_prompts())
        for number, one in enumerate((known, restored)):
            assert stored(one, follows).select("message_count", "incomplete").rows() == [(1, False)], number


def test_remembered_prompts_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "MAX_SEGMENTS", 200)
    known = SessionPrompts()
    rows = stored(known, *(request(n, prompt_of(1), session=f"s{n}") for n in range(9)), request(9, prompt_of(2), session="s8"),
                  request(10, prompt_of(2), session="s0"))  # fmt: skip
    assert rows["base_stream_id"].to_list()[-2:] == [stream_id(8), None]


def test_streams_that_are_measured_again_have_the_same_rows() -> None:
    known = SessionPrompts()
    batch = finished(*(request(n, prompt_of(n)) for n in range(1, 4)))
    first = measure(batch, prompts=known)
    again = [measure([stream], prompts=known) for stream in batch]
    assert pl.concat([one["prompt_segments"] for one in again]).equals(first["prompt_segments"])


def test_request_that_no_model_answered_is_stored_and_not_compared_with() -> None:
    refused = request(2, prompt_of(2), events=[b'{"error": {"type": "overloaded"}}'])
    rows = stored(SessionPrompts(), request(1, prompt_of(1)), refused, request(3, prompt_of(2))).to_dicts()
    assert [row["base_stream_id"] for row in rows] == [None, stream_id(1), stream_id(1)]


def test_prompt_that_the_server_keeps_is_bounded_and_incomplete_behind_missing_segments(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    follows = {"previous_response_id": "c1", "has_history": False}
    question = prompt_of(0)[-1:]
    asked = [request(1, question), *(request(n, question, conversation=follows) for n in (2, 3, 4))]
    assert stored(SessionPrompts(), *asked)["incomplete"].to_list() == [False] * 4
    cut = [request(1, question, left_out=3), asked[1]]
    assert stored(SessionPrompts(), *cut)["incomplete"].to_list() == [False, True]
    monkeypatch.setattr("streamgauge.analytics.measures.session_prompts.MAX_KEPT_BY_SERVER", 4)
    rows = stored(SessionPrompts(), *asked)
    assert rows["incomplete"].to_list() == [False, False, False, True]
    assert rows["segment_count"].to_list() == [1, 3, 5, 1]


def test_sessions_continue_after_a_restart(tmp_path: Path) -> None:
    now_s = time.time() - START_NS / SECOND_NS
    known = SessionPrompts()
    usage = chat_usage(5_000, 4_000)
    streams = [
        request(
            n,
            marked(prompt_of(n), 42),
            at_s=now_s - 60 + n,
            usage=usage,
            session=None if n > 5 else "session-1",
        )
        for n in range(1, 9)
    ]
    subagent = [*prompt_of(0)[:42], segment("system", "other"), segment("text", "q", 0, role="user")]
    side = request(20, subagent, at_s=now_s - 54.5, usage=usage)
    chain = {"previous_response_id": "c-0", "has_history": False}
    broken = request(30, prompt_of(0), at_s=now_s - 50, usage=usage, session="session-2", conversation=chain)
    cut = request(31, prompt_of(3), at_s=now_s - 50, usage=usage, session="session-3", left_out=7)
    follows = {"previous_response_id": "c1", "has_history": False}
    after = [
        *(request(n, marked(prompt_of(n), 42), at_s=now_s + n, usage=usage, session=session)
          for n, session in ((9, None), (10, "session-1"))),
        request(11, prompt_of(0), at_s=now_s + 11, usage=usage, session="session-2", conversation=follows),
        request(12, prompt_of(4), at_s=now_s + 12, usage=chat_usage(5_000, 0), session="session-3"),
    ]  # fmt: skip
    with closing(new_store(tmp_path)) as store:
        commit(store, known, *streams, side, broken, cut)
        again = SessionPrompts()
        again.restore(store.recent_prompts())
    both = [[measure(finished(one), prompts=each) for one in after] for each in (known, again)]
    for name in ("streams", "prompt_segments"):
        tables = [pl.concat([one[name] for one in each]) for each in both]
        assert tables[1].equals(tables[0]), name
    assert both[0][0]["prompt_segments"]["base_stream_id"].to_list() == [stream_id(8)]
    assert [one["prompt_segments"]["incomplete"].item() for one in both[0]] == [False, False, True, False]


def test_session_is_forgotten_without_other_sessions(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with closing(store):
        store.acquire_partition("log", "0")
        known = SessionPrompts()
        commit(
            store,
            known,
            *(request(n, prompt_of(n), session=("session-1", "other")[n % 2]) for n in range(1, 6)),
        )
    forget(store.location, tmp_path, Caller("session", "session-1"))
    with closing(Store(store.location)) as left:
        assert read_back(left, range(1, 6)) == {stream_id(n): prompt_of(n) for n in (1, 3, 5)}
        with closing(left.cursor()) as cursor:
            for table in ("prompt_segments", "prompt_tools"):
                kept = cursor.execute(
                    f"SELECT DISTINCT stream_id::VARCHAR FROM {table} ORDER BY 1"
                ).fetchall()
                assert {one for (one,) in kept} <= {stream_id(n) for n in (1, 3, 5)}, table
                assert kept


def test_later_prompts_of_a_session_are_known_after_one_of_them_is_forgotten(tmp_path: Path) -> None:
    store = new_store(tmp_path)
    with closing(store):
        store.acquire_partition("log", "0")
        commit(store, SessionPrompts(), *(request(n, prompt_of(n)) for n in range(1, 9)))
        with closing(store.cursor()) as cursor:
            cursor.execute(f"DELETE FROM prompt_segments WHERE stream_id = '{stream_id(6)}'")
            for n in (1, 3, 7):
                cursor.execute(
                    f"UPDATE streams SET labels = MAP {{'user': 'a'}} WHERE stream_id = '{stream_id(n)}'"
                )
    forget(store.location, tmp_path, Caller("label", "a", "user"))
    with closing(Store(store.location)) as left:
        assert read_back(left, range(1, 9)) == {stream_id(n): prompt_of(n) for n in (2, 4, 5)}
        with closing(left.cursor()) as cursor:
            bases = cursor.execute(
                "SELECT base_stream_id::VARCHAR FROM prompt_segments ORDER BY stream_id"
            ).fetchall()
            assert bases == [(None,), (None,), (stream_id(4),)]  # the eighth repeated an unknown part
            tools = cursor.execute(
                "SELECT DISTINCT stream_id::VARCHAR, count(*) FROM prompt_tools GROUP BY 1"
            ).fetchall()
            assert tools == [(stream_id(2), 40)]


def test_fault_of_the_comparison_leaves_the_measures_of_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SessionPrompts()
    monkeypatch.setattr(measured, "reason_of", lambda *_: 1 / 0)
    tables = measure(finished(request(1, prompt_of(1))), prompts=known)
    assert tables["streams"]["outcome"].to_list() == ["ok"]
    assert "prompt_segments" not in tables
    assert dict(tables["internal.counter_parts"].iter_rows()) == {"prompts_failed": 1}


@pytest.mark.parametrize(
    "encoded", [b"\x91\x01", b"\x01", b"\xa3abc", b"\x80", b"\xc0", b"\x91\x95\xa5other\xc0\x00\x01\xc4\x00"], ids=bytes.hex
)  # fmt: skip
def test_records_without_readable_segments_have_the_measures_of_the_stream(encoded: bytes) -> None:
    known, records = SessionPrompts(), request(2, prompt_of(2))
    measure(finished(request(1, prompt_of(1))), prompts=known)
    asked = records[1].conversation  # type: ignore[union-attr]
    assert asked is not None
    assert asked.anatomy is not None
    anatomy = msgspec.structs.replace(asked.anatomy, encoded_segments=msgspec.Raw(encoded))
    records[1] = msgspec.structs.replace(
        records[1], conversation=msgspec.structs.replace(asked, anatomy=anatomy)
    )
    tables = measure(finished(records), prompts=known)
    assert tables["streams"]["outcome"].to_list() == ["ok"]
    assert "prompt_segments" not in tables or tables["prompt_segments"]["segment_count"].to_list() == [1]


def test_prompt_of_each_length_repeats_the_one_before() -> None:
    """The head of an encoded list has another size from 16 segments on."""
    whole = prompt_of(1, tools=20)
    rows = stored(SessionPrompts(), *(request(n, whole[:n]) for n in range(3, 20))).to_dicts()
    assert [row["segment_count"] for row in rows] == list(range(3, 20))
    assert [row["kept_first"] for row in rows if row["base_stream_id"]] == [
        row["segment_count"] - 1 for row in rows if row["base_stream_id"]
    ]
    assert sum(row["base_stream_id"] is None for row in rows) == 2


@pytest.mark.parametrize("place", [0, 7, -1])
def test_changed_segment_is_found_in_encoded_prompts(place: int) -> None:
    before = prompt_of(3, tools=12)
    after = list(before)
    after[place] = msgspec.structs.replace(after[place], hash=b"another!")
    rows = stored(SessionPrompts(), request(1, before), request(2, after)).to_dicts()
    assert (rows[1]["kept_first"], rows[1]["kept_last"]) == (
        place % len(before),
        len(before) - 1 - place % len(before),
    )
