"""Spans of model servers as their documentation shows them: the stream has the server's times, whichever comes first."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.intake import server_spans
from streamgauge.analytics.intake.received_spans import parse_spans, span_queue
from streamgauge.analytics.intake.server_spans import ServerSpanJob
from streamgauge.analytics.reports import blame
from streamgauge.analytics.storage.commit import Commit
from streamgauge.analytics.storage.store import Store
from streamgauge.ingest.guards import Guards
from streamgauge.ingest.record_log.embedded_writer import EmbeddedWriter
from streamgauge.ingest.records import pack
from tests.analytics.intake.test_received_spans import attribute, request
from tests.analytics.log_entries import MS, T0_WALL_NS, stream, stream_id
from tests.analytics.stores import analysed, ask, new_store
from tests.deadline import until

S = 1000 * MS
NOW = T0_WALL_NS + 3600 * S
TTFT_NS = 200 * MS
"""Of `tests.analytics.log_entries.stream`."""
VLLM = {
    "time_in_queue": 0.125, "time_in_model_prefill": 0.05, "time_in_model_decode": 0.2, "time_to_first_token": 0.1875, "e2e": 0.5,
}  # fmt: skip


def span(
    number: int, parent: int, *, trace: int = 1, seconds: float = 0.5, kind: int = 2, **attributes: Any
) -> dict[str, Any]:
    return {
        "traceId": f"{trace:032x}", "spanId": f"{number:016x}", "parentSpanId": f"{parent:016x}", "name": "llm_request",
        "kind": kind, "startTimeUnixNano": str(T0_WALL_NS), "endTimeUnixNano": str(T0_WALL_NS + round(seconds * S)),
        "attributes": [attribute(key, value) for key, value in attributes.items()],
    }  # fmt: skip


def vllm(number: int, parent: int, **more: Any) -> dict[str, Any]:
    return span(number, parent, **{f"gen_ai.latency.{name}": value for name, value in VLLM.items()}, **more)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """With the streams 1 and 2."""
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack([record for n in (1, 2) for record in stream(n)], compress=True)])
    made = analysed(tmp_path)
    yield made
    made.close()


class Receiver:
    """Received spans and the job, in the commits of one store."""

    def __init__(self, store: Store, *, started: bool = True, attempts: int = 2) -> None:
        self.store, self.job = store, ServerSpanJob(store, Guards(), delays_s=[0.0] * attempts)
        self.queue = span_queue(store.cursor, on_stored=self.job.add)
        if started:
            self.job.start()

    def receive(self, *spans: dict[str, Any], scope: str = "vllm.llm_engine") -> None:
        body = json.dumps(request(*spans, service="server", scope=scope)).encode()
        found = parse_spans(body, is_json=True, now_ns=NOW, max_items=100_000)
        assert not found.rejected
        self.queue.offer(found.rows)
        self.commit()

    def commit(self) -> None:
        for hook in (self.queue, self.job):
            self.store.commit(Commit("", tables=dict(hook.rows((), {}))))
            hook.committed()

    def until(self, **counted: int) -> None:
        """Wait for these counters, and commit what the job has found."""
        until(
            lambda: all(self.job.health()[f"server_spans.{k}"] == n for k, n in counted.items()), str(counted)
        )
        self.commit()


@pytest.fixture
def receiver(store: Store, monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    monkeypatch.setattr(server_spans, "ROUND_S", 0.01)
    made = Receiver(store)
    with closing(made.job):
        yield made


def timing(store: Store, columns: str) -> list[tuple[Any, ...]]:
    return ask(store, f"SELECT {columns} FROM server_timing ORDER BY stream_id")


def test_times_of_vllm_are_those_of_its_parent(receiver: Receiver) -> None:
    receiver.receive(vllm(0xA, parent=1))
    receiver.until(matched=1, pending=0)
    assert timing(
        receiver.store, "stream_id::VARCHAR, source, queue_ns, prefill_ns, decode_ns, ttft_ns, total_ns"
    ) == [(stream_id(1), "span", 125 * MS, 50 * MS, 200 * MS, 187_500_000, 500 * MS)]
    [found] = blame.of_streams(lambda sql: receiver.store.cursor().execute(sql).pl(), [stream_id(1)]).values()
    assert found.server == {"queue": 125 * MS, "prefill": 50 * MS, "decode": 200 * MS}
    assert (
        found.server_text(TTFT_NS)
        == "Queue at the server 125 ms of 200 ms to the first token, prefill 50.0 ms"
    )


def test_first_of_several_spans_of_a_stream_counts(receiver: Receiver) -> None:
    receiver.receive(vllm(0xA, parent=1), vllm(0xB, parent=1))
    receiver.until(matched=2)
    receiver.receive(vllm(0xC, parent=1))
    receiver.until(matched=3, pending=0)
    assert ask(receiver.store, "SELECT count(*) FROM server_stats WHERE source = 'span'") == [(len(VLLM),)]


def test_times_of_sglang_have_no_queue(receiver: Receiver) -> None:
    """Its root span has the time to the first token, and a prefill that begins when the scheduler has the request."""
    receiver.receive(
        span(
            0xA,
            1,
            **{"gen_ai.latency.time_to_first_token": 0.18, "gen_ai.latency.time_in_model_prefill": 0.16},
        )
    )
    receiver.until(matched=1)
    assert timing(receiver.store, "queue_ns, prefill_ns, ttft_ns") == [(None, 160 * MS, 180 * MS)]


def claude(number: int, parent: int, **more: Any) -> dict[str, Any]:
    return span(number, parent, **{"gen_ai.usage.input_tokens": 7, "gen_ai.usage.output_tokens": 10}, **more)


def test_request_of_the_claude_api_has_its_duration_and_tokens_count_once(receiver: Receiver) -> None:
    """The SDK's span is above ours, that of the API below. Both have the tokens of the response."""
    tokens = "SELECT sum(input_tokens), sum(output_tokens) FROM streams"
    before = ask(receiver.store, tokens), ask(receiver.store, tokens.replace("streams", "spend"))
    receiver.receive(claude(0xB, 0xFF, kind=3), scope="com.anthropic.sdk.python")
    receiver.receive(
        claude(0xA, 1, seconds=0.31),
        span(0xC, 0xA, kind=1, seconds=0.3),
        scope="com.anthropic.claude-platform",
    )
    receiver.until(matched=1, pending=0)
    assert timing(receiver.store, "source, ttft_ns, total_ns") == [("span", None, 310 * MS)]
    assert (ask(receiver.store, tokens), ask(receiver.store, tokens.replace("streams", "spend"))) == before


def test_span_belongs_to_the_nearest_stream_above(receiver: Receiver) -> None:
    """A gateway is between: its spans are received, too. Without any of the trace, the request id decides."""
    receiver.receive(span(0xA, 2, trace=2), span(0xB, 0xA, trace=2, kind=3), vllm(0xC, 0xB, trace=2))
    receiver.until(matched=1, pending=0)
    assert timing(receiver.store, "stream_id::VARCHAR") == [(stream_id(2),)]


def test_span_without_a_trace_of_ours_is_found_by_its_request_id(receiver: Receiver) -> None:
    receiver.store.cursor().execute(
        f"UPDATE streams SET request_id = 'req_1' WHERE stream_id = '{stream_id(1)}'"
    )
    receiver.receive(
        claude(0xA, 0, trace=9, **{"anthropic.request.id": "req_1"}), scope="com.anthropic.claude-platform"
    )
    receiver.until(matched=1)
    assert timing(receiver.store, "stream_id::VARCHAR") == [(stream_id(1),)]


def test_span_that_comes_before_its_stream_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_spans, "ROUND_S", 0.01)
    store = new_store(tmp_path)
    made = Receiver(store, attempts=5000)
    made.receive(vllm(0xA, parent=1))
    until(lambda: any(made.job._pending[1:]), "the first attempt")
    with EmbeddedWriter(tmp_path / "log", "w0", cap_bytes=2**30) as writer:
        writer.append([pack(stream(1), compress=True)])
    analysed(tmp_path).close()
    made.until(matched=1, pending=0, unmatched=0)
    assert timing(store, "queue_ns") == [(125 * MS,)]
    made.job.close()
    store.close()


def test_restart_looks_up_what_is_left_and_stores_nothing_twice(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_spans, "ROUND_S", 0.01)
    monkeypatch.setattr(server_spans, "LOOK_BACK_S", 10.0**9)
    killed = Receiver(store, started=False)
    killed.receive(vllm(0xA, parent=1), vllm(0xB, parent=2, trace=2))
    for stored in (2, 2):
        again = Receiver(store)
        again.until(matched=2, pending=0)
        again.job.close()
        assert len(timing(store, "queue_ns")) == stored
        assert ask(store, "SELECT count(*) FROM server_stats WHERE source = 'span'") == [(2 * len(VLLM),)]
    killed.job.close()


def test_spans_without_a_stream_are_bounded_and_counted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_spans, "ROUND_S", 0.01)
    monkeypatch.setattr(server_spans, "MAX_PENDING", 50)
    made = Receiver(store, started=False)
    made.receive(*(vllm(100 + n, parent=5, trace=5) for n in range(60)))
    made.job._take_received()
    assert made.job.health() == {
        "server_spans.pending": 50,
        "server_spans.matched": 0,
        "server_spans.unmatched": 10,
    }
    made.job.start()
    made.until(unmatched=60, pending=0, matched=0)
    assert ask(store, "SELECT count(*) FROM spans WHERE trace_id = ?", [f"{5:032x}"]) == [(60,)]
    made.job.close()


def test_other_spans_are_not_looked_up(receiver: Receiver) -> None:
    receiver.receive(
        span(0xA, 1, **{"gen_ai.usage.input_tokens": 7}), span(0xB, 1, **{"gen_ai.latency.e2e": -1.0})
    )
    receiver.receive(span(0xC, 0xA, kind=1), scope="com.anthropic.claude-platform")
    assert receiver.job.health()["server_spans.pending"] == 0
