"""Which of the servers' own names in `server_stats` mean what: source → name → column of the view `server_timing`.

Values in `server_stats` are already in the column's unit (`streamgauge.analytics.dialects.server_stats`). Rules:

- `ttft_ns` and `total_ns` start when the server receives the request. A time that starts later is not mapped to them: vLLM's
  TTFT starts when the request is scheduled, and is its prefill; Groq's total does not include the queue.
- `queue_ns` is all time before the prefill, and so includes the loading of the model by Ollama.
- `prefill_start_ns` and `prefill_end_ns` are instants on one clock of the server. The view subtracts them.
- Other names stay in `server_stats` only.
"""

from __future__ import annotations

from streamgauge.analytics.schema.sql_quoting import literal

_FIREWORKS = {
    "prefill-queue-duration": "queue_ns", "prefill-duration": "prefill_ns", "generation-duration": "decode_ns",
    "server-time-to-first-token": "ttft_ns", "server-processing-time": "total_ns",
    "cached-prompt-tokens": "kv_cache_hit_tokens",
}  # fmt: skip
_PHASES = {"queue_time": "queue_ns", "prompt_time": "prefill_ns", "completion_time": "decode_ns"}
_BEDROCK = {
    "firstByteLatency": "ttft_ns",
    "invocationLatency": "total_ns",
    "outputTokenCount": "output_tokens",
}

SERVER_TIMING_NAMES: dict[str, dict[str, str]] = {
    # vLLM; Bedrock Converse
    "metrics": {
        "queue_time_ms": "queue_ns", "time_to_first_token_ms": "prefill_ns", "generation_time_ms": "decode_ns",
        "speculative_decoding.num_draft_tokens": "draft_tokens",
        "speculative_decoding.num_accepted_draft_tokens": "accepted_draft_tokens",
        "latencyMs": "total_ns",
    },
    # SGLang
    "meta_info": {
        "queue_time": "queue_ns", "forward_entry_time": "prefill_start_ns", "prefill_finished_time": "prefill_end_ns",
        "e2e_latency": "total_ns", "cached_tokens": "kv_cache_hit_tokens", "completion_tokens": "output_tokens",
        "spec_num_proposed_drafts": "draft_tokens", "spec_num_correct_drafts": "accepted_draft_tokens",
    },
    # NVIDIA Dynamo
    "nvext.timing": {
        "prefill_wait_time_ms": "queue_ns", "prefill_time_ms": "prefill_ns", "ttft_ms": "ttft_ns",
        "total_time_ms": "total_ns", "kv_hit_rate": "kv_cache_hit_share",
    },
    # TensorRT-LLM: one server, or disaggregated
    "server-timing": {
        "server_queue": "queue_ns", "server_ttft": "ttft_ns", "server_e2e": "total_ns",
        "disagg_queue": "queue_ns", "disagg_ttft": "ttft_ns",
    },
    # llama.cpp
    "timings": {
        "prompt_ms": "prefill_ns", "predicted_ms": "decode_ns", "cache_n": "kv_cache_hit_tokens",
        "predicted_n": "output_tokens", "draft_n": "draft_tokens", "draft_n_accepted": "accepted_draft_tokens",
    },
    "ollama": {
        "load_duration": "queue_ns", "prompt_eval_duration": "prefill_ns", "eval_duration": "decode_ns",
        "total_duration": "total_ns", "eval_count": "output_tokens",
    },
    # LM Studio
    "stats": {
        "time_to_first_token": "ttft_ns", "time_to_first_token_seconds": "ttft_ns", "generation_time": "decode_ns",
        "total_output_tokens": "output_tokens", "total_draft_tokens_count": "draft_tokens",
        "accepted_draft_tokens_count": "accepted_draft_tokens",
    },
    "perf_metrics": _FIREWORKS,
    "fireworks_headers": _FIREWORKS,
    # Groq, with several forms of its usage; SambaNova; mistral.rs
    "x_groq": _PHASES,
    "usage": {
        **_PHASES, "time_to_first_token": "ttft_ns", "time_to_first_token_ms": "ttft_ns", "total_latency": "total_ns",
        "total_prompt_time_sec": "prefill_ns", "total_completion_time_sec": "decode_ns", "total_time_sec": "total_ns",
    },
    # Cerebras
    "time_info": {**_PHASES, "total_time": "total_ns"},
    "amazon-bedrock-invocationMetrics": _BEDROCK,
    # Spans of vLLM, SGLang and the Claude API (`streamgauge.analytics.intake.server_spans`)
    "span": {
        "time_in_queue": "queue_ns", "time_in_model_prefill": "prefill_ns", "time_in_model_decode": "decode_ns",
        "time_to_first_token": "ttft_ns", "time_to_first_chunk": "ttft_ns", "e2e": "total_ns", "duration": "total_ns",
    },
    # Hugging Face TGI
    "tgi_headers": {"queue-time-ms": "queue_ns", "total-time-ms": "total_ns"},
}  # fmt: skip

MAX_VALUE = 4 * 10**18
"""Larger values are ignored: they are absurd, and sums of two would not fit into BIGINT."""
SERVER_NAMES = ", ".join(
    f"({literal(source)}, {literal(name)}, {literal(column)})"
    for source, names in SERVER_TIMING_NAMES.items()
    for name, column in names.items()
)
"""Rows of (source, name, column name) as SQL."""
_VALUES = {name: None for names in SERVER_TIMING_NAMES.values() for name in names.values()}
_REPLACED = ("prefill_ns", "decode_ns", "ttft_ns", "total_ns")
SERVER_VALUES = ",\n        ".join(
    f"arg_max(value{'' if name.endswith('_share') else '::BIGINT'}, coalesce(seq, -1)) FILTER (meaning = '{name}') "
    f"AS {'own_' * (name in _REPLACED)}{name}"
    for name in _VALUES
)
"""The last value of each name as SQL. Those that the view may compute from others have the prefix `own_`."""
