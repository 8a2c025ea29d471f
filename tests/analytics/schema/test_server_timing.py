"""The views `server_timing` and `server_drift`: what each server sends, as its documentation shows it, by common names."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from streamgauge.analytics.dialects.events import ServerStat
from streamgauge.analytics.dialects.server_stats import reported_ttft_ns
from streamgauge.analytics.schema.server_timing_names import SERVER_TIMING_NAMES
from streamgauge.ingest.records import ResponseHeaders
from tests.analytics.corpus import SKIP_REASON, recordings
from tests.analytics.measures.test_measure import DONE, exchange, tables
from tests.analytics.stores import plain_tables
from tests.analytics.stream_records import chunk, finish_chunk, head

MS = 1_000_000
CHAT, JSON = "/v1/chat/completions", "application/json"


def sse(value: dict[str, Any], name: str = "") -> bytes:
    event = f"event: {name}\n" if name else ""
    return f"{event}data: {json.dumps(value)}\n\n".encode()


def chat(*last: bytes) -> bytes:
    return chunk("Hello") + finish_chunk() + b"".join(last)


def usage_with(**members: Any) -> bytes:
    return chat(chunk(choices=[], usage={"prompt_tokens": 9, "completion_tokens": 3, **members}), DONE)


def headers(*fields: tuple[str, str], content_type: str = JSON) -> ResponseHeaders:
    return ResponseHeaders(200, [("content-type", content_type), *fields], 50)


WHOLE_ANSWER = json.dumps(
    {"id": "c", "model": "m", "choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
).encode()
VLLM_METRICS = {
    "time_to_first_token_ms": 85.2, "generation_time_ms": 1240.5, "queue_time_ms": 12.3, "mean_itl_ms": 9.1,
    "tokens_per_second": 103.2,
    "speculative_decoding": {
        "mean_acceptance_length": 1.2, "acceptance_histogram": [39, 1, 0, 3], "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10, "num_draft_tokens": 129, "num_spec_tokens": 3,
    },
}  # fmt: skip
VLLM = {
    "source": "metrics", "queue_ns": 12.3, "prefill_ns": 85.2, "ttft_ns": 97.5, "decode_ns": 1240.5, "total_ns": 1338,
    "draft_tokens": 129, "accepted_draft_tokens": 10,
}  # fmt: skip
SGLANG_META = {
    "id": "a1", "finish_reason": {"type": "stop", "matched": 2}, "prompt_tokens": 40, "completion_tokens": 12,
    "cached_tokens": 32, "weight_version": "default", "e2e_latency": 0.5, "queue_time": 0.02,
    "forward_entry_time": 1000.0, "prefill_finished_time": 1000.1, "spec_verify_ct": 4,
    "spec_num_proposed_drafts": 16, "spec_num_correct_drafts": 8, "spec_accept_rate": 0.5,
}  # fmt: skip
SGLANG = {
    "source": "meta_info", "queue_ns": 20, "prefill_ns": 100, "ttft_ns": 120, "decode_ns": 380, "total_ns": 500,
    "kv_cache_hit_tokens": 32, "draft_tokens": 16, "accepted_draft_tokens": 8, "output_tokens": 12,
}  # fmt: skip
FIREWORKS_METRICS = {
    "prompt-tokens": "90", "cached-prompt-tokens": "64", "server-time-to-first-token": "0.35",
    "server-processing-time": "1.5", "prefill-queue-duration": "0.05", "prefill-duration": "0.25",
    "generation-queue-duration": "0.01", "generation-duration": "1.1", "speculation-acceptance": "0.8,0.5",
    "backend-host": "p1",
}  # fmt: skip
FIREWORKS = {
    "queue_ns": 50, "prefill_ns": 250, "ttft_ns": 350, "decode_ns": 1100, "total_ns": 1500, "kv_cache_hit_tokens": 64,
}  # fmt: skip
GROQ_TIMES = {"queue_time": 0.018, "prompt_time": 0.002, "completion_time": 0.022, "total_time": 0.024}
GROQ = {"queue_ns": 18, "prefill_ns": 2, "ttft_ns": 20, "decode_ns": 22, "total_ns": 42}
LLAMA_TIMINGS = {
    "cache_n": 804, "prompt_n": 4, "prompt_ms": 128.301, "prompt_per_token_ms": 32.07, "prompt_per_second": 31.1,
    "predicted_n": 665, "predicted_ms": 20629.211, "predicted_per_second": 32.2, "draft_n": 604, "draft_n_accepted": 515,
}  # fmt: skip
LLAMA = {
    "source": "timings", "prefill_ns": 128.301, "decode_ns": 20629.211, "kv_cache_hit_tokens": 804, "output_tokens": 665,
    "draft_tokens": 604, "accepted_draft_tokens": 515,
}  # fmt: skip
TRTLLM_TIMING = "server_queue;dur=1.250000, server_ttft;dur=8.500000, server_e2e;dur=24.000000"
TRTLLM = {
    "source": "server-timing", "queue_ns": 1.25, "prefill_ns": 7.25, "ttft_ns": 8.5, "decode_ns": 15.5, "total_ns": 24,
}  # fmt: skip

SERVERS: dict[str, tuple[str, bytes, ResponseHeaders, dict[str, Any]]] = {
    # server → (path, body, response headers, expected columns; times in ms)
    "vLLM": (CHAT, chat(chunk(choices=[], metrics=VLLM_METRICS), DONE), head(), VLLM),
    "vLLM Responses": (
        "/v1/responses",
        sse({"type": "response.output_text.delta", "output_index": 0, "delta": "Hi"})
        + sse({"type": "response.completed", "response": {"id": "r", "status": "completed", "metrics": VLLM_METRICS}}),
        head(), VLLM,
    ),
    "SGLang": (
        "/generate",
        sse({"text": "Hel", "meta_info": {"id": "a1", "prompt_tokens": 40, "completion_tokens": 1, "finish_reason": None}})
        + sse({"text": "Hello", "meta_info": SGLANG_META}) + DONE,
        head(), SGLANG,
    ),
    "Dynamo": (
        CHAT,
        chunk("Hello") + (
            chunk(choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}], nvext={
                "worker_id": {"prefill_worker_id": 1, "decode_worker_id": 2},
                "timing": {
                    "request_received_ms": 1_777_312_800_000, "prefill_wait_time_ms": 2.5, "prefill_time_ms": 18.0,
                    "ttft_ms": 20.5, "total_time_ms": 55.0, "kv_hit_rate": 0.875,
                },
            }) + DONE
        ),
        head(),
        {
            "source": "nvext.timing", "queue_ns": 2.5, "prefill_ns": 18, "ttft_ns": 20.5, "decode_ns": 34.5, "total_ns": 55,
            "kv_cache_hit_share": 0.875,
        },
    ),
    "TensorRT-LLM": (
        CHAT, chat(DONE, sse({"Server-Timing": TRTLLM_TIMING, "X-TRTLLM-Start-End-Time": "x"}, "trtllm.perf_metrics")),
        head(), TRTLLM,
    ),
    "TensorRT-LLM, not streamed": (CHAT, WHOLE_ANSWER, headers(("server-timing", TRTLLM_TIMING)), TRTLLM),
    "llama.cpp": (CHAT, chat(chunk(choices=[], timings=LLAMA_TIMINGS), DONE), head(), LLAMA),
    "llama.cpp /completion": (
        "/completion", sse({"content": "Hi", "stop": False}) + sse({"content": "", "stop": True, "timings": LLAMA_TIMINGS}),
        head(), LLAMA,
    ),
    "Ollama": (
        "/api/chat",
        b'{"model":"m","message":{"role":"assistant","content":"Hi"},"done":false}\n'
        b'{"model":"m","done":true,"done_reason":"stop","total_duration":900000000,"load_duration":100000000,'
        b'"prompt_eval_count":26,"prompt_eval_duration":300000000,"eval_count":29,"eval_duration":450000000}\n',
        headers(content_type="application/x-ndjson"),
        {
            "source": "ollama", "queue_ns": 100, "prefill_ns": 300, "ttft_ns": 400, "decode_ns": 450, "total_ns": 900,
            "output_tokens": 29,
        },
    ),
    "Fireworks": (
        CHAT, chat(chunk(choices=[], perf_metrics=FIREWORKS_METRICS), DONE), head(), {"source": "perf_metrics", **FIREWORKS},
    ),
    "Fireworks, not streamed": (
        CHAT, WHOLE_ANSWER, headers(*((f"fireworks-{name}", value) for name, value in FIREWORKS_METRICS.items())),
        {"source": "fireworks_headers", **FIREWORKS},
    ),
    "Groq": (
        CHAT, chat(chunk(choices=[], x_groq={"id": "r", "usage": GROQ_TIMES}), DONE), head(), {"source": "x_groq", **GROQ},
    ),
    "Groq, usage": (CHAT, usage_with(**GROQ_TIMES), head(), {"source": "usage", **GROQ}),
    "Cerebras": (
        CHAT, chat(chunk(choices=[], time_info={"created": 1779147581.5, **GROQ_TIMES, "total_time": 0.05}), DONE), head(),
        {"source": "time_info", **GROQ, "total_ns": 50},
    ),
    "SambaNova": (
        CHAT, usage_with(time_to_first_token=0.09, total_latency=0.5, completion_tokens_per_sec=100.0), head(),
        {"source": "usage", "ttft_ns": 90, "decode_ns": 410, "total_ns": 500},
    ),
    "mistral.rs": (
        CHAT, usage_with(total_time_sec=0.5, total_prompt_time_sec=0.1, total_completion_time_sec=0.4, avg_tok_per_sec=9.0),
        head(), {"source": "usage", "prefill_ns": 100, "decode_ns": 400, "total_ns": 500},
    ),
    "LM Studio": (
        CHAT,
        chat(chunk(choices=[], stats={
            "tokens_per_second": 51.4, "time_to_first_token": 0.111, "generation_time": 0.954, "stop_reason": "eosFound",
            "total_draft_tokens_count": 20, "accepted_draft_tokens_count": 14,
        }), DONE),
        head(),
        {
            "source": "stats", "ttft_ns": 111, "decode_ns": 954, "total_ns": 1065, "draft_tokens": 20,
            "accepted_draft_tokens": 14,
        },
    ),
    "TGI": (
        CHAT, WHOLE_ANSWER, headers(("x-compute-type", "gpu"), ("x-queue-time", "3"), ("x-total-time", "420")),
        {"source": "tgi_headers", "queue_ns": 3, "total_ns": 420},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def tables_and_views() -> Iterator[duckdb.DuckDBPyConnection]:
    with plain_tables() as con:
        yield con


@pytest.fixture
def con(tables_and_views: duckdb.DuckDBPyConnection) -> duckdb.DuckDBPyConnection:
    for table in ("streams", "server_stats"):
        tables_and_views.execute(f"DELETE FROM {table}")
    return tables_and_views


def store(con: duckdb.DuckDBPyConnection, *reads: tuple[int, bytes], **options: Any) -> None:
    made = tables(exchange(*reads, **options))
    for table in ("streams", "server_stats"):
        con.register("made", made[table])
        con.execute(f"INSERT INTO {table} BY NAME FROM made")
        con.unregister("made")


def rows(con: duckdb.DuckDBPyConnection, view: str) -> list[dict[str, Any]]:
    """The rows of a view, without columns that are NULL, times in ms."""
    return [
        {
            name: value / MS if name.endswith("_ns") else value
            for name, value in row.items()
            if value is not None and name != "stream_id"
        }
        for row in con.execute(f"FROM {view}").pl().to_dicts()
    ]


@pytest.mark.parametrize("server", SERVERS)
def test_server_timing_has_what_the_server_sends(server: str, con: duckdb.DuckDBPyConnection) -> None:
    path, body, response, expected = SERVERS[server]
    store(con, (1, body), path=path, response=response)
    (found,) = rows(con, "server_timing")
    assert found == {name: pytest.approx(value) for name, value in expected.items()}
    stats = con.execute("SELECT seq, source, name, value FROM server_stats").fetchall()
    ttft_ns = reported_ttft_ns(
        (seq, ServerStat(source, name, value, "", "")) for seq, source, name, value in stats
    )
    assert ttft_ns == pytest.approx(expected["ttft_ns"] * MS if "ttft_ns" in expected else None)


def test_every_mapped_source_is_covered_by_a_server() -> None:
    covered = {expected["source"] for *_, expected in SERVERS.values()}
    # Spans: tests/analytics/intake/test_server_spans.py.
    assert SERVER_TIMING_NAMES.keys() - covered == {"amazon-bedrock-invocationMetrics", "span"}


def test_bedrock_latencies_are_server_timing(con: duckdb.DuckDBPyConnection) -> None:
    stop = {
        "type": "message_stop",
        "amazon-bedrock-invocationMetrics": {
            "inputTokenCount": 8, "outputTokenCount": 4, "invocationLatency": 500, "firstByteLatency": 120,
        },
    }  # fmt: skip
    store(con, (1, sse(stop, "message_stop")), path="/v1/messages")
    (found,) = rows(con, "server_timing")
    assert found == {
        "source": "amazon-bedrock-invocationMetrics", "ttft_ns": 120, "decode_ns": 380, "total_ns": 500, "output_tokens": 4,
    }  # fmt: skip


def test_the_last_report_wins_and_absurd_values_are_ignored(con: duckdb.DuckDBPyConnection) -> None:
    first = chunk("a", timings={"predicted_n": 1, "predicted_ms": 5, "prompt_ms": 7})
    last = chunk(choices=[], timings={"predicted_n": 2, "predicted_ms": 9, "prompt_ms": -1, "cache_n": 1e250})
    store(con, (1, first + finish_chunk() + last + DONE))
    (found,) = rows(con, "server_timing")
    assert found == {"source": "timings", "prefill_ns": 7, "decode_ns": 9, "output_tokens": 2}


def test_drift_is_observed_minus_reported(con: duckdb.DuckDBPyConnection) -> None:
    timing = {"stats": {"time_to_first_token": 0.1, "total_output_tokens": 2}}
    usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 3}}
    store(con, (130, chunk("Hello")), (200, finish_chunk() + chunk(choices=[], **timing, **usage) + DONE))
    con.execute("UPDATE streams SET started_at = now() - INTERVAL 1 HOUR")
    (found,) = rows(con, "server_drift")
    assert found.pop("minute") is not None
    assert found == {
        "gateway": "gw", "model": "m", "streams": 1, "ttft_drift_p50_ns": 30, "ttft_drift_p95_ns": 30,
        "streams_with_output_tokens": 1, "observed_output_tokens": 3, "reported_output_tokens": 2,
    }  # fmt: skip


def test_streams_without_server_timing_have_no_drift(con: duckdb.DuckDBPyConnection) -> None:
    store(con, (130, chat(chunk(choices=[], timings={"prompt_ms": 7}), DONE)))
    con.execute("UPDATE streams SET started_at = now() - INTERVAL 1 HOUR")
    assert rows(con, "server_drift") == []


RECORDED = recordings("groq_chat", "cerebras_chat", "llamacpp_chat")


@pytest.mark.skipif(not RECORDED, reason=SKIP_REASON)
def test_recorded_servers_report_consistent_times(con: duckdb.DuckDBPyConnection) -> None:
    found = []
    for recording in RECORDED:
        store(con, (1, recording.body.read_bytes()))
        found += rows(con, "server_timing")
        con.execute("DELETE FROM server_stats")
    assert {row["source"] for row in found} == {"usage, x_groq", "x_groq", "time_info", "timings"}
    for row in found:
        assert row["prefill_ns"] > 0
        assert row.get("total_ns", 1e9) >= row.get("ttft_ns", 0) + row["decode_ns"] - 0.001
