"""The official SDKs receive the same through the tap as without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.e2e.running import Up, simulator, up

VARYING_FIELDS = {"id", "created", "created_at", "completed_at"}
"""Fields that differ between two responses to the same request."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Up]]:
    with (
        simulator("--seed", "7") as upstream,
        up(f"sim={upstream}", tmp_path_factory.mktemp("sdk") / "data") as instance,
    ):
        yield upstream, instance


def forced(request_id: str, **what: Any) -> dict[str, str]:
    return {
        "x-request-id": request_id,
        "x-simulate": json.dumps({"ttft_ms": 5, "gap_ms": 1, "fault": "none", **what}),
    }


def without_varying_fields(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_varying_fields(v) for k, v in value.items() if k not in VARYING_FIELDS}
    return [without_varying_fields(v) for v in value] if isinstance(value, list) else value


def openai_chunks(base: str, headers: dict[str, str]) -> list[Any]:
    client = openai.OpenAI(base_url=f"{base}/v1", api_key="sk-client", max_retries=0)
    stream = client.chat.completions.create(
        model="atlas-large",
        messages=[{"role": "user", "content": "What is a stream gauge?"}],
        stream=True,
        stream_options={"include_usage": True},
        extra_headers=headers,
    )
    return [without_varying_fields(chunk.model_dump()) for chunk in stream]


def anthropic_events(base: str, headers: dict[str, str]) -> list[Any]:
    client = anthropic.Anthropic(base_url=base, api_key="sk-client", max_retries=0)
    stream = client.messages.create(
        model="claude-sim",
        max_tokens=200,
        messages=[{"role": "user", "content": "What is a stream gauge?"}],
        stream=True,
        extra_headers=headers,
    )
    return [without_varying_fields(event.model_dump()) for event in stream]


@pytest.mark.parametrize(
    "what", [{"tokens": 20}, {"tokens": 12, "tool_calls": 1}, {"tokens": 9, "reasoning_tokens": 6}]
)
def test_openai_sdk_receives_the_same_with_and_without_the_tap(
    running: tuple[str, Up], what: dict[str, int]
) -> None:
    upstream, instance = running
    name = "openai-" + "-".join(f"{k}{v}" for k, v in what.items())
    direct = openai_chunks(upstream, forced(name, **what))
    tapped = openai_chunks(instance.tap, forced(name, **what))
    assert tapped == direct
    (row,) = instance.rows(1, f"request_id = '{name}'")
    assert row["dialect"] == "openai_chat"
    assert row["outcome"] == "ok"
    usage = direct[-1]["usage"]
    assert (row["input_tokens"], row["output_tokens"]) == (usage["prompt_tokens"], usage["completion_tokens"])
    assert row["text_chars"] == sum(
        len(c["choices"][0]["delta"].get("content") or "") for c in direct if c["choices"]
    )


@pytest.mark.parametrize("what", [{"tokens": 20}, {"tokens": 12, "tool_calls": 1}])
def test_anthropic_sdk_receives_the_same_with_and_without_the_tap(
    running: tuple[str, Up], what: dict[str, int]
) -> None:
    upstream, instance = running
    name = "anthropic-" + "-".join(f"{k}{v}" for k, v in what.items())
    direct = anthropic_events(upstream, forced(name, **what))
    tapped = anthropic_events(instance.tap, forced(name, **what))
    assert tapped == direct
    (row,) = instance.rows(1, f"request_id = '{name}'")
    assert row["dialect"] == "anthropic_messages"
    assert row["outcome"] == "ok"
    (delta,) = [e for e in direct if e["type"] == "message_delta"]
    assert row["output_tokens"] == delta["usage"]["output_tokens"]
    assert row["finish_reason"] == delta["delta"]["stop_reason"]


def test_error_reaches_the_sdk_unchanged_and_is_in_the_row(running: tuple[str, Up]) -> None:
    upstream, instance = running
    caught = []
    for base in (upstream, instance.tap):
        with pytest.raises(openai.RateLimitError) as error:
            openai_chunks(base, forced("limited", fault="http_429"))
        caught.append(without_varying_fields(error.value.body))
    assert caught[0] == caught[1]
    (row,) = instance.rows(1, "request_id = 'limited'")
    assert (row["outcome"], row["http_status"], row["error_phase"]) == ("http_error", 429, "pre_headers")


def test_client_disconnect_is_a_client_abort(running: tuple[str, Up]) -> None:
    _, instance = running
    client = openai.OpenAI(base_url=f"{instance.tap}/v1", api_key="sk-client", max_retries=0)
    stream = client.chat.completions.create(
        model="atlas-large",
        messages=[{"role": "user", "content": "hello"}],
        stream=True,
        extra_headers=forced("leaver", tokens=400, gap_ms=20),
    )
    for _, _chunk in zip(range(4), stream, strict=False):
        pass
    stream.close()
    (row,) = instance.rows(1, "request_id = 'leaver'")
    assert row["outcome"] == "client_abort"
    assert row["error_phase"] == "mid_stream"


def test_client_id_distinguishes_clients_without_storing_keys(
    running: tuple[str, Up], tmp_path: Path
) -> None:
    _, instance = running
    for number, key in enumerate(("sk-one", "sk-two", "sk-one")):
        client = openai.OpenAI(base_url=f"{instance.tap}/v1", api_key=key, max_retries=0)
        for _ in client.chat.completions.create(
            model="m",
            messages=[{"role": "user", "content": "x"}],
            stream=True,
            extra_headers=forced(f"client-{number}", tokens=3),
        ):
            pass
    rows = instance.rows(3, "request_id LIKE 'client-%'")
    ids = {row["request_id"]: row["client_id"] for row in rows}
    assert ids["client-0"] == ids["client-2"] != ids["client-1"]
    for path in instance.data.rglob("*"):
        if path.is_file():
            assert b"sk-one" not in path.read_bytes(), path


def messages(turns: int) -> list[Any]:
    found: list[Any] = []
    for number in range(turns):
        found += [
            {"role": "user", "content": f"Question {number}"},
            {"role": "assistant", "content": "Answer."},
        ]
    return found[:-1]


def test_session_and_turn_of_openai_and_anthropic_requests(running: tuple[str, Up]) -> None:
    """In a header, in `metadata`, and in a chain of `previous_response_id`."""
    _, instance = running
    ours = openai.OpenAI(base_url=f"{instance.tap}/v1", api_key="sk-client", max_retries=0)
    theirs = anthropic.Anthropic(base_url=instance.tap, api_key="sk-client", max_retries=0)
    session, quick = "11111111-2222-4333-8444-555555555555", {"tokens": 3}
    previous = None
    for turn in (1, 2):
        for _ in ours.chat.completions.create(
            model="m",
            messages=messages(turn),
            stream=True,
            extra_headers={**forced(f"session-header-{turn}", **quick), "x-session-id": session},
        ):
            pass
        for _ in ours.chat.completions.create(
            model="m",
            messages=messages(turn),
            stream=True,
            metadata={"session_id": session},
            extra_headers=forced(f"session-metadata-{turn}", **quick),
        ):
            pass
        for _ in theirs.messages.create(
            model="m",
            max_tokens=9,
            messages=messages(turn),
            stream=True,
            metadata={"user_id": f"user_1_account__session_{session}"},
            extra_headers=forced(f"session-anthropic-{turn}", **quick),
        ):
            pass
        for event in ours.responses.create(
            model="m",
            input=f"Question {turn}",
            stream=True,
            previous_response_id=previous,
            extra_headers=forced(f"session-response-{turn}", **quick),
        ):
            previous = event.response.id if event.type == "response.completed" else previous
    rows = instance.rows(8, "request_id LIKE 'session-%'")
    found = {row["request_id"].removeprefix("session-"): (row["session_id"], row["turn"]) for row in rows}
    (named,) = {found[f"{how}-{turn}"][0] for how in ("header", "metadata", "anthropic") for turn in (1, 2)}
    (chained,) = {found[f"response-{turn}"][0] for turn in (1, 2)}
    assert named
    assert chained
    assert named != chained
    assert {name: turn for name, (_, turn) in found.items()} == {
        f"{how}-{turn}": turn for how in ("header", "metadata", "anthropic", "response") for turn in (1, 2)
    }
    for path in instance.data.rglob("*"):
        if path.is_file() and path.parent.parent.name != "log":  # the record log is not redacted
            assert session.encode() not in path.read_bytes(), path
