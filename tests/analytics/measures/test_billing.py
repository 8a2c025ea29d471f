"""What providers bill: tokens, searches, their own cost, tier, speed and region. The same with and without redaction."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.analytics.dialects.usage_reports import response_of
from tests.analytics.redacted_streams import exchange, measured, redacted

JSON = (("content-type", "application/json"),)


def sse(*events: dict[str, Any]) -> bytes:
    return b"".join(
        f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()
        if "type" in event
        else f"data: {json.dumps(event)}\n\n".encode()
        for event in events
    )


def row(body: bytes, path: str, *, request: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    """The row of a stream. It is equal after redaction."""
    records = exchange([body], path=path, request=json.dumps(request or {"model": "m"}).encode(), **more)
    [found] = measured(records, capture=["*"])["streams"]
    [of_redacted] = measured(redacted(records))["streams"]
    assert {name: value for name, value in found.items() if of_redacted[name] != value} == {}
    return found


def of_body(
    schema: str, usage: dict[str, Any], request: dict[str, Any] | None = None, **members: Any
) -> dict[str, Any]:
    path, body = response_of(schema, usage)
    return row(json.dumps(body | members).encode(), path, request=request, headers=JSON)


def columns(found: dict[str, Any], *names: str) -> tuple[Any, ...]:
    return tuple(found[name] for name in names)


def counts(found: dict[str, Any]) -> tuple[Any, ...]:
    return columns(found, "input_tokens", "output_tokens", "token_source")


def messages(*usages: dict[str, Any]) -> bytes:
    first, *others = usages
    return sse(
        {"type": "message_start", "message": {"id": "msg_1", "model": "claude-b4", "usage": first}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
        *({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage} for usage in others),
        {"type": "message_stop"},
    )  # fmt: skip


def iteration(kind: str, inputs: int, outputs: int, **more: Any) -> dict[str, Any]:
    return {"type": kind, "input_tokens": inputs, "output_tokens": outputs, **more}


def test_a_compaction_is_billed() -> None:
    usage = {
        "input_tokens": 300,
        "output_tokens": 20,
        "iterations": [iteration("compaction", 5_000, 70), iteration("message", 300, 20)],
    }
    found = row(messages({"input_tokens": 300, "output_tokens": 1}, usage), "/v1/messages")
    assert counts(found) == (5_300, 90, "usage")


def test_iterations_have_cache_reads_and_writes() -> None:
    writes = {
        "cache_creation_input_tokens": 50,
        "cache_creation": {"ephemeral_5m_input_tokens": 20, "ephemeral_1h_input_tokens": 30},
    }
    usage = {
        "input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0,
        "iterations": [
            iteration("compaction", 100, 7, cache_read_input_tokens=900, cache_creation_input_tokens=0),
            iteration("message", 10, 5, cache_read_input_tokens=0, **writes),
        ],
    }  # fmt: skip
    found = row(messages({"input_tokens": 10, "output_tokens": 1}, usage), "/v1/messages")
    assert counts(found) == (1_060, 12, "usage")
    assert columns(found, "cached_input_tokens", "cache_write_tokens", "cache_write_1h_tokens") == (
        900,
        50,
        30,
    )


def test_iterations_are_cumulative_over_the_events() -> None:
    first = {"output_tokens": 4, "iterations": [iteration("message", 100, 4)]}
    last = {"output_tokens": 9, "iterations": [iteration("message", 100, 4), iteration("message", 120, 5)]}
    found = row(messages({"input_tokens": 100, "output_tokens": 1}, first, last), "/v1/messages")
    assert counts(found) == (220, 9, "usage")


def test_a_declined_attempt_before_a_fallback_is_billed() -> None:
    usage = {
        "input_tokens": 80, "output_tokens": 30,
        "iterations": [iteration("message", 75, 2), iteration("fallback_message", 80, 30, model="claude-b3")],
    }  # fmt: skip
    assert counts(of_body("anthropic", usage)) == (155, 32, "usage")


def test_an_attempt_without_output_is_free() -> None:
    refused = iteration("message", 75, 0, model="claude-b4", cache_read_input_tokens=7)
    usage = {
        "input_tokens": 80, "output_tokens": 30,
        "iterations": [refused, iteration("fallback_message", 80, 30, model="claude-b3")],
    }  # fmt: skip
    found = of_body("anthropic", usage)
    assert counts(found) == (80, 30, "usage")
    assert columns(found, "other_model", "other_input_tokens", "other_output_tokens") == ("claude-b3", 80, 30)


def test_an_iteration_of_the_own_model_is_none_of_another() -> None:
    own, other = (
        iteration("message", 80, 30, model="claude-b4"),
        iteration("advisor_message", 9, 8, model="claude-b5"),
    )
    usage = {"input_tokens": 80, "output_tokens": 30, "iterations": [own, other]}
    found = of_body("anthropic", usage)
    assert columns(found, "other_model", "other_input_tokens", "other_output_tokens") == ("claude-b5", 9, 8)


OTHERS = (
    "other_model", "other_input_tokens", "other_cached_input_tokens", "other_cache_write_tokens", "other_cache_write_1h_tokens",
    "other_output_tokens",
)  # fmt: skip


def test_tokens_of_an_advisor_are_those_of_its_model() -> None:
    cached = {
        "cache_read_input_tokens": 9,
        "cache_creation_input_tokens": 8,
        "cache_creation": {"ephemeral_1h_input_tokens": 3},
    }
    advice = iteration("advisor_message", 800, 1_600, model="claude-b5", **cached)
    usage = {
        "input_tokens": 500, "output_tokens": 90,
        "iterations": [iteration("message", 400, 80), advice, iteration("message", 100, 10)],
    }  # fmt: skip
    found = row(messages({"input_tokens": 400, "output_tokens": 1}, usage), "/v1/messages")
    assert counts(found) == (1_317, 1_690, "usage")
    assert columns(found, *OTHERS) == ("claude-b5", 817, 9, 8, 3, 1_600)
    assert found["tps_e2e"] == pytest.approx(
        90 * 1e9 / found["last_output_ns"]
    )  # the advice was not generated meanwhile
    usage["iterations"] += [advice | {"model": "claude-b6"}]
    found = of_body("anthropic", usage)
    assert columns(found, *OTHERS) == (None, 1_634, 18, 16, 6, 3_200)


def test_iterations_below_the_counts_beside_them_are_inconsistent() -> None:
    usage = {"input_tokens": 80, "output_tokens": 30, "iterations": [iteration("message", 80, 3)]}
    found = of_body("anthropic", usage)
    assert columns(found, "token_source", "unexplained_tokens") == ("usage_inconsistent", 27)
    usage = {
        "input_tokens": {},
        "output_tokens": 30,
        "iterations": [{"output_tokens": 31, "input_tokens": []}],
    }
    assert counts(of_body("anthropic", usage)) == (None, 31, "usage")


def test_pages_that_a_tool_read_are_input() -> None:
    usage = {
        "promptTokenCount": 15,
        "toolUsePromptTokenCount": 700,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 2,
        "totalTokenCount": 722,
    }
    assert counts(of_body("gemini", usage)) == (715, 7, "usage")
    usage = {
        "total_input_tokens": 15,
        "total_tool_use_tokens": 700,
        "total_output_tokens": 5,
        "total_thought_tokens": 2,
        "total_tokens": 722,
    }
    assert counts(of_body("interactions", usage)) == (715, 7, "usage")


@pytest.mark.parametrize(
    ("thoughts", "total", "expected"),
    [
        (20, 160, (110, 50, "usage")),
        (20, 180, (110, 70, "usage")),
        (60, 160, (110, 110, "usage_inconsistent")),
    ],
)
def test_total_shows_whether_candidates_contain_the_thoughts(
    thoughts: int, total: int, expected: tuple[Any, ...]
) -> None:
    usage = {
        "promptTokenCount": 100, "toolUsePromptTokenCount": 10, "candidatesTokenCount": 50, "thoughtsTokenCount": thoughts,
        "totalTokenCount": total,
    }  # fmt: skip
    assert counts(of_body("gemini", usage)) == expected


def test_images_that_a_tool_read_are_images_of_the_input() -> None:
    usage = {
        "promptTokenCount": 300, "toolUsePromptTokenCount": 600, "candidatesTokenCount": 5, "totalTokenCount": 905,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 42}, {"modality": "IMAGE", "tokenCount": 258}],
        "toolUsePromptTokensDetails": [{"modality": "IMAGE", "tokenCount": 516}, {"modality": "TEXT", "tokenCount": 84}],
        "cachedContentTokenCount": 258, "cacheTokensDetails": [{"modality": "IMAGE", "tokenCount": 258}],
    }  # fmt: skip
    found = of_body("gemini", usage)
    assert columns(found, "input_image_tokens", "cached_image_tokens", "token_source") == (774, 258, "usage")


def test_a_last_chunk_without_counts_hides_none() -> None:
    usage = {"promptTokenCount": 15, "candidatesTokenCount": 5, "totalTokenCount": 21}
    chunks = [
        {
            "candidates": [{"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP"}],
            "usageMetadata": usage,
        },
        {"usageMetadata": {"trafficType": "ON_DEMAND_PRIORITY"}},
    ]
    found = row(sse(*chunks), "/v1beta/models/m:streamGenerateContent")
    assert counts(found) == (15, 5, "usage_inconsistent")
    assert found["service_tier"] == "priority"


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(
            {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11, "reasoning_tokens": 20}, (5, 26, "usage"),
            id="a part above its whole is separate",
        ),
        pytest.param(
            {"prompt_tokens": 5, "completion_tokens": 60, "total_tokens": 65, "reasoning_tokens": 20, "num_search_queries": 3},
            (5, 80, "usage"), id="Perplexity's completion excludes reasoning of any size",
        ),
        pytest.param(
            {"prompt_tokens": 5, "completion_tokens": 60, "total_tokens": 65, "reasoning_tokens": 20}, (5, 60, "usage"),
            id="other reasoning is part of it",
        ),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 912, "prompt_tokens_details": {"cached_tokens": 900}},
            (910, 2, "usage"), id="the total shows that the prompt excludes cached input",
        ),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 900}},
            (10, 2, "usage_inconsistent"), id="more cached than read",
        ),
        pytest.param(
            {"prompt_tokens": 10, "completion_tokens": 2, "input_tokens_details": {"audio_tokens": 8, "image_tokens": 8}},
            (10, 2, "usage_inconsistent"), id="modalities above the input",
        ),
        pytest.param({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 13}, (10, 2, "usage_inconsistent"), id="a larger total"),
        pytest.param({"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": None}, (10, 2, "usage"), id="no total"),
    ],
)  # fmt: skip
def test_a_report_is_checked_against_itself(usage: dict[str, Any], expected: tuple[Any, ...]) -> None:
    assert counts(of_body("chat", usage)) == expected


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens_details": {"cached_tokens": 0}, "prompt_cache_hit_tokens": 64, "prompt_cache_miss_tokens": 36},
        {"prompt_tokens_details": {"cached_tokens": 64}, "prompt_cache_hit_tokens": 0},
        {"prompt_tokens_details": {"cached_tokens": 0}, "cache_read_input_tokens": 64},
    ],
)  # fmt: skip
def test_cached_tokens_count_wherever_a_gateway_leaves_them(usage: dict[str, Any]) -> None:
    found = of_body("chat", {"prompt_tokens": 100, "completion_tokens": 9, "total_tokens": 109} | usage)
    assert columns(found, "input_tokens", "cached_input_tokens", "token_source") == (100, 64, "usage")


@pytest.mark.parametrize("schema", ["chat", "responses"])
@pytest.mark.parametrize(("total", "expected"), [(1_240, (840, 400, 130)), (190, (110, 80, 30))])
def test_tokens_of_orchestration_are_billed_where_the_total_has_them(
    schema: str, total: int, expected: tuple[int, ...]
) -> None:
    of_input, of_output = ("input", "output") if schema == "responses" else ("prompt", "completion")
    usage = {
        f"{of_input}_tokens": 110,
        f"{of_output}_tokens": 80,
        "total_tokens": total,
        f"{of_input}_tokens_details": {
            "cached_tokens": 30,
            "orchestration_input_tokens": 730,
            "orchestration_input_cached_tokens": 100,
        },
        f"{of_output}_tokens_details": {"orchestration_output_tokens": 320},
    }
    found = of_body(schema, usage)
    assert columns(found, "input_tokens", "output_tokens", "cached_input_tokens") == expected
    assert found["token_source"] == "usage"


def test_input_that_was_counted_before_the_cache_is_unclear() -> None:
    """Anthropic leaves the cache out of the input. Some servers count all of the prompt, before they know of the cache."""
    last = {"output_tokens": 9, "cache_read_input_tokens": 900, "cache_creation_input_tokens": 0}
    found = row(messages({"input_tokens": 1_000, "output_tokens": 0}, last), "/v1/messages")
    assert counts(found) == (1_000, 9, "usage_inconsistent")
    assert found["cached_input_tokens"] == 900
    none = last | {"cache_read_input_tokens": 0}
    found = row(messages({"input_tokens": 1_000, "output_tokens": 0}, none), "/v1/messages")
    assert counts(found) == (1_000, 9, "usage")
    counted = last | {"input_tokens": 100}
    found = row(messages({"input_tokens": 1_000, "output_tokens": 0}, counted), "/v1/messages")
    assert counts(found) == (1_000, 9, "usage")


METRICS = {
    "inputTokenCount": 4,
    "outputTokenCount": 9,
    "cacheReadInputTokenCount": 20,
    "cacheWriteInputTokenCount": 7,
}


@pytest.mark.parametrize(
    ("first", "last"),
    [({}, {}), ({"input_tokens": 4, "output_tokens": 1}, {"output_tokens": 9})],
)
def test_metrics_of_bedrock_have_the_counts_that_messages_leave_out(
    first: dict[str, int], last: dict[str, int]
) -> None:
    body = messages(first, last).rpartition(b"event:")[0]
    body += sse({"type": "message_stop", "amazon-bedrock-invocationMetrics": METRICS})
    found = row(body, "/v1/messages")
    assert counts(found) == (31, 9, "usage")
    assert columns(found, "cached_input_tokens", "cache_write_tokens") == (20, 7)


def test_metrics_of_bedrock_are_the_usage_of_a_chat() -> None:
    first = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]}
    last = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    body = sse(first, last | {"amazon-bedrock-invocationMetrics": METRICS}) + b"data: [DONE]\n\n"
    found = row(body, "/v1/chat/completions")
    assert counts(found) == (31, 9, "usage")
    assert columns(found, "cached_input_tokens", "cache_write_tokens") == (20, 7)


@pytest.mark.parametrize(
    ("usage", "timings", "expected"),
    [
        (None, {"cache_n": 90, "prompt_n": 10, "predicted_n": 5}, (100, 5, 90)),
        ({"prompt_tokens": 100, "completion_tokens": 5}, {"cache_n": 90, "prompt_n": 10}, (100, 5, 90)),
        (None, {"prompt_n": 10, "predicted_n": 5}, (None, None, None)),
    ],
)
def test_timings_of_llama_cpp_have_the_counts(
    usage: dict[str, int] | None, timings: dict[str, int], expected: tuple[int | None, ...]
) -> None:
    first = {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": "Hi"}}]}
    last = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "timings": timings}
    body = sse(first, last | ({"usage": usage} if usage else {})) + b"data: [DONE]\n\n"
    found = row(body, "/v1/chat/completions")
    assert columns(found, "input_tokens", "output_tokens", "cached_input_tokens") == expected


def test_members_of_the_response_may_be_beside_the_type() -> None:
    usage = {"input_tokens": 8, "output_tokens": 3, "total_tokens": 11}
    flat = {"type": "response.completed", "id": "resp_1", "model": "m", "status": "completed", "usage": usage}
    body = sse({"type": "response.output_text.delta", "item_id": "i", "delta": "Hi"}, flat)
    found = row(body, "/v1/responses")
    assert counts(found) == (8, 3, "usage")
    assert columns(found, "outcome", "response_model") == ("ok", "m")


def test_images_have_all_output_that_no_detail_divides() -> None:
    usage = {"input_tokens": 50, "output_tokens": 400, "total_tokens": 450}
    body = {"created": 1, "data": [{"b64_json": "aGk="}]}
    found = row(json.dumps(body | {"usage": usage}).encode(), "/v1/images/generations", headers=JSON)
    assert columns(found, "output_tokens", "output_image_tokens") == (400, 400)
    usage["output_tokens_details"] = {"image_tokens": 390, "text_tokens": 10}  # type: ignore[assignment]
    found = row(json.dumps(body | {"usage": usage}).encode(), "/v1/images/generations", headers=JSON)
    assert columns(found, "output_tokens", "output_image_tokens") == (400, 390)


def test_tokens_of_the_image_tool_are_those_of_an_unnamed_model() -> None:
    usage = {"input_tokens": 1_800, "output_tokens": 200, "total_tokens": 2_000}
    images = {"input_tokens": 50, "output_tokens": 7_000, "total_tokens": 7_050}
    response = {"id": "resp_1", "status": "completed", "usage": usage}
    response["tool_usage"] = {"image_gen": images, "web_search": {"num_requests": 2}}
    text = {"type": "response.output_text.delta", "item_id": "i", "delta": "Hi"}
    found = row(sse(text, {"type": "response.completed", "response": response}), "/v1/responses")
    assert counts(found) == (1_850, 7_200, "usage")
    assert columns(found, "other_model", "other_input_tokens", "other_output_tokens", "web_searches") == (
        None, 50, 7_000, 2,
    )  # fmt: skip
    assert found["tps_e2e"] == pytest.approx(200 * 1e9 / found["last_output_ns"])
    for counted in ({"image_gen": {"input_tokens": 0, "output_tokens": 0}}, {"image_gen": None}, {}):
        found = of_body("responses", usage, tool_usage=counted)
        assert columns(found, "input_tokens", "output_tokens", "token_source") == (1_800, 200, "usage")
        assert found["other_input_tokens"] is None


def test_bedrock_leaves_the_cache_out_of_the_input() -> None:
    usage = {
        "inputTokens": 10,
        "outputTokens": 5,
        "totalTokens": 15,
        "cacheReadInputTokens": 90,
        "cacheWriteInputTokens": 0,
    }
    found = of_body("bedrock", usage, serviceTier={"type": "flex"})
    assert counts(found) == (100, 5, "usage")
    assert found["service_tier"] == "flex"
    within = usage | {"inputTokens": 100, "totalTokens": 105}
    assert counts(of_body("bedrock", within)) == (100, 5, "usage")
    assert counts(of_body("bedrock", usage | {"totalTokens": 16}))[2] == "usage_inconsistent"


def test_cohere_bills_fewer_tokens_than_the_model_reads() -> None:
    usage = {
        "tokens": {"input_tokens": 906, "output_tokens": 77},
        "billed_units": {"input_tokens": 23, "output_tokens": 41, "search_units": 2},
    }
    found = row(
        sse(
            {"type": "message-start", "id": "c"},
            {"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": usage}},
        ),
        "/v2/chat",
    )
    assert counts(found) == (906, 77, "usage")
    assert columns(found, "billed_input_tokens", "billed_output_tokens", "web_searches") == (23, 41, None)
    ended = {
        "event_type": "stream-end",
        "is_finished": True,
        "finish_reason": "COMPLETE",
        "response": {"meta": usage},
    }
    found = row(
        json.dumps(ended).encode() + b"\n", "/v1/chat", headers=(("content-type", "application/stream+json"),)
    )
    assert columns(found, "output_tokens", "billed_input_tokens", "billed_output_tokens") == (77, 23, 41)


def test_perplexity_bills_citations_as_input() -> None:
    usage = {
        "prompt_tokens": 108, "completion_tokens": 3_000, "total_tokens": 3_108, "citation_tokens": 7_000, "num_search_queries": 74,
        "reasoning_tokens": 70_000, "cost": {"input_tokens_cost": 0.014, "output_tokens_cost": 0.024, "total_cost": 0.038},
    }  # fmt: skip
    found = of_body("chat", usage)
    assert columns(found, "input_tokens", "billed_input_tokens", "web_searches", "reported_cost") == (
        108,
        7_108,
        74,
        0.038,
    )


def search(number: int, kind: str | None = "search", status: str = "completed") -> dict[str, Any]:
    action = {"action": {"type": kind, "query": f"question {number}"}} if kind else {}
    return {"id": f"ws_{number}", "type": "web_search_call", "status": status, **action}


def test_completed_searches_of_responses_are_counted() -> None:
    items = [
        search(0),
        search(1, "open_page"),
        search(2, "find_in_page"),
        search(3, status="failed"),
        search(4, None),
    ]
    done = [
        {"type": "response.output_item.done", "output_index": n, "item": item} for n, item in enumerate(items)
    ]
    final = {
        "type": "response.completed",
        "response": {
            "id": "r",
            "status": "completed",
            "output": items,
            "tool_usage": {"web_search": {"num_requests": 0}},
        },
    }
    assert row(sse(*done, final), "/v1/responses")["web_searches"] == 2
    assert row(sse(*done), "/v1/responses")["web_searches"] == 2  # a stream that ended early
    assert row(sse(final), "/v1/responses")["web_searches"] == 2
    assert row(json.dumps(final["response"]).encode(), "/v1/responses", headers=JSON)["web_searches"] == 2


def test_the_response_may_count_its_searches_itself() -> None:
    final = {"status": "completed", "output": [search(0)], "tool_usage": {"web_search": {"num_requests": 3}}}
    assert row(json.dumps(final).encode(), "/v1/responses", headers=JSON)["web_searches"] == 3


CHAT_TEN = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


@pytest.mark.parametrize(
    ("usage", "searches"),
    [
        (
            CHAT_TEN
            | {
                "server_side_tool_usage_details": {"web_search_calls": 3, "x_search_calls": 2, "mcp_calls": 4}
            },
            5,
        ),
        (CHAT_TEN | {"num_sources_used": 12}, 12),
        (CHAT_TEN | {"server_tool_use": {"web_search_requests": 2}}, 2),
        (CHAT_TEN | {"plugins": {"search": {"count": 1, "strategy": "turbo"}}}, 1),
        (CHAT_TEN, None),
    ],
    ids=("xAI", "xAI live search", "OpenRouter", "DashScope", "none"),
)
def test_searches_that_a_report_counts(usage: dict[str, Any], searches: int | None) -> None:
    assert of_body("chat", usage)["web_searches"] == searches


def test_interactions_count_their_searches() -> None:
    usage = {
        "total_input_tokens": 1,
        "grounding_tool_count": [{"type": "google_search", "count": 4}, {"type": "google_maps", "count": 9}],
    }
    assert of_body("interactions", usage)["web_searches"] == 4


@pytest.mark.parametrize(("model", "searches"), [("gemini-3-pro", 2), ("gemini-2.5-flash", 1)])
def test_grounding_is_billed_by_query_since_gemini_3(model: str, searches: int) -> None:
    grounded = {
        "candidates": [
            {"content": {"parts": [{"text": "Hi"}]}, "finishReason": "STOP", "groundingMetadata": {"webSearchQueries": ["a", "b", ""]}}
        ],
        "modelVersion": model, "responseId": "r",
    }  # fmt: skip
    assert row(sse(grounded), "/v1beta/models/m:streamGenerateContent")["web_searches"] == searches


@pytest.mark.parametrize(
    ("queries", "searches"),
    [
        ([["tea"], ["tea", "tea", "milk"]], 2),  # of one length: redaction keeps which are equal
        ([["tea", "jam"], ["jam", "tea"]], 2),
        ([["tea"], []], 1),
        ([["", None]], None),
    ],
)
def test_a_query_of_grounding_is_billed_once(queries: list[list[str]], searches: int | None) -> None:
    chunks = [
        {"candidates": [{"content": {"parts": [{"text": "Hi"}]}, "groundingMetadata": {"webSearchQueries": each}}], "responseId": "r"}
        for each in queries
    ]  # fmt: skip
    chunks[-1]["candidates"][0]["finishReason"] = "STOP"  # type: ignore[index]
    path = "/v1beta/models/gemini-3-pro:streamGenerateContent"
    assert row(sse(*chunks), path)["web_searches"] == searches


def test_search_models_of_chat_completions_search_once() -> None:
    assert of_body("chat", CHAT_TEN, model="gpt-4o-search-preview-2025-03-11")["web_searches"] == 1
    assert of_body("chat", CHAT_TEN, model="gpt-4o-research")["web_searches"] is None


@pytest.mark.parametrize(
    ("usage", "cost"),
    [
        ({"cost_in_usd_ticks": 37_756_000}, 0.0037756),
        ({"cost": 0.0005, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.0005}}, 0.0005),
        ({"cost": 0.0005, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.01}}, 0.0105),
        ({"estimated_cost": 0.002}, 0.002),
        (
            {
                "cost": {
                    "input_tokens_cost": 0.01,
                    "output_tokens_cost": 0.02,
                    "request_cost": 0.005,
                    "total_cost": 0.035,
                }
            },
            0.035,
        ),
        ({"cost_in_usd_ticks": 0}, None),
        ({"cost": -1}, None),
        ({"cost": "free"}, None),
    ],
    ids=("xAI", "OpenRouter", "OpenRouter, own key", "DeepInfra", "Perplexity", "Azure", "negative", "text"),
)
def test_the_cost_is_the_provider_s_own_in_usd(usage: dict[str, Any], cost: float | None) -> None:
    assert of_body("chat", CHAT_TEN | usage)["reported_cost"] == pytest.approx(cost)


def test_amounts_that_are_not_their_total_are_no_cost() -> None:
    found = of_body(
        "chat",
        CHAT_TEN | {"cost": {"input_tokens_cost": 0.01, "output_tokens_cost": 0.02, "total_cost": 0.9}},
    )
    assert columns(found, "reported_cost", "token_source") == (None, "usage_inconsistent")


def test_venice_states_the_cost_beside_the_usage() -> None:
    found = row(
        sse({"id": "c", "model": "m", "choices": [], "cost": {"usd": 0.25, "diem": 0}, "usage": CHAT_TEN}),
        "/v1/chat/completions",
    )
    assert found["reported_cost"] == 0.25


def chunks(*tiers: Any) -> bytes:
    delta = [{"index": 0, "delta": {"content": "Hi"}}]
    return sse(
        *({"id": "c", "model": "m", "choices": delta, "service_tier": tier} for tier in tiers[:-1]),
        {"id": "c", "model": "m", "choices": [], "usage": CHAT_TEN, "service_tier": tiers[-1]},
    )


@pytest.mark.parametrize(
    ("served", "asked", "tier"),
    [
        (("flex", "flex"), "priority", "flex"),
        (("auto", None, "priority"), "auto", "priority"),
        ((None, None), "flex", "flex"),
        ((None, ""), "auto", None),
        ((None, 3), None, None),
        (("two words", None), None, None),
    ],
)
def test_the_tier_that_served_counts_before_the_one_asked_for(
    served: Any, asked: str | None, tier: str | None
) -> None:
    found = row(chunks(*served), "/v1/chat/completions", request={"model": "m", "service_tier": asked})[
        "service_tier"
    ]
    assert found == tier


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"service_tier": "priority", "speed": "fast", "inference_geo": "us"}, ("priority", "fast", "us")),
        ({"service_tier": "standard", "inference_geo": "not_available"}, ("standard", "standard", "eu")),
        ({}, ("standard", "standard", "eu")),
    ],
)
def test_anthropic_states_tier_speed_and_region(usage: dict[str, Any], expected: tuple[str, ...]) -> None:
    request = {"model": "m", "service_tier": "standard_only", "speed": "standard", "inference_geo": "eu"}
    found = of_body("anthropic", {"input_tokens": 1, "output_tokens": 2, **usage}, request)
    assert columns(found, "service_tier", "speed", "inference_region") == expected


@pytest.mark.parametrize(
    ("schema", "members", "usage"),
    [
        ("responses", {"service_tier": "flex"}, {}),
        ("interactions", {"service_tier": "FLEX"}, {}),
        ("gemini", {}, {"serviceTier": "flex"}),
        ("gemini", {}, {"trafficType": "ON_DEMAND_FLEX"}),
        ("chat", {}, {"service_tier": "flex"}),
    ],
)
def test_places_of_the_tier(schema: str, members: dict[str, Any], usage: dict[str, Any]) -> None:
    assert of_body(schema, usage, **members)["service_tier"] == "flex"


def test_the_tier_asked_of_bedrock_is_an_object() -> None:
    assert of_body("bedrock", {}, {"serviceTier": {"type": "priority"}})["service_tier"] == "priority"


def test_arguments_of_all_choices_and_tools_are_counted() -> None:
    def call(choice: int, arguments: str) -> dict[str, Any]:
        return {
            "index": choice,
            "delta": {
                "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}]
            },
        }

    body = sse(
        {"id": "c", "model": "m", "choices": [call(0, '{"a":1}'), call(1, '{"bc":22}')]},
        {"choices": [call(0, "  ")]},
    )
    assert row(body, "/v1/chat/completions")["tool_call_chars"] == 7 + 9 + 2
    body = sse(
        {
            "type": "response.output_item.added",
            "output_index": 0,
            "item": {"type": "code_interpreter_call", "id": "ci"},
        },
        {
            "type": "response.code_interpreter_call_code.delta",
            "output_index": 0,
            "item_id": "ci",
            "delta": "print(1)",
        },
    )
    assert row(body, "/v1/responses")["tool_call_chars"] == 8
