"""`cache_miss_reason` and its columns: those that providers report, and those by comparison."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import pytest

from streamgauge.analytics.measures.cache_misses import rule_of
from streamgauge.analytics.measures.measure import measure
from streamgauge.analytics.measures.session_prompts import SessionPrompts
from streamgauge.ingest.records import AnyRecord, ResponseHeaders, Segment
from tests import prompt_bodies
from tests.analytics.prompts import chat_usage, finished, marked, prompt_of, request, segment
from tests.analytics.stream_records import stream_id

HIT, MISS = 0.98, 0.0
INPUT = 20_000
Found = tuple[str | None, str | None, str | None, int | None]


def anthropic_events(
    cached: int, written: int = 0, *, fresh: int = 3, diagnostics: dict[str, Any] | None = None
) -> list[bytes]:
    usage = {
        "input_tokens": fresh,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": written,
        "output_tokens": 1,
    }
    start = {"id": "msg_1", "model": "claude-sonnet-4-5", "usage": usage} | (
        {"diagnostics": diagnostics} if diagnostics else {}
    )
    events = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]  # fmt: skip
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]


def responses_events(diagnostics: dict[str, Any], cached: int = 0) -> list[bytes]:
    usage = {"input_tokens": INPUT, "output_tokens": 2, "input_tokens_details": {"cached_tokens": cached}}
    response = {
        "id": "resp_1",
        "model": "gpt-5.6",
        "prompt_cache_diagnostics": diagnostics,
        "usage": usage,
        "status": "completed",
    }
    events = [
        {"type": "response.created", "response": {"id": "resp_1", "model": "gpt-5.6"}},
        {"type": "response.output_text.delta", "output_index": 0, "delta": "hi"},
        {"type": "response.completed", "response": response},
    ]  # fmt: skip
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in events]


def found(known: SessionPrompts, *streams: Sequence[AnyRecord]) -> list[Found]:
    """(reason, segment, source, tokens) of streams that are measured one by one."""
    columns = ("cache_miss_reason", "cache_miss_segment", "cache_miss_source", "cache_missed_tokens")
    return [measure(finished(one), prompts=known)["streams"].select(columns).row(0) for one in streams]


def chat(number: int, prompt: Sequence[Segment], share: float, **more: Any) -> list[AnyRecord]:
    """A request to OpenAI that reads a share of its input from the cache."""
    usage = chat_usage(INPUT, int(share * INPUT))
    return request(number, prompt, usage=usage, **{"server_address": "api.openai.com", **more})


def messages(
    number: int, prompt: Sequence[Segment], cached: int, written: int, **more: Any
) -> list[AnyRecord]:
    """A request to Anthropic."""
    events = anthropic_events(cached, written, diagnostics=more.pop("diagnostics", None))
    return request(
        number, prompt, events=events, path="/v1/messages", server_address="api.anthropic.com", **more
    )


def compared(*streams: Sequence[AnyRecord]) -> tuple[str | None, str | None]:
    """Reason and segment of the last stream."""
    reason, of, source, _ = found(SessionPrompts(), *streams)[-1]
    assert source == (None if reason is None else "compared")
    return reason, of


def replaced(prompt: Sequence[Segment], place: int, *by: Segment) -> list[Segment]:
    return [*prompt[:place], *by, *prompt[place + 1 or len(prompt) :]]


BEFORE = prompt_of(5)
"""Places: 0 model, 1 settings, 2 to 41 tools, 42 system, from 43 messages."""
INSTANCE = "x-worker-id"


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (replaced(BEFORE, 0, segment("model", "other")), ("model_changed", "model")),
        (replaced(BEFORE, 1, segment("settings", "none", name="tool_choice")), ("settings_changed", "settings tool_choice")),
        (replaced(BEFORE, 4, segment("tool", "edited", name="mcp__files__t2")), ("tools_changed", "tool 2 mcp__files__t2")),
        (replaced(BEFORE, 4), ("tools_changed", "tool 2 mcp__files__t2")),
        (replaced(BEFORE, 4, segment("tool", "new", name="New"), BEFORE[4]), ("tools_changed", "tool 2 New")),
        (replaced(BEFORE, 41), ("tools_changed", "tool 39 mcp__files__t39")),
        (replaced(BEFORE, 42, segment("tool", "new", name="New"), BEFORE[42]), ("tools_changed", "tool 40 New")),
        ([*BEFORE[:2], BEFORE[3], BEFORE[2], *BEFORE[4:]], ("tools_changed", "order of tools")),
        (replaced(BEFORE, 42, segment("system", "Today is Monday.")), ("system_changed", "system 0")),
        (replaced(BEFORE, 42, BEFORE[42], segment("system", "more")), ("system_changed", "system 1")),
        (replaced(BEFORE, 46, segment("tool_result", "edited", 2, role="user")), ("messages_changed", "message 2")),
        (BEFORE[:43] + BEFORE[46:], ("messages_changed", "message 0")),
        (BEFORE, ("unexplained", None)),
    ],
)  # fmt: skip
def test_first_segment_that_changed(after: list[Segment], expected: tuple[str, str]) -> None:
    assert compared(chat(1, BEFORE, MISS), chat(2, after, MISS)) == expected


def test_hit_has_no_reason_and_missed_tokens_are_what_could_have_been_read() -> None:
    changed = replaced(prompt_of(6), 42, segment("system", "new"))
    rows = found(
        SessionPrompts(),
        chat(1, BEFORE, MISS),
        chat(2, prompt_of(6), HIT),
        chat(3, changed, 0.25),
        chat(4, changed, HIT),
    )
    assert rows[0] == ("not_comparable", None, "compared", None)
    assert rows[1] == rows[3] == (None, None, None, None)
    assert rows[2] == ("system_changed", "system 0", "compared", 15_000)


def test_small_change_at_the_end_is_a_hit() -> None:
    changed = replaced(BEFORE, -1, segment("text", "reminder", 10, role="user"))
    assert compared(chat(1, BEFORE, MISS), chat(2, changed, 0.95)) == (None, None)


def test_unknown_cached_tokens_have_no_reason() -> None:
    unknown = request(2, replaced(BEFORE, 0, segment("model", "other")), usage=chat_usage(INPUT, None))
    assert compared(chat(1, BEFORE, MISS), unknown) == (None, None)


def test_cached_tokens_that_are_left_out_are_0_after_a_hit_of_the_same_provider() -> None:
    def left_out(number: int, system: str) -> list[AnyRecord]:
        prompt = replaced(BEFORE, 42, segment("system", system))
        return request(number, prompt, usage=chat_usage(INPUT, None), server_address="api.openai.com")

    rows = found(
        SessionPrompts(),
        chat(1, BEFORE, MISS),
        chat(2, BEFORE, HIT),
        left_out(3, "new"),
        left_out(4, "newer"),
    )
    assert rows[2] == ("system_changed", "system 0", "compared", INPUT)
    assert rows[3] == ("system_changed", "system 0", "compared", INPUT)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({"at_s": 700}, "expired"),
        ({"at_s": 500}, "unexplained"),
        ({"gateway": "other"}, "other_provider"),
        ({"response": ResponseHeaders(200, [("content-type", "text/event-stream"), (INSTANCE, "w2")], 50)}, "other_instance"),
        ({"at_s": 1.0005}, "parallel_request"),
    ],
)  # fmt: skip
def test_unchanged_prompt(more: dict[str, Any], expected: str) -> None:
    first = chat(
        1,
        BEFORE,
        MISS,
        response=ResponseHeaders(200, [("content-type", "text/event-stream"), (INSTANCE, "w1")], 50),
    )
    assert compared(first, chat(2, BEFORE, MISS, **more)) == (expected, None)


def test_prompt_below_the_least_length() -> None:
    short = request(1, BEFORE, usage=chat_usage(1_000, 0), server_address="api.openai.com")
    assert compared(short) == ("too_short", None)
    assert compared(short, chat(2, BEFORE, MISS)) == ("too_short", None)


def test_marks_of_anthropic() -> None:
    plain, once = BEFORE, marked(BEFORE, 41, 42, -1)
    first = messages(1, once, 0, 19_000)
    assert compared(messages(1, plain, 0, 0), messages(2, plain, 0, 0)) == ("too_short", None)
    big = {"events": anthropic_events(0, 0, fresh=INPUT)}
    none = request(1, plain, path="/v1/messages", server_address="api.anthropic.com", **big)
    assert compared(none) == ("no_marker", None)
    assert compared(first, messages(2, marked(prompt_of(6), 41, 42, -1), 18_900, 100)) == (None, None)
    longer = messages(2, marked(BEFORE, 41, 42, -1, ttl="1h"), 0, 19_000)
    assert compared(first, longer) == ("marker_changed", "tool 39 mcp__files__t39")
    far = marked([*BEFORE, *(segment("text", f"more {n}", 11 + n, role="user") for n in range(21))], -1)
    assert compared(first, messages(2, far, 0, 19_000)) == ("marker_changed", "message 10")
    assert compared(first, messages(2, once, 0, 19_000, at_s=290)) == ("unexplained", None)
    assert compared(first, messages(2, once, 0, 19_000, at_s=302)) == ("expired", None)
    hour = messages(1, marked(BEFORE, -1, ttl="1h"), 0, 19_000)
    assert compared(hour, messages(2, marked(BEFORE, -1, ttl="1h"), 0, 19_000, at_s=302)) == (
        "unexplained",
        None,
    )


def test_side_calls_and_subagents_are_no_change() -> None:
    side = [segment("model", "haiku"), segment("system", "title"), segment("text", "q", 0, role="user")]
    sub = [*prompt_of(0)[:42], segment("system", "subagent"), segment("text", "task", 0, role="user")]
    rows = found(
        SessionPrompts(), chat(1, prompt_of(0), MISS), chat(2, side, MISS), chat(3, sub, MISS), chat(4, prompt_of(0), HIT),
        chat(5, replaced(prompt_of(0), 42, segment("system", "new")), MISS),
    )  # fmt: skip
    assert [row[:2] for row in rows] == [
        ("first_request", None), ("first_request", None), ("first_request", None), (None, None), ("system_changed", "system 0"),
    ]  # fmt: skip


def test_messages_that_the_server_keeps() -> None:
    head = prompt_of(0)[:-1]
    result = [*head, segment("tool_result", "r", 0, role="user")]
    follows = {"previous_response_id": "c1", "has_history": False}
    question = [*head, segment("text", "q", 0, role="user")]
    assert compared(chat(1, question, MISS), chat(2, result, MISS, conversation=follows)) == (
        "unexplained",
        None,
    )
    changed = replaced(result, 42, segment("system", "new"))
    assert compared(chat(1, question, MISS), chat(2, changed, MISS, conversation=follows)) == (
        "system_changed",
        "system 0",
    )
    broken = {"previous_response_id": "resp_9", "has_history": False}
    assert compared(chat(1, question, MISS), chat(2, result, MISS, conversation=broken)) == (
        "not_comparable",
        None,
    )


def test_conversation_that_began_before_is_not_comparable() -> None:
    assert compared(chat(1, BEFORE, MISS)) == ("not_comparable", None)
    assert compared(chat(1, prompt_of(0), MISS, conversation={"turns": 3})) == ("not_comparable", None)
    assert compared(chat(1, prompt_of(0), MISS)) == ("first_request", None)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"type": "tools_changed", "cache_missed_input_tokens": 4_000}, ("tools_changed", None, "provider", 4_000)),
        ({"type": "system_changed", "cache_missed_input_tokens": 4_000}, ("system_changed", "system 0", "provider", 4_000)),
        ({"type": "previous_message_not_found"}, ("system_changed", "system 0", "compared", 19_000)),
        ({"type": "unavailable"}, ("system_changed", "system 0", "compared", 19_000)),
        (None, ("system_changed", "system 0", "compared", 19_000)),
    ],
)  # fmt: skip
def test_reason_of_anthropic(told: dict[str, Any] | None, expected: Found) -> None:
    known = SessionPrompts()
    changed = marked(replaced(BEFORE, 42, segment("system", "new")), -1)
    first, second = (
        messages(1, marked(BEFORE, -1), 0, 19_000), messages(2, changed, 0, 19_000, diagnostics={"cache_miss_reason": told}),
    )  # fmt: skip
    assert found(known, first, second)[1] == expected


def test_reason_of_openai_and_agreement() -> None:
    changed = replaced(BEFORE, 42, segment("system", "new"))
    known, totals = SessionPrompts(), Counter[str]()
    rows = []
    for number, (prompt, told) in enumerate([
        (BEFORE, {"type": "comparison_response_not_found"}),
        (changed, {"type": "cache_miss", "reason": "input_changed", "cache_missed_tokens": 5_000, "comparison_reusable_tokens": 6_000}),
        (replaced(changed, 1, segment("settings", "low", name="reasoning")), {"type": "cache_miss", "reason": "reasoning_effort_changed"}),
        (changed, {"type": "cache_hit"}),
        (changed, {"type": "unavailable"}),
    ]):  # fmt: skip
        records = request(number, prompt, events=responses_events(told), path="/v1/responses")
        tables = measure(finished(records), prompts=known)
        rows.append(
            tables["streams"].select("cache_miss_reason", "cache_miss_source", "cache_missed_tokens").row(0)
        )
        totals.update(
            dict(tables["internal.counter_parts"].iter_rows()) if "internal.counter_parts" in tables else {}
        )
    assert rows[:3] == [
        ("not_comparable", "compared", None), ("input_changed", "provider", 5_000), ("reasoning_effort_changed", "provider", INPUT),
    ]  # fmt: skip
    assert totals == {"cache_miss_reasons.both": 2, "cache_miss_reasons.equal": 1}


@pytest.mark.parametrize(
    ("provider", "models", "least_tokens", "lifetime_s"),
    [
        ("anthropic", "claude-haiku-4-5-20251001 claude-opus-4-6", 4096, 300),
        ("aws.bedrock", "us.anthropic.claude-opus-4-7 anthropic.claude-3-5-haiku-20241022-v1:0", 2048, 300),
        ("openrouter", "anthropic/claude-sonnet-4.5 anthropic/claude-opus-4.8", 1024, 300),
        ("anthropic", "claude-sonnet-5 claude-sonnet-5-20260930 claude-opus-4-20250514 claude-opus-4-1", 1024, 300),
        ("anthropic", "claude-sonnet-5-5 claude-opus-5-5 claude-fable-5-1 claude-mythos-5 claude-haiku-5-5", 512, 300),
        ("openai", "gpt-5.6-sol gpt-6-astra", 1024, 1800),
        ("openai", "gpt-5.5 gpt-5-codex gpt-4.1-mini", 1024, 86_400),
        ("azure.ai.openai", "gpt-5.5-2026-04-24", 1024, 86_400),
        ("azure.ai.openai", "gpt-5.4 gpt-4.1", 1024, 600),
        ("openai", "gpt-4o o4-mini", 1024, 600),
        ("gcp.gemini", "gemini-2.5-pro gemini-2.5-flash", 2048, 86_400),
        ("gcp.vertex_ai", "gemini-3.8-flash google/gemini-3.1-pro-preview", 4096, 86_400),
        ("groq", "openai/gpt-oss-120b", 128, 7200),
        ("deepseek", "deepseek-v4-pro", 64, None),
        ("alibaba", "qwen3-max", 256, None),
        (None, "", 0, None),
    ],
)  # fmt: skip
def test_rules_are_those_that_the_providers_document(
    provider: str | None, models: str, least_tokens: int, lifetime_s: int | None
) -> None:
    for model in models.split() or [None]:
        rule = rule_of(provider, model)
        assert (rule.least_tokens, rule.lifetime_s) == (least_tokens, lifetime_s), model


def test_breakpoints_of_openai_may_be_far_apart() -> None:
    """It looks for all earlier ones, Anthropic only within 20 blocks."""
    far = marked([*BEFORE, *(segment("text", f"more {n}", 11 + n, role="user") for n in range(21))], -1)
    assert compared(chat(1, marked(BEFORE, -1), MISS), chat(2, far, MISS)) == ("unexplained", None)


# -- mutated prompts of agents ------------------------------------------------------------------------------------------------


def segments_of(parts: Sequence[prompt_bodies.Expected]) -> list[Segment]:
    return [
        Segment(part.kind, part.name, part.message, len(part.content), blake2b(part.content.encode(), digest_size=8).digest(),
                part.role, part.mark)
        for part in parts
    ]  # fmt: skip


def is_continued(before: Sequence[prompt_bodies.Expected], after: Sequence[prompt_bodies.Expected]) -> bool:
    """Whether all of the first prompt, or all of the second one, is in the other, wherever the marks are: the cache had what it needs."""
    plain = [[part._replace(mark=None) for part in parts] for parts in (before, after)]
    at = prompt_bodies.first_difference(*plain)
    return at is not None and at >= min(len(before), len(after))


def expected_reason(
    mutation: str, before: Sequence[prompt_bodies.Expected], after: Sequence[prompt_bodies.Expected]
) -> tuple[str, str | None]:
    """What the mutation changed, by the lists of parts."""
    at = prompt_bodies.first_difference(before, after)
    if mutation == "other model":
        return "model_changed", "model"
    if at is None:
        return "unexplained", None
    old, new = before[at], after[at]
    match mutation:
        case "order of tools":
            return "tools_changed", "order of tools"
        case "tool choice":
            return "settings_changed", f"settings {new.name}"
        case "space in the system text" | "date in the system text":
            return "system_changed", f"system {sum(part.kind == 'system' for part in before[:at])}"
        case "ttl":
            number = sum(part.kind == old.kind for part in before[:at])
            return "marker_changed", f"{old.kind} {number}" + (f" {old.name}" if old.name else "")
    return "messages_changed", f"message {min(old.message, new.message)}"


def test_mutated_prompts() -> None:
    rng = random.Random(57)
    streams: list[list[AnyRecord]] = []
    expected: dict[str, tuple[str, tuple[str, str | None]]] = {}
    while len(expected) < 1_000:
        number = 2 * len(expected)
        dialect = rng.choice(list(prompt_bodies.DIALECTS))
        mutation, mutate = rng.choice(list(prompt_bodies.MUTATIONS.items()))
        one = prompt_bodies.prompt(rng, long=rng.random() < 0.5)
        other = mutate(rng, one)
        before, after = (prompt_bodies.rendered(each, dialect)[1] for each in (one, other))
        if is_continued(before, after):
            continue
        for n, each, parts in ((number, one, before), (number + 1, other, after)):
            streams.append(chat(n, segments_of(parts), MISS, session=f"session-{number}", model=each.model))
        expected[stream_id(number + 1)] = mutation, expected_reason(mutation, before, after)
    rows = measure(finished(*streams), prompts=SessionPrompts())["streams"]
    found = rows.select("stream_id", "cache_miss_reason", "cache_miss_segment").rows()
    wrong = Counter(
        (expected[key], *of) for key, *of in found if key in expected and expected[key][1] != tuple(of)
    )
    assert wrong.total() <= 10, wrong
