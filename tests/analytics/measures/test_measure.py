"""Rows of finished streams, from real bodies through the real decoder."""

import gzip
import json
from typing import Any

import brotli
import duckdb
import msgspec
import polars as pl
import pytest
import zstandard

from streamgauge.analytics.assembly.assembler import Assembler
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.minute_rows import rollups
from streamgauge.analytics.schema.objectives import DEFAULT, Objective, Objectives
from streamgauge.analytics.schema.tables import PROMPT_SEGMENTS, PROMPT_TOOLS, schema_sql
from streamgauge.ingest.identifiers import hashed
from streamgauge.ingest.records import AnyRecord, Frames, Lost, Request, ResponseHeaders
from tests.analytics.redacted_streams import redacted
from tests.analytics.stream_records import chunk, closed, finish_chunk, head, opened, stream_id, whole_stream

A, B = stream_id(1), stream_id(2)
MS = 1_000_000
DONE = b"data: [DONE]\n\n"


def tables(*streams: list[AnyRecord], **options: Any) -> dict[str, pl.DataFrame]:
    assembler = Assembler(**options)
    for records in streams:
        assembler.feed("w0", 0, records)
    finished = assembler.take_finished()
    assert assembler.take_failures() == []
    return measure(finished)


def exchange(
    *reads: tuple[int, bytes],
    cause: Any = "complete",
    response: ResponseHeaders | None = None,
    request: bytes = b'{"model":"m"}',
    path: str = "/v1/chat/completions",
    uncaptured: int = 0,
    **transport: Any,
) -> list[AnyRecord]:
    """The records of one stream, from (ms, data) reads."""
    frames = [(ms * MS, data) for ms, data in reads]
    size = sum(len(data) for _, data in reads)
    end_ns = (reads[-1][0] if reads else 1) * MS + 1000
    return [
        opened(A, path=path),
        Request(A, 1, request, False),
        Frames(A, 2, frames, response or head(), uncaptured),
        closed(A, 3, cause=cause, end_ns=end_ns, response_bytes=size, **transport),
    ]


def row(*reads: tuple[int, bytes], **options: Any) -> dict[str, Any]:
    (only,) = tables(exchange(*reads, **options))["streams"].to_dicts()
    return only


def usage_chunk(**usage: Any) -> bytes:
    return chunk(choices=[], usage=usage)


def reasoning(text: str) -> bytes:
    return chunk(choices=[{"index": 0, "delta": {"reasoning_content": text}}])


TEN = {"prompt_tokens": 7, "completion_tokens": 10, "total_tokens": 17}


def test_complete_stream_has_every_measure() -> None:
    found = row(
        (10, chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])),
        (20, reasoning("hm")),
        (40, chunk("a")),
        (80, chunk("bc")),
        (200, chunk("d") + finish_chunk()),
        (201, usage_chunk(**TEN) + DONE),
    )
    assert found["outcome"] == "ok"
    assert (found["ttfb_ns"], found["ttfc_ns"]) == (10 * MS, 10 * MS)
    assert (found["ttft_ns"], found["ttfo_ns"], found["ttst_ns"]) == (20 * MS, 40 * MS, 20 * MS)
    assert (found["last_output_ns"], found["terminator_ns"], found["end_ns"]) == (
        200 * MS,
        201 * MS,
        201 * MS + 1000,
    )
    assert (found["input_tokens"], found["output_tokens"], found["token_source"]) == (7, 10, "usage")
    assert found["itl_ns"] == 180 * MS / 9
    assert found["tps_user"] == pytest.approx(9 / 0.180)
    assert found["tps_e2e"] == pytest.approx(10 / 0.200)
    assert (found["icl_p50_ns"], found["icl_max_ns"]) == (40 * MS, 120 * MS)
    assert found["icl_p95_ns"] == pytest.approx(112 * MS)
    assert (found["stall_count"], found["stalled_ns"]) == (0, 0)
    assert (found["event_count"], found["output_event_count"]) == (8, 4)
    assert (found["text_chars"], found["reasoning_chars"], found["choice_count"]) == (4, 2, 1)


def test_non_streamed_response_has_no_output_times() -> None:
    body = json.dumps(
        {
            "id": "c1",
            "object": "chat.completion",
            "model": "m-1",
            "choices": [
                {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
            ],
            "usage": TEN,
        }
    ).encode()
    found = row((30, body), response=head(content_type="application/json"))
    assert (found["outcome"], found["streamed"], found["finish_reason"]) == ("ok", False, "stop")
    assert (found["output_tokens"], found["token_source"], found["response_id"]) == (10, "usage", "c1")
    assert (found["ttfb_ns"], found["ttfc_ns"], found["ttft_ns"], found["tps_e2e"]) == (
        30 * MS,
        None,
        None,
        None,
    )
    assert (found["stall_count"], found["burstiness"], found["event_count"]) == (None, None, 0)


def test_error_response_has_no_output_and_no_tokens() -> None:
    body = b'{"error":{"message":"slow down","type":"rate_limit_error","code":"429"}}'
    found = row((5, body), response=head(429, "application/json"))
    assert (found["outcome"], found["error_type"], found["error_phase"]) == (
        "http_error",
        "rate_limit_error",
        "pre_headers",
    )
    assert (found["http_status"], found["streamed"], found["error_message"]) == (429, False, None)
    assert (found["output_tokens"], found["token_source"], found["ttft_ns"]) == (None, None, None)


def test_no_response_leaves_body_columns_null() -> None:
    records = [opened(A), Request(A, 1, b"{}", False), closed(A, 2, cause="connect_error", detail="gaierror")]
    (found,) = tables(records)["streams"].to_dicts()
    for name in (
        "streamed",
        "ttfb_ns",
        "ttft_ns",
        "itl_ns",
        "output_tokens",
        "stall_count",
        "http_status",
        "headers_ns",
    ):
        assert found[name] is None, name


# -- tokens --------------------------------------------------------------------------------------------------------


def test_unknown_tokens_and_their_rates_are_null() -> None:
    found = row((10, chunk("a")), (20, chunk("b")), (30, finish_chunk() + DONE))
    for name in ("input_tokens", "output_tokens", "token_source", "itl_ns", "tps_user", "tps_e2e"):
        assert found[name] is None, name
    assert found["icl_p50_ns"] == 10 * MS


def test_hidden_reasoning_tokens_are_excluded_from_rates() -> None:
    usage = TEN | {"completion_tokens_details": {"reasoning_tokens": 6}}
    hidden = row((10, chunk("a")), (40, chunk("b")), (50, finish_chunk() + usage_chunk(**usage)))
    assert (hidden["output_tokens"], hidden["reasoning_tokens"]) == (10, 6)
    assert hidden["itl_ns"] == 30 * MS / 3
    assert hidden["tps_e2e"] == pytest.approx(4 / 0.040)
    shown = row((10, reasoning("a")), (40, chunk("b")), (50, finish_chunk() + usage_chunk(**usage)))
    assert shown["itl_ns"] == 30 * MS / 9


def test_one_token_or_one_output_has_no_itl() -> None:
    one_token = row(
        (10, chunk("a")), (40, chunk("b")), (50, finish_chunk() + usage_chunk(completion_tokens=1))
    )
    assert (one_token["itl_ns"], one_token["tps_user"]) == (None, None)
    assert one_token["tps_e2e"] == pytest.approx(1 / 0.040)
    one_output = row((10, chunk("a")), (50, finish_chunk() + usage_chunk(**TEN)))
    assert (one_output["itl_ns"], one_output["ttst_ns"], one_output["burstiness"]) == (None, None, None)
    assert one_output["tps_e2e"] == pytest.approx(10 / 0.010)


def test_all_outputs_in_one_read_have_itl_zero_and_no_rate() -> None:
    found = row((10, chunk("a") + chunk("b") + finish_chunk() + usage_chunk(**TEN)))
    assert (found["itl_ns"], found["tps_user"], found["burstiness"]) == (0.0, None, 1.0)


def test_running_count_of_a_cut_stream_is_usage_delta() -> None:
    found = row(
        (10, chunk("a", usage={"completion_tokens": 1})),
        (20, chunk("b", usage={"completion_tokens": 2})),
        (40, chunk("c", usage={"completion_tokens": 4})),
    )
    assert (found["outcome"], found["output_tokens"], found["token_source"]) == (
        "truncated",
        4,
        "usage_delta",
    )
    assert found["itl_ns"] == 30 * MS / 3


def test_usage_older_than_the_last_output_gives_no_rate() -> None:
    reads = (
        (10, chunk("a")),
        (20, chunk("b", usage={"prompt_tokens": 9, "completion_tokens": 2})),
        (40, chunk("c")),
    )
    found = row(*reads, cause="upstream_reset")
    assert (found["outcome"], found["output_tokens"], found["token_source"]) == (
        "upstream_reset",
        2,
        "usage_delta",
    )
    assert (found["itl_ns"], found["tps_user"], found["tps_e2e"]) == (None, None, None)
    ended = row(*reads, (50, finish_chunk()))
    assert (ended["outcome"], ended["itl_ns"]) == ("ok", 30 * MS / 1)


def test_listed_tokens_are_counted_but_chunks_are_not() -> None:
    def listing(text: str, tokens: int) -> bytes:
        entries = [{"token": "t", "logprob": -1, "bytes": [], "top_logprobs": []}] * tokens
        return chunk(choices=[{"index": 0, "delta": {"content": text}, "logprobs": {"content": entries}}])

    found = row((10, listing("a", 1)), (20, listing("bcd", 3)), (30, finish_chunk()))
    assert (found["output_tokens"], found["token_source"], found["itl_ns"]) == (4, "chunks", 10 * MS / 3)
    mixed = row((10, listing("a", 1)), (20, chunk("b")), (30, finish_chunk()))
    assert (mixed["output_tokens"], mixed["token_source"]) == (None, None)
    reported = row((10, listing("a", 1)), (20, listing("b", 1)), (30, finish_chunk() + usage_chunk(**TEN)))
    assert (reported["output_tokens"], reported["token_source"]) == (10, "usage")


@pytest.mark.parametrize("streamed", [True, False])
def test_reported_zero_despite_output_is_unknown(streamed: bool) -> None:
    usage = {"prompt_tokens": 7, "completion_tokens": 0}
    if streamed:
        found = row((10, chunk("a")), (40, chunk("b")), (50, finish_chunk() + usage_chunk(**usage)))
    else:
        message = {"index": 0, "message": {"content": "hi"}, "finish_reason": "stop"}
        body = {"object": "chat.completion", "choices": [message], "usage": usage}
        found = row((30, json.dumps(body).encode()), response=head(content_type="application/json"))
    assert (found["outcome"], found["input_tokens"], found["token_source"]) == ("ok", 7, "reported_zero")
    for name in ("output_tokens", "itl_ns", "tps_user", "tps_e2e"):
        assert found[name] is None, name


def test_reported_zero_despite_output_yields_to_listed_tokens() -> None:
    logprobs = {"content": [{"token": "t", "logprob": -1, "bytes": [], "top_logprobs": []}]}
    listing = chunk(choices=[{"index": 0, "delta": {"content": "a"}, "logprobs": logprobs}])
    found = row((10, listing), (20, listing), (30, finish_chunk() + usage_chunk(completion_tokens=0)))
    assert (found["output_tokens"], found["token_source"]) == (2, "chunks")


def test_running_count_that_stays_zero_despite_output_is_unknown() -> None:
    found = row(*((10 * i, chunk("a", usage={"completion_tokens": 0})) for i in range(1, 4)))
    assert (found["output_tokens"], found["token_source"]) == (None, "reported_zero")


def test_reported_zero_without_output_is_a_count() -> None:
    found = row((10, finish_chunk()), (20, usage_chunk(completion_tokens=0)))
    assert (found["output_tokens"], found["token_source"], found["tps_e2e"]) == (0, "usage", None)


def test_zero_replaces_no_positive_count_except_of_cached_tokens() -> None:
    first = TEN | {"prompt_tokens_details": {"cached_tokens": 4}}
    last = {"prompt_tokens": 0, "completion_tokens": 0, "prompt_tokens_details": {"cached_tokens": 0}}
    found = row((10, chunk("a", usage=first)), (20, finish_chunk() + usage_chunk(**last)))
    assert (found["input_tokens"], found["output_tokens"], found["cached_input_tokens"]) == (7, 10, 0)
    assert found["token_source"] == "usage"


@pytest.mark.parametrize(
    ("reads", "request_body", "known"),
    [
        ([chunk("a"), finish_chunk()], b"{}", False),
        ([finish_chunk()], b"{}", True),
        ([finish_chunk()], b'{"messages": [{"role": "user", "content": "Hi"}]}', False),
    ],
)
def test_input_count_of_zero_is_unknown_if_there_was_a_prompt(
    reads: list[bytes], request_body: bytes, known: bool
) -> None:
    usage = usage_chunk(prompt_tokens=0, completion_tokens=len(reads) - 1)
    found = row((10, b"".join(reads) + usage), request=request_body)
    assert (found["input_tokens"], found["token_source"]) == (
        (0, "usage") if known else (None, "reported_zero")
    )
    assert found["output_tokens"] == len(reads) - 1


@pytest.mark.parametrize(
    ("options", "outcome"),
    [
        ({}, "ok"),
        ({"request": b'{"stream": true}'}, "truncated"),
        ({"request": b"{}", "path": "/v1beta/models/m:streamGenerateContent"}, "truncated"),
        ({"request": b'{"stream": true}', "path": "/other"}, "truncated"),
        ({"request": b'{"stream": true}', "uncaptured": 5}, "ok"),
        ({"request": b'{"stream": true}', "cause": "upstream_reset"}, "upstream_reset"),
    ],
)
def test_empty_response_is_no_success_if_a_stream_was_requested(
    options: dict[str, Any], outcome: str
) -> None:
    found = row((10, b""), response=head(content_type="application/json"), **options)
    assert (found["outcome"], found["streamed"]) == (outcome, outcome != "ok")


@pytest.mark.parametrize("coding", ["zstd", "br", "gzip", "identity"])
def test_compressed_request_names_the_model_and_asks_for_a_stream(coding: str) -> None:
    body = b'{"model": "codex-small", "stream": true, "input": "Hi"}'
    compress = {"zstd": zstandard.ZstdCompressor().compress, "br": brotli.compress, "gzip": gzip.compress}
    _, _, *rest = exchange((10, b""))
    headers = [("content-encoding", coding)]
    records = [
        opened(A, path="/v1/responses", headers=headers),
        Request(A, 1, compress.get(coding, bytes)(body), False),
    ]
    (found,) = tables([*records, *rest])["streams"].to_dicts()
    assert (found["request_model"], found["outcome"]) == ("codex-small", "truncated")


def test_image_is_output_with_a_time() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}
    found = row((10, chunk("")), (30, chunk(choices=[{"delta": {"images": [image]}}])), (40, finish_chunk()))
    assert (found["ttft_ns"], found["ttfo_ns"], found["output_event_count"]) == (30 * MS, 30 * MS, 1)


def test_hidden_reasoning_that_leaves_no_tokens_for_the_output_gives_no_speed() -> None:
    usage = TEN | {"completion_tokens_details": {"reasoning_tokens": 10}}
    found = row((10, chunk("a")), (40, chunk("b")), (50, finish_chunk() + usage_chunk(**usage)))
    assert (found["output_tokens"], found["token_source"], found["tps_e2e"]) == (10, "usage", None)


def test_input_count_of_an_unfinished_stream_is_no_running_count() -> None:
    found = row((10, chunk("a", usage={"prompt_tokens": 9})), cause="upstream_reset")
    assert (found["input_tokens"], found["output_tokens"], found["token_source"]) == (9, None, "usage")
    empty = row((10, chunk("a")), (20, finish_chunk() + usage_chunk()))
    assert (empty["input_tokens"], empty["output_tokens"], empty["token_source"]) == (None, None, None)


@pytest.mark.parametrize("count", [-5, 2**63, 10**30])
def test_impossible_count_is_null(count: int) -> None:
    found = tables(
        exchange((10, chunk("a")), (20, chunk("b") + finish_chunk() + usage_chunk(completion_tokens=count)))
    )
    assert found["streams"]["output_tokens"].to_list() == [None]
    assert found["usage_reports"]["output_tokens"].to_list() == [None]


# -- several choices -----------------------------------------------------------------------------------------------


def of_choice(index: int, text: str, finish: str | None = None) -> bytes:
    return chunk(choices=[{"index": index, "delta": {"content": text}, "finish_reason": finish}])


def test_several_choices_pool_their_gaps_and_have_no_itl() -> None:
    found = row(
        (10, of_choice(1, "a")),
        (11, of_choice(0, "x")),
        (50, of_choice(1, "b", "stop")),
        (111, of_choice(0, "y", "stop")),
        (112, usage_chunk(**TEN) + DONE),
    )
    assert (found["ttft_ns"], found["ttst_ns"], found["choice_count"]) == (10 * MS, 40 * MS, 2)
    assert (found["itl_ns"], found["tps_user"]) == (None, None)
    assert (found["icl_p50_ns"], found["icl_max_ns"]) == (70 * MS, 100 * MS)
    assert found["tps_e2e"] == pytest.approx(10 / 0.111)


def test_one_event_for_two_choices_counts_for_both() -> None:
    both = chunk(choices=[{"index": i, "delta": {"content": "x"}} for i in (0, 1)])
    found = row((10, both), (30, of_choice(0, "y", "stop")), (60, of_choice(1, "z", "stop")))
    assert (found["ttst_ns"], found["icl_max_ns"], found["output_event_count"]) == (20 * MS, 50 * MS, 3)


# -- partial and hostile bodies ------------------------------------------------------------------------------------


def test_partly_recorded_body_keeps_only_its_first_times() -> None:
    found = row((10, chunk("a")), (20, chunk("b")), uncaptured=1000)
    assert (found["outcome"], found["ttft_ns"], found["ttst_ns"]) == ("ok", 10 * MS, 10 * MS)
    for name in (
        "itl_ns",
        "last_output_ns",
        "icl_p50_ns",
        "event_count",
        "text_chars",
        "output_tokens",
        "burstiness",
    ):
        assert found[name] is None, name


def test_oversized_and_invalid_values_are_hashed_or_null() -> None:
    choice = {"index": 10**12, "delta": {"content": "x"}, "finish_reason": "f" * 10_000}
    usage = {"completion_tokens": True, "prompt_tokens": "9", "x": "\x00"}
    nasty = b"event: " + b"e" * 10_000 + b"\n" + chunk(model="", choices=[choice], usage=usage)
    found = tables(
        exchange((5, chunk(id="i" * 5000, choices=[])), (10, nasty), (30, b"data: \xff\xfe{\x00}\n\n"))
    )
    stored(found)
    assert found["streams"]["response_id"].to_list() == [hashed("i" * 5000)]
    assert hashed("e" * 10_000) in found["events"]["event_name"].to_list()
    assert hashed("f" * 10_000) in found["events"]["finish_reason"].to_list()


def test_unpaired_surrogate_is_replaced() -> None:
    half = "\ud800"
    choice = {"index": 0, "delta": {"content": half}, "finish_reason": half}
    body = chunk(
        model=half, id=half, choices=[choice], usage={half: half}, timings={"prompt_ms": 1, half: half}
    )
    records = exchange((10, body), request=json.dumps({"model": half}).encode())
    assembler = Assembler(capture=("*",))
    assembler.feed("w0", 0, records[:-1])
    assert len(assembler.open_streams()) == 1
    stored(tables(records, capture=("*",)))


# -- the other tables ----------------------------------------------------------------------------------------------


def test_events_have_their_number_and_read() -> None:
    events = tables(exchange((10, chunk("a") + chunk("bc")), (20, finish_chunk() + DONE)))["events"]
    assert events.select("seq", "at_ns", "kind", "chars", "event_name", "finish_reason").rows() == [
        (0, 10 * MS, "text", 1, None, None),
        (1, 10 * MS, "text", 2, None, None),
        (2, 20 * MS, "finish", 0, None, "stop"),
        (3, 20 * MS, "terminal", 0, None, None),
    ]
    reads = events["read_seq"].to_list()
    assert reads[0] == reads[1] < reads[2] == reads[3]


def test_every_usage_report_is_kept() -> None:
    reports = tables(
        exchange((10, chunk("a", usage={"completion_tokens": 1})), (20, finish_chunk() + usage_chunk(**TEN)))
    )
    found = reports["usage_reports"].select("at_ns", "output_tokens", "raw").rows()
    assert [(at_ns, n) for at_ns, n, _ in found] == [(10 * MS, 1), (20 * MS, 10)]
    assert json.loads(found[1][2]) == TEN


def test_server_reported_statistics_are_kept() -> None:
    timings = {"predicted_per_second": 50.0, "prompt_ms": 12.0}
    stats = tables(exchange((10, chunk("a") + finish_chunk()), (20, chunk(choices=[], timings=timings))))[
        "server_stats"
    ]
    assert len(stats) >= 2
    assert stats["stream_id"].unique().to_list() == [A]


def stored(found: dict[str, pl.DataFrame]) -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute(schema_sql())
    for table, rows in found.items():
        con.register("appended", rows)
        con.execute(f"INSERT INTO {table} BY NAME FROM appended")
        con.unregister("appended")
    return con


def test_rows_of_every_kind_of_stream_match_the_schema() -> None:
    lost = [*whole_stream(B)[:3], Lost(B, 3, 3, "queue_full", 5), *whole_stream(B)[4:]]
    found = tables(
        exchange((10, chunk("a", usage={"completion_tokens": 1})), (20, finish_chunk() + DONE)), lost
    )
    con = stored(found)
    assert con.execute(
        "SELECT outcome, started_at = to_timestamp(1800000000) FROM streams ORDER BY outcome"
    ).fetchall() == [
        ("ok", True),
        ("tap_lost", True),
    ]
    assert con.execute("SELECT count(*) FROM events WHERE stream_id = ?", [A]).fetchone() == (3,)
    assert con.execute("SELECT count(*) FROM usage_reports").fetchone() == (1,)


def test_no_streams_give_empty_frames_with_all_columns() -> None:
    empty, full = measure([]), tables(whole_stream(A))
    of_prompts = {PROMPT_SEGMENTS.name, PROMPT_TOOLS.name}  # left out without a prompt
    assert {t: rows.schema for t, rows in empty.items()} == {
        t: rows.schema for t, rows in full.items() if t not in of_prompts
    }
    assert all(rows.is_empty() for rows in empty.values())


def test_batch_gives_the_same_rows_as_its_streams_alone() -> None:
    streams = [whole_stream(stream_id(i), outputs=i % 40, per_record=1 + i % 5) for i in range(400)]
    together = tables(*streams)["streams"]
    alone = pl.concat([tables(s)["streams"] for s in streams[:40]])
    assert len(tables(*streams)["events"]) > 5_000
    assert together.head(40).equals(alone)


@pytest.mark.parametrize("path", ["", "/v1/chat/completions"])
def test_refused_request_without_an_upstream_has_no_gateway_and_no_times(path: str) -> None:
    no_upstream = opened(A, gateway="", server_address="", server_port=0, method="", path=path)
    refused = closed(A, 1, cause="bad_request", detail="tls", end_ns=0, response_bytes=0, refused_status=400)
    found = tables([no_upstream, refused])
    (only,) = found["streams"].to_dicts()
    assert (only["outcome"], only["error_type"], only["error_phase"]) == ("refused", "tls", "pre_headers")
    assert (only["http_status"], only["tap"], only["path"]) == (400, "tap", path or None)
    columns = (
        "gateway",
        "provider",
        "server_address",
        "server_port",
        "method",
        "end_ns",
        "headers_ns",
        "request_model",
    )
    assert {column: only[column] for column in columns} == dict.fromkeys(columns)
    [minute] = rollups(found)["stream_minutes"].to_dicts()
    assert (minute["gateway"], minute["model"], minute["outcome"], minute["streams"]) == (
        None,
        None,
        "refused",
        1,
    )
    assert "end_ns" not in rollups(found)["histogram_minutes"]["metric"].to_list()


def test_websocket_has_its_model_operation_and_first_byte() -> None:
    records = [
        opened(A, path="/v1/realtime", method="GET", query_model="gpt-realtime"),
        Frames(A, 1, [], ResponseHeaders(101, [], 5 * MS)),
        closed(A, 2, cause="client_left", end_ns=9 * MS, response_bytes=4, tunnel=True, first_byte_ns=6 * MS),
    ]
    (found,) = tables(records)["streams"].to_dicts()
    assert (found["request_model"], found["operation"], found["path"]) == (
        "gpt-realtime", "generate_content", "/v1/realtime",
    )  # fmt: skip
    assert (found["ttfb_ns"], found["ttft_ns"]) == (6 * MS, None)
    assert (found["outcome"], found["error_phase"]) == ("client_abort", "mid_stream")


def test_binary_body_has_its_first_byte() -> None:
    found = row(
        response=ResponseHeaders(200, [("content-type", "audio/mpeg")], 5 * MS),
        uncaptured=9,
        first_byte_ns=6 * MS,
    )
    assert (found["outcome"], found["ttfb_ns"], found["ttfc_ns"]) == ("ok", 6 * MS, None)


def test_model_of_the_body_takes_precedence_over_the_query() -> None:
    start, request, *rest = exchange((1, finish_chunk()))
    (found,) = tables([msgspec.structs.replace(start, query_model="by-query"), request, *rest])[
        "streams"
    ].to_dicts()
    assert found["request_model"] == "m"
    request = msgspec.structs.replace(request, body=b"{}")
    (found,) = tables([msgspec.structs.replace(start, query_model="by query"), request, *rest])[
        "streams"
    ].to_dicts()
    assert found["request_model"] == hashed("by query")


def test_clock_is_that_of_the_tap_and_in_old_logs_of_its_run() -> None:
    for clock_id, expected in (("c1", "c1"), (None, "i1")):
        records = [opened(A, mono_ns=77, clock_id=clock_id), *exchange((1, DONE))[1:]]
        (found,) = tables(records)["streams"].to_dicts()
        assert (found["clock_id"], found["clock_ns"]) == (expected, 77)


def test_stream_has_the_first_matching_objective() -> None:
    assembler = Assembler()
    assembler.feed("w0", 0, exchange((10, chunk("a")), (20, chunk("b")), (30, finish_chunk())))
    strict = Objective("strict", model="m", gateway="gw*", ttft_ns=10 * MS - 1)
    objectives = Objectives([Objective("other", model="x", ttft_ns=1), strict, DEFAULT])
    (found,) = measure(assembler.take_finished(), objectives=objectives)["streams"].to_dicts()
    assert (found["objective"], found["meets_objective"]) == ("strict", False)
    by_default = row((10, chunk("a")), (20, chunk("b")), (30, finish_chunk()))
    assert (by_default["objective"], by_default["meets_objective"]) == ("default", None)  # ITL unknown


BROKEN = [
    (10, chunk("a")),
    (20, finish_chunk()),
    (30, chunk(choices=None, usage=TEN)),
    (40, b"data: [DONE]\n\n"),
]


def test_broken_rules_of_strict_clients_are_listed() -> None:
    assert row(*BROKEN)["violations"] == ["missing_choices", "missing_role"]
    assert row(*BROKEN[:1])["violations"] == []  # a truncated stream may lack what its end would have had
    assert row(*BROKEN, uncaptured=1000)["violations"] is None
    assert row((10, b'{"choices": []}'), response=head(content_type="application/json"))["violations"] is None


def test_a_stream_that_its_client_has_in_part_is_not_checked() -> None:
    """OpenAI's `GET /responses/ID?stream=true&starting_after=5` continues a stream."""
    rest = [
        (10, b'data: {"type":"response.output_text.delta","item_id":"m","output_index":0,"content_index":0,"delta":"b"}\n\n'),
        (20, b'data: {"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}\n\n'),
    ]  # fmt: skip
    for method, is_checked in (("GET", False), ("POST", True)):
        records = [opened(A, path="/v1/responses/r", method=method), *exchange(*rest)[1:]]
        (found,) = tables(records)["streams"].to_dicts()
        assert (found["violations"] is not None) == is_checked


def test_look_of_claude_code_for_the_host_is_no_request() -> None:
    head_records = [
        opened(A, method="HEAD", path="/"),
        Frames(A, 1, [], head(404, "application/json")),
        closed(A, 2, end_ns=MS, request_bytes=0),
    ]
    other = exchange(
        (10, b'{"object":"list","data":[]}'), response=head(200, "application/json"), path="/v1/models"
    )
    other = [msgspec.structs.replace(record, stream=B) for record in other]
    other[0] = msgspec.structs.replace(other[0], method="GET")  # type: ignore[call-arg]
    found = {row["path"]: row for row in tables(head_records, other)["streams"].to_dicts()}
    assert [(row["operation"], row["objective"]) for row in found.values()] == [
        ("web", None),
        (None, DEFAULT.name),
    ]


def test_rate_limits_of_the_headers_have_columns_also_with_a_429() -> None:
    limits = [
        ("x-ratelimit-limit-tokens", "1000"), ("x-ratelimit-remaining-tokens", "0"), ("x-ratelimit-reset-tokens", "2s"),
        ("retry-after", "3"),
    ]  # fmt: skip
    answer = head(429, "application/json")
    answer = ResponseHeaders(429, [*answer.headers, *limits], 7 * MS)
    found = row((8, b'{"error": {"type": "rate_limit_error"}}'), response=answer)
    assert found["outcome"] == "http_error"
    assert (found["tokens_limit"], found["tokens_remaining"], found["tokens_reset_ns"]) == (
        1000,
        0,
        2007 * MS,
    )
    assert (found["retry_after_ns"], found["requests_limit"], found["quota"]) == (3000 * MS, None, None)


def test_the_delay_that_gemini_asks_for_survives_redaction() -> None:
    body = (
        b'{"error": {"code": 429, "message": "quota of secret", "status": "RESOURCE_EXHAUSTED", "details": ['
        b'{"@type": "x.com/google.rpc.Help"}, {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "34.07s"}]}}'
    )
    path = "/v1beta/models/gemini:generateContent"
    records = exchange((8, body), response=head(429, "application/json"), path=path)
    found = tables(redacted(records))["streams"].to_dicts()
    assert [one["retry_after_ns"] for one in found] == [34_070_000_000]
