"""Live audio: where an answer of Gemini Live and GPT-Live begins and ends, what it answers, who says so, and what interrupts it."""

from __future__ import annotations

import json
import random
from base64 import b64encode
from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamgauge.ingest.records import Frames, Opened
from streamgauge.ingest.websockets.live import LOUD, loudness
from streamgauge.ingest.websockets.splitter import AnswerSplitter, SplitterState, Windows
from tests.analytics.sockets import COMPRESSIONS, MS, Sent, recorded
from tests.analytics.test_websockets import OF_WIRE, answers, rows

GEMINI = "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent"
GPT = "/v1/live/sessions"


def pcm(sample: int, count: int = 1600) -> str:
    return b64encode(sample.to_bytes(2, "little", signed=True) * count).decode()


SOUND, SILENCE = pcm(9000), pcm(0)


def message(at: int, side: Any, **members: Any) -> Sent:
    return at, side, json.dumps(members).encode()


def measured(path: str, messages: Sequence[Sent], **more: Any) -> list[dict[str, Any]]:
    found = rows(recorded(messages, path=path, user_agent="voice/1", **more))
    return answers(found)


# -- Gemini Live ------------------------------------------------------------------------------------------------------


def setup(session: str | None = None) -> list[Sent]:
    return [
        message(0, "client", setup={"model": "models/gemini-live-1"}),
        message(1, "server", setupComplete={"sessionId": session} if session else {}),
    ]


def heard(at: int, audio: str) -> Sent:
    """Audio of the user: 100 ms."""
    return message(
        at, "client", realtime_input={"audio": {"data": audio, "mime_type": "audio/pcm;rate=16000"}}
    )


def content(at: int, **members: Any) -> Sent:
    return message(at, "server", serverContent=members)


def spoken(at: int) -> Sent:
    """Audio of the model: 100 ms."""
    part = {"inlineData": {"mimeType": "audio/pcm;rate=24000", "data": pcm(5000, 2400)}}
    return content(at, modelTurn={"parts": [part]})


def complete(at: int, **members: Any) -> Sent:
    usage = {
        "promptTokenCount": 20, "responseTokenCount": 10, "totalTokenCount": 30,
        "responseTokensDetails": [{"modality": "AUDIO", "tokenCount": 8}],
    }  # fmt: skip
    return message(at, "server", serverContent={"turnComplete": True, **members}, usageMetadata=usage)


def test_answer_to_speech_begins_with_the_last_loud_audio_of_the_client() -> None:
    (row,) = measured(GEMINI, [
        *setup(), heard(900, SOUND), heard(1000, SOUND), heard(1100, SILENCE), heard(1200, SILENCE),
        content(1300, inputTranscription={"text": "hello"}),
        spoken(1500), content(1510, outputTranscription={"text": "hi"}), heard(1520, SILENCE),
        content(1550, inputTranscription={"text": "bye"}),
        spoken(1600),
        content(1610, generationComplete=True), complete(1700),
    ])  # fmt: skip
    assert (row["dialect"], row["request_model"], row["speech_end"]) == (
        "gemini_live",
        "gemini-live-1",
        "audio",
    )
    assert (row["ttfb_ns"], row["first_audio_ns"], row["end_ns"]) == (500 * MS, 500 * MS, 700 * MS)
    assert (row["audio_ns"], row["event_count"], row["output_event_count"]) == (200 * MS, 5, 3)
    assert (row["outcome"], row["finish_reason"], row["silence_ns"]) == ("ok", "turn_complete", None)
    assert (row["input_tokens"], row["output_tokens"], row["output_audio_tokens"]) == (20, 10, 8)


@pytest.mark.parametrize(
    ("signals", "speech_end"),
    [
        ([message(1100, "client", realtimeInput={"activityEnd": {}})], "client"),
        ([message(1100, "client", realtime_input={"activity_end": {}})], "client"),
        ([message(1100, "server", voiceActivity={"voiceActivityType": "ACTIVITY_END"})], "server"),
        ([message(1100, "server", voiceActivityDetectionSignal={"vadSignalType": "VAD_SIGNAL_TYPE_EOS"})], "server"),
        ([message(1100, "client", realtimeInput={"text": "hi"})], None),
        ([message(1100, "client", client_content={"turns": [], "turn_complete": True})], None),
    ],
)  # fmt: skip
def test_signals_and_texts_are_time_zero_of_an_answer(signals: list[Sent], speech_end: str | None) -> None:
    (row,) = measured(GEMINI, [*setup(), heard(1000, SOUND), *signals, spoken(1500), complete(1700)])
    assert (row["first_audio_ns"], row["speech_end"]) == (400 * MS, speech_end)


def test_signals_take_precedence_over_noise() -> None:
    begin = message(800, "server", voiceActivity={"voiceActivityType": "ACTIVITY_START"})
    end = message(1100, "server", voiceActivity={"voiceActivityType": "ACTIVITY_END"})
    (row,) = measured(GEMINI, [*setup(), begin, heard(900, SOUND), end, heard(1400, SOUND), spoken(1500), complete(1700)])  # fmt: skip
    assert (row["first_audio_ns"], row["speech_end"]) == (400 * MS, "server")


def test_speech_interrupts_an_answer_and_its_silence_is_measured() -> None:
    first, second = measured(GEMINI, [
        *setup(), heard(1000, SOUND), spoken(1500), spoken(1600), heard(1650, SOUND), spoken(1700),
        content(1750, interrupted=True), complete(1760), heard(1800, SOUND), spoken(2300), complete(2400),
    ])  # fmt: skip
    assert (first["outcome"], first["finish_reason"], first["silence_ns"]) == ("ok", "interrupted", 50 * MS)
    assert (second["first_audio_ns"], second["silence_ns"], second["finish_reason"]) == (
        500 * MS,
        None,
        "turn_complete",
    )
    (by_text,) = measured(GEMINI, [
        *setup(), heard(1000, SOUND), spoken(1500), message(1650, "client", realtimeInput={"text": "stop"}),
        content(1750, interrupted=True), complete(1760),
    ])  # fmt: skip
    assert (by_text["finish_reason"], by_text["silence_ns"]) == ("interrupted", 0)


def test_result_of_a_tool_begins_another_answer_of_the_same_turn() -> None:
    call = {"functionCalls": [{"id": "c1", "name": "level", "args": {"river": "Aare"}}]}
    messages = [
        *setup(), message(1000, "client", clientContent={"turnComplete": True}), message(1300, "server", toolCall=call),
        message(1310, "server", usageMetadata={"promptTokenCount": 9, "responseTokenCount": 4}),
        message(4000, "client", tool_response={"functionResponses": [{"id": "c1", "response": {}}]}),
        spoken(4200), complete(4300),
    ]  # fmt: skip
    asked, answered = measured(GEMINI, messages)
    assert (asked["finish_reason"], asked["tool_call_count"], asked["outcome"]) == ("tool_calls", 1, "ok")
    assert (asked["end_ns"], asked["input_tokens"], asked["output_tokens"]) == (310 * MS, 9, 4)
    assert (answered["first_audio_ns"], answered["tool_call_count"]) == (200 * MS, 0)
    assert [asked["turn"], answered["turn"]] == [1, 1]
    (waiting,) = measured(GEMINI, messages[:-3])
    assert (waiting["outcome"], waiting["finish_reason"]) == ("ok", "tool_calls")
    # The model may go on while a tool runs.
    (both,) = measured(GEMINI, [*messages[:4], spoken(1400), messages[-3], spoken(4200), complete(4300)])
    assert (both["tool_call_count"], both["audio_ns"], both["finish_reason"]) == (
        1,
        200 * MS,
        "turn_complete",
    )


def test_turn_without_output_is_an_answer_only_to_a_question() -> None:
    (row,) = measured(GEMINI, [
        *setup(), complete(500), message(1000, "client", clientContent={"turnComplete": True}),
        complete(1200, turnCompleteReason="RESPONSE_REJECTED"),
    ])  # fmt: skip
    assert (row["finish_reason"], row["ttft_ns"], row["end_ns"]) == ("RESPONSE_REJECTED", None, 200 * MS)


def test_sessions_and_turns_are_known() -> None:
    found = measured(GEMINI, [
        *setup("session-1"), heard(1000, SOUND), spoken(1500), complete(1600), heard(3000, SOUND), spoken(3500), complete(3600),
    ])  # fmt: skip
    assert [row["turn"] for row in found] == [1, 2]
    assert len({row["session_id"] for row in found}) == 1
    unnamed = measured(GEMINI, [*setup(), heard(1000, SOUND), spoken(1500), complete(1600)])
    assert unnamed[0]["session_id"] not in (None, found[0]["session_id"])


@pytest.mark.parametrize(("cause", "close_by", "outcome"), [
    ("client_left", None, "client_abort"), ("upstream_reset", None, "upstream_reset"), ("complete", "server", "truncated"),
])  # fmt: skip
def test_answer_that_its_socket_ends_has_the_outcome_of_this_end(
    cause: str, close_by: Any, outcome: str
) -> None:
    sent = [*setup(), heard(1000, SOUND), spoken(1500)]
    (row,) = measured(GEMINI, sent, end=(1600, cause), close_by=close_by)
    assert row["outcome"] == outcome


# -- GPT-Live ---------------------------------------------------------------------------------------------------------

PCM = {"type": "audio/pcm", "rate": 16000}


def started(**audio: Any) -> list[Sent]:
    backend = {"type": "responses", "responses": {"model": "gpt-backend"}}
    session = {"model": "gpt-live-1", "audio": {"format": PCM, **audio}, "delegation": backend}
    return [
        message(0, "client", type="session.start", session=session),
        message(1, "server", type="session.started", session={"id": "live_1", **session}),
    ]


def said(at: int, audio: str = SOUND) -> Sent:
    """Audio of the user: 100 ms."""
    return message(at, "client", type="session.input_audio.append", audio=audio)


def sound(at: int, audio: str = SOUND) -> Sent:
    """Audio of the model: 100 ms."""
    return message(at, "server", type="session.output_audio.delta", delta=audio)


def silence(*times: int) -> list[Sent]:
    return [sound(at, SILENCE) for at in times]


def transcript(at: int, text: str) -> Sent:
    return message(at, "server", type="session.output_transcript.delta", delta=text, start_ms=at, end_ms=at)


def test_silence_divides_a_session_into_answers_and_is_part_of_none() -> None:
    first, second = measured(GPT, [
        *started(), *silence(100, 500), said(900), *silence(1000), said(1050, SILENCE),
        sound(1400), transcript(1410, "Hello"), *silence(1500, 1600), sound(1700), *silence(1800, 2300, 2750),
        said(3000), *silence(3100), sound(3300), *silence(3400, 4400),
    ])  # fmt: skip
    assert (first["dialect"], first["request_model"], first["response_model"]) == (
        "openai_live",
        "gpt-live-1",
        "gpt-live-1",
    )
    assert (first["first_audio_ns"], first["last_output_ns"], first["end_ns"]) == (
        500 * MS,
        800 * MS,
        800 * MS,
    )
    # Two of sound with the pause between them.
    assert (first["audio_ns"], first["output_event_count"], first["event_count"]) == (400 * MS, 5, 7)
    assert (first["outcome"], first["finish_reason"], first["speech_end"]) == ("ok", "silence", "audio")
    assert (second["first_audio_ns"], second["audio_ns"], second["end_ns"]) == (300 * MS, 100 * MS, 300 * MS)
    assert [first["turn"], second["turn"]] == [1, 2]
    assert first["session_id"] == second["session_id"] is not None


def test_turn_of_the_user_divides_two_answers_that_follow_soon() -> None:
    sent = [
        *started(), said(900), sound(1000), *silence(1100), said(1150), *silence(1200, 1300), sound(1400), *silence(1500, 2500),
    ]  # fmt: skip
    first, second = measured(GPT, sent)
    assert (first["end_ns"], second["first_audio_ns"]) == (100 * MS, 250 * MS)
    without = [one for one in sent if one[0] != 1150]
    assert len(measured(GPT, without)) == 1


def test_user_interrupts_an_answer_but_no_listener_who_agrees() -> None:
    talk = [*started(), said(500), sound(1000), sound(1100)]
    (row,) = measured(
        GPT, [*talk, said(1150), sound(1200), said(1250), sound(1300), said(1350), *silence(1400, 2500)]
    )
    assert (row["finish_reason"], row["silence_ns"], row["outcome"]) == ("interrupted", 150 * MS, "ok")
    (agreed,) = measured(
        GPT,
        [
            *talk,
            said(1150),
            *(sound(at) for at in range(1200, 2300, 100)),
            *silence(2300),
            said(2400),
            *silence(2500, 3400),
        ],
    )
    assert (agreed["finish_reason"], agreed["silence_ns"]) == ("silence", None)
    (after,) = measured(GPT, [*talk, *silence(1200), said(1250), *silence(1300, 2200)])
    assert (after["finish_reason"], after["silence_ns"], after["end_ns"]) == ("silence", None, 600 * MS)


def test_delegation_to_the_responses_api_is_an_answer_of_its_own() -> None:
    def nested(at: int, kind: str, **members: Any) -> Sent:
        return message(
            at, "server", type="response.event", delegation_id="d1", event={"type": kind, **members}
        )

    response = {"id": "resp_1", "object": "response", "model": "gpt-backend-1"}
    done = response | {
        "status": "completed",
        "usage": {"input_tokens": 5, "output_tokens": 7, "total_tokens": 12},
    }
    call = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "level", "arguments": ""}
    messages = [
        *started(), said(500),
        message(700, "server", type="session.delegation.created", delegation={"id": "d1", "target": "responses"}),
        nested(900, "response.created", response=response), sound(950), *silence(960, 1990),
        nested(1990, "response.output_item.added", item=call, output_index=0),
        nested(1995, "response.function_call_arguments.delta", item_id="fc", output_index=0, delta="{}"),
        nested(2000, "response.completed", response=done),
        message(3000, "client", type="response.item.create", item={"type": "function_call_output", "call_id": "c1", "output": "2"}),
        message(3001, "client", type="response.create"),
        nested(3201, "response.created", response=response | {"id": "resp_2"}),
        nested(3301, "response.output_text.delta", item_id="m", output_index=0, delta="two"),
        nested(3401, "response.completed", response=done | {"id": "resp_2"}), sound(3601), *silence(3700, 5000),
    ]  # fmt: skip
    asked, first, continued, second = measured(GPT, messages)
    assert asked["dialect"] == "openai_responses"
    assert (asked["request_model"], asked["response_model"]) == ("gpt-backend", "gpt-backend-1")
    assert (asked["response_id"], asked["tool_call_count"], asked["output_tokens"]) == ("resp_1", 1, 7)
    assert (asked["speech_end"], asked["ttfb_ns"], asked["end_ns"]) == ("audio", 400 * MS, 1500 * MS)
    assert (continued["response_id"], continued["ttft_ns"], continued["text_chars"]) == (
        "resp_2",
        300 * MS,
        3,
    )
    assert (first["dialect"], first["finish_reason"]) == ("openai_live", "silence")
    # The model speaks what the delegated response says.
    assert (second["first_audio_ns"], second["speech_end"]) == (200 * MS, None)
    assert {row["outcome"] for row in (asked, first, continued, second)} == {"ok"}


def test_delegation_to_the_client_is_a_tool_call() -> None:
    created = message(
        700, "server", type="session.delegation.created", delegation={"id": "d1", "target": "client"}
    )
    commented = message(2000, "client", type="session.commentary.append", content="2 m", delegation_id="d1")
    asked, answered = measured(GPT, [
        *started(), said(500), created, *silence(1000, 1800), commented, sound(2300), *silence(3500),
    ])  # fmt: skip
    assert (asked["tool_call_count"], asked["ttft_ns"], asked["end_ns"]) == (1, 200 * MS, 200 * MS)
    assert (answered["first_audio_ns"], answered["speech_end"]) == (300 * MS, None)


def test_closed_session_ends_its_answer_and_a_lost_one_does_not() -> None:
    talk = [*started(), said(500), sound(1000)]
    (row,) = measured(
        GPT, [*talk, message(1100, "server", type="session.closed", reason="close_requested", session={})]
    )
    assert (row["outcome"], row["end_ns"]) == ("ok", 500 * MS)
    (row,) = measured(GPT, talk, end=(1100, "upstream_reset"))
    assert (row["outcome"], row["error_phase"]) == ("upstream_reset", "mid_stream")


@pytest.mark.parametrize("kind", ["audio/pcm", "audio/pcmu", "audio/pcma"])
def test_loudness_is_that_of_16_bits_in_each_format(kind: str) -> None:
    codes = {"audio/pcmu": (b"\xff", b"\xff\x60", b"\x10"), "audio/pcma": (b"\xd5", b"\xd5\x70", b"\x2a")}
    quiet, low, loud = codes.get(kind, (bytes(8), (300).to_bytes(2, "little"), (-9000).to_bytes(2, "little", signed=True)))  # fmt: skip
    assert loudness(b64encode(quiet).decode(), kind) < 33
    assert 33 <= loudness(b64encode(low).decode(), kind) < LOUD
    assert loudness(b64encode(loud).decode(), f"{kind};rate=8000") >= LOUD
    for audio in ("", None, "====", "ä", "a"):
        assert loudness(audio, kind) == 0
    assert loudness(b64encode(loud).decode(), "audio/opus") == 0


# -- both -------------------------------------------------------------------------------------------------------------

SESSIONS = {
    GEMINI: [*setup(), heard(1000, SOUND), spoken(1500), spoken(1600), heard(1650, SOUND), spoken(1700),
             content(1750, interrupted=True), complete(1760), heard(1800, SOUND), spoken(2300), complete(2400)],
    GPT: [*started(), *silence(100), said(900), sound(1000), *silence(1100, 1200), sound(1300), said(1350), sound(1400),
          *silence(1500, 2500), said(2600), sound(2900), *silence(3000, 4000)],
}  # fmt: skip


@pytest.mark.parametrize("path", SESSIONS)
@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_same_messages_give_the_same_answers_however_they_are_cut(path: str, compression: str | None) -> None:
    plain = measured(path, SESSIONS[path])
    for seed in range(5):
        rng = random.Random(seed)
        found = measured(path, SESSIONS[path], compression=compression, rng=rng)
        for row, expected in zip(found, plain, strict=True):
            differing = {name for name in row if row[name] != expected[name]}
            assert differing <= {*OF_WIRE, "response_headers"}


NAMES = """
    setup realtimeInput realtime_input audio mediaChunks data mimeType text activityStart activity_end clientContent
    turnComplete toolResponse serverContent modelTurn inputTranscription toolCall usageMetadata voiceActivity
    voiceActivityType setupComplete type session delegation responses model format event delegation_id delta target
    audio/pcm session.output_audio.delta session.start session.input_audio.append response.event session.delegation.created
    session.closed response.create ACTIVITY_END
"""
WORDS = st.sampled_from(NAMES.split())
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | WORDS | st.just(SOUND),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("path", SESSIONS)
@settings(max_examples=40)
@given(values=st.lists(st.tuples(st.sampled_from(["client", "server"]), JSON), max_size=8))
def test_any_json_is_read(path: str, values: list[tuple[Any, Any]]) -> None:
    sent = [(100 + at * 300, side, json.dumps(value).encode()) for at, (side, value) in enumerate(values)]
    measured(path, [*SESSIONS[path][:2], *sent])


@pytest.mark.parametrize("path", SESSIONS)
def test_session_continues_after_a_restart_at_any_record(path: str) -> None:
    records = recorded(SESSIONS[path], path=path, compression=COMPRESSIONS[1])
    opened, head = records[0], records[1]
    assert isinstance(opened, Opened)
    assert isinstance(head, Frames)
    response = head.response
    assert response is not None

    def split(restart_before: int | None) -> list[Any]:
        windows = Windows(Counter())
        splitter = AnswerSplitter(opened, response, windows, storable=True)
        made: list[Any] = []
        for index, record in enumerate(records[1:]):
            if index == restart_before:
                state = msgspec.msgpack.decode(msgspec.msgpack.encode(splitter.state), type=SplitterState)
                splitter = AnswerSplitter.restored(state, windows)
            made += splitter.split(record)[1]  # type: ignore[type-var]  # of one socket
        return made

    whole = split(None)
    assert len({record.stream for record in whole}) == 2
    for index in range(1, len(records) - 1):
        assert split(index) == whole
