"""Dialects with few event types: OpenAI audio and images, Replicate, TGI, llama.cpp, SGLang, Cloudflare, Writer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from streamgauge.analytics.decoding.stream_decoder import StreamDecoder
from streamgauge.analytics.dialects import (
    cloudflare_run,
    llamacpp_completion,
    openai_audio,
    openai_images,
    replicate,
    sglang_generate,
    tgi_generate,
    writer_completion,
)
from streamgauge.analytics.dialects.dialect import ExchangeInfo
from streamgauge.ingest.redaction.body_redactor import BodyRedactor
from tests.analytics.dialects.transcript import events, read, read_body, usage


def test_transcript_deltas_are_text_and_done_finishes() -> None:
    used = {"type": "tokens", "input_tokens": 37, "output_tokens": 12, "total_tokens": 49}
    found = read(
        openai_audio.DIALECT,
        events(
            {"type": "transcript.text.delta", "delta": "Ruby", "logprobs": [{"token": "Ruby", "logprob": 0}]},
            {"type": "transcript.text.delta", "delta": " is"},
            {"type": "transcript.text.segment", "text": "Ruby is", "speaker": "A"},
            {"type": "transcript.text.done", "text": "Ruby is", "usage": used},
        ),
    )
    assert str(found.first_choice.text) == "Ruby is"
    assert (found.events.kind, found.events.tokens[0]) == (["text", "text", "annotation", "finish"], 1)
    assert (found.finish_reason, usage(found)) == ("done", (37, 12, None, None))


def test_transcript_only_in_the_done_event() -> None:
    found = read(openai_audio.DIALECT, events({"type": "transcript.text.done", "text": "Hi"}))
    assert (str(found.first_choice.text), found.content_event_count) == ("Hi", 0)


def test_speech_is_audio() -> None:
    found = read(
        openai_audio.DIALECT,
        events({"type": "speech.audio.delta", "audio": "AAAA"}, {"type": "speech.audio.done"}),
    )
    assert (found.events.kind, found.terminal_seen) == (["audio", "finish"], True)
    assert (found.output_event_count, found.content_event_count) == (1, 0), (
        "encoded audio has no readable content"
    )


def test_transcription_body() -> None:
    assert str(read_body(openai_audio.DIALECT, {"text": "Hi"}).first_choice.text) == "Hi"
    assert read_body(openai_audio.DIALECT, b"WEBVTT\n\n00:00").malformed_events == 0


IMAGE_USAGE = {"input_tokens": 50, "output_tokens": 4160, "total_tokens": 4210}


def test_images_and_their_previews_are_output() -> None:
    found = read(
        openai_images.DIALECT,
        events(
            {"type": "image_edit.partial_image", "b64_json": "AAAA", "partial_image_index": 0},
            {"type": "image_edit.completed", "b64_json": "AAAA", "usage": IMAGE_USAGE},
        ),
    )
    assert (found.events.kind, found.terminal_seen) == (["image", "image"], True)
    assert (found.finish_reason, usage(found)) == ("completed", (50, 4160, None, None))


def test_body_with_images() -> None:
    found = read_body(
        openai_images.DIALECT, {"data": [{"b64_json": "AAAA"}, {"url": "u"}], "usage": IMAGE_USAGE}
    )
    assert (found.output_event_count, usage(found)) == (1, (50, 4160, None, None))
    refused = read_body(openai_images.DIALECT, {"error": {"type": "moderation_blocked", "message": "no"}})
    assert refused.error is not None
    assert refused.error.type == "moderation_blocked"


def test_replicate_output_is_the_data_itself() -> None:
    found = read(
        replicate.DIALECT,
        b"event: output\ndata: \n\nevent: output\ndata: Sure\n\nevent: output\ndata: :\ndata: \ndata: Why\n\n"
        b"event: logs\ndata: step 1\n\nevent: done\ndata: {}\n\n",
    )
    assert str(found.first_choice.text) == "Sure:\n\nWhy"
    assert found.events.kind == ["start", "text", "text", "progress", "terminal"]
    assert found.finish_reason == "done"


def test_replicate_done_has_a_reason() -> None:
    canceled = read(replicate.DIALECT, b'event: done\ndata: {"reason": "canceled"}\n\n')
    assert (canceled.finish_reason, canceled.error) == ("canceled", None)
    failed = read(
        replicate.DIALECT,
        b'event: error\ndata: {"detail": "GPU lost"}\n\nevent: done\ndata: {"reason": "error"}\n\n',
    )
    assert failed.error is not None
    assert failed.error.message == "GPU lost"
    assert read(replicate.DIALECT, b'event: done\ndata: {"reason": "error"}\n\n').error is not None


def test_replicate_prediction_body() -> None:
    found = read_body(
        replicate.DIALECT, {"id": "p", "status": "succeeded", "output": ["Hi", "!"], "error": None}
    )
    assert (str(found.first_choice.text), found.finish_reason, found.response_id) == ("Hi!", "succeeded", "p")


def token(text: str, *, special: bool = False, **more: Any) -> dict[str, Any]:
    fields = {"id": 1, "text": text, "logprob": -0.1, "special": special}
    return {"index": 1, "token": fields, "generated_text": None, "details": None, **more}


def test_tgi_tokens() -> None:
    details = {"finish_reason": "eos_token", "generated_tokens": 3, "input_length": 5, "seed": None}
    found = read(
        tgi_generate.DIALECT,
        events(token("Hi"), token("!"), token("</s>", special=True, generated_text="Hi!", details=details)),
    )
    assert (str(found.first_choice.text), found.events.tokens) == ("Hi!", [1, 1, None])
    assert (found.finish_reason, usage(found), found.terminal_seen) == ("eos_token", (5, 3, None, None), True)


def test_tgi_last_event_with_a_token_and_without_details() -> None:
    found = read(tgi_generate.DIALECT, events(token(".", generated_text=".")))
    assert (str(found.first_choice.text), found.finish_reason, found.terminal_seen) == (".", None, True)


def test_tgi_error_and_bodies() -> None:
    found = read(tgi_generate.DIALECT, events({"error": "Request failed", "error_type": "generation"}))
    assert found.error is not None
    assert found.error.type == "generation"
    assert str(read_body(tgi_generate.DIALECT, b'[{"generated_text":"Hi"}]').first_choice.text) == "Hi"


def test_llamacpp_pieces_and_the_last_event_with_its_timings() -> None:
    last = {
        "content": "",
        "stop": True,
        "stop_type": "limit",
        "model": "qwen",
        "tokens_predicted": 2,
        "tokens_evaluated": 9,
        "timings": {"prompt_ms": 12.5, "predicted_per_second": 40.0, "predicted_n": 2},
    }
    piece = {"index": 0, "content": "Hi", "tokens": [5, 6], "stop": False, "tokens_predicted": 1}
    found = read(llamacpp_completion.DIALECT, events(piece, last))
    assert (str(found.first_choice.text), found.events.tokens, found.finish_reason) == (
        "Hi",
        [2, None],
        "limit",
    )
    assert (usage(found), found.response_model) == ((9, 2, None, None), "qwen")
    stats = {stat.name: (stat.value, stat.unit) for _, stat in found.server_stats}
    assert stats == {
        "prompt_ms": (12.5e6, "ns"),
        "predicted_per_second": (40.0, "tok/s"),
        "predicted_n": (2.0, "tokens"),
    }


def test_llamacpp_error_and_old_stop() -> None:
    error = {"error": {"code": 500, "message": "slot unavailable", "type": "server_error"}}
    found = read(llamacpp_completion.DIALECT, events(error))
    assert found.error is not None
    assert found.error.type == "server_error"
    old = read(llamacpp_completion.DIALECT, events({"content": "", "stop": True, "stopped_eos": True}))
    assert (old.finish_reason, old.terminal_ns) == ("eos", 0)


def generated(text: str, done: int, finish: Any = None, index: int = 0) -> dict[str, Any]:
    meta = {
        "id": "r1",
        "finish_reason": finish,
        "prompt_tokens": 4,
        "completion_tokens": done,
        "cached_tokens": 1,
    }
    return {"text": text, "meta_info": meta, "index": index}


def test_sglang_cumulative_text_is_differenced() -> None:
    found = read(
        sglang_generate.DIALECT,
        events(
            generated("Hel", 1), generated("Hello", 3), generated("Hello", 3, {"type": "length", "length": 3})
        ),
    )
    assert (str(found.first_choice.text), found.events.chars) == ("Hello", [3, 2, 0])
    assert (found.finish_reason, found.response_id, usage(found)) == ("length", "r1", (4, 3, None, 1))
    assert found.events.tokens == [1, 2, None]


def test_sglang_increments_and_choices() -> None:
    pieces = [generated(piece, 1) for piece in ("Hel", "lo", "lo!")]
    found = read(sglang_generate.DIALECT, events(*pieces, generated("Yo", 1, index=1)))
    assert {index: str(choice.text) for index, choice in found.choices.items()} == {0: "Hellolo!", 1: "Yo"}


def test_sglang_abort_is_an_error() -> None:
    found = read(sglang_generate.DIALECT, events(generated("", 0, {"type": "abort", "message": "too long"})))
    assert found.error is not None
    assert (found.error.type, found.error.message) == ("abort", "too long")


def test_cloudflare_body_with_a_result_and_errors() -> None:
    result = {"response": "Hi", "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    errors = [{"code": 7009, "message": "m"}]
    found = read_body(cloudflare_run.DIALECT, {"result": result, "errors": errors})
    assert (str(found.first_choice.text), usage(found)) == ("Hi", (1, 2, None, None))
    failed = read_body(cloudflare_run.DIALECT, {"result": None, "errors": errors})
    assert failed.error is not None
    assert (failed.error.type, failed.error.message, failed.error.raw) == ("7009", "m", errors)


def test_writer_values_are_text() -> None:
    found = read(writer_completion.DIALECT, events({"value": "Sure"}, {"value": ","}, {"value": ""}))
    assert (str(found.first_choice.text), found.output_event_count) == ("Sure,", 2)
    body = read_body(writer_completion.DIALECT, {"choices": [{"text": "Hi"}], "model": "palmyra"})
    assert (str(body.first_choice.text), body.response_model) == ("Hi", "palmyra")


def test_each_dialect_recognises_its_first_event() -> None:
    assert openai_audio.DIALECT.recognises("", b'{"type":"transcript.text.delta","delta":"a"}') >= 5
    assert replicate.DIALECT.recognises("output", b"Sure") >= 5
    assert tgi_generate.DIALECT.recognises("", b'{"token":{"text":"a"},"generated_text":null}') >= 5
    assert writer_completion.DIALECT.recognises("", b'{"value":"Sure"}') >= 5
    assert llamacpp_completion.DIALECT.recognises("", b'{"content":"a","stop":false,"id_slot":0}') >= 5
    assert sglang_generate.DIALECT.recognises("", b'{"text":"a","meta_info":{}}') >= 5
    assert llamacpp_completion.DIALECT.claims(ExchangeInfo(path="/completion")) == 5
    assert llamacpp_completion.DIALECT.claims(ExchangeInfo(path="/v1/completions")) == 0
    assert replicate.DIALECT.claims(ExchangeInfo(path="/v1/streams/abc")) == 5
    assert tgi_generate.DIALECT.claims(ExchangeInfo(path="/generate_stream")) == 5
    assert openai_audio.DIALECT.claims(ExchangeInfo(path="/v1/audio/transcriptions")) == 5


@pytest.mark.parametrize(
    ("path", "body", "model", "tokens"),
    [
        (
            "/v1/embeddings",
            {"data": [{"embedding": [0.5]}], "model": "e-3", "usage": {"prompt_tokens": 8, "total_tokens": 8}},
            "e-3",
            8,
        ),
        ("/v1/embeddings", {"data": [{"embedding": "AAAA"}], "usage": {"total_tokens": 9}}, None, 9),
        (
            "/v2/embed",
            {"embeddings": {"float": [[0.5]]}, "meta": {"billed_units": {"input_tokens": 3, "images": 1}}},
            None,
            3,
        ),
        (
            "/v1beta/models/e:embedContent",
            {"embedding": {"values": [0.5]}, "usageMetadata": {"promptTokenCount": 5, "totalTokenCount": 5}},
            None,
            5,
        ),
        ("/api/embed", {"model": "n", "embeddings": [[0.5]], "prompt_eval_count": 6}, "n", 6),
        ("/v1/embeddings", {"data": [], "usage": {"prompt_tokens": -8}}, None, None),
    ],
)  # fmt: skip
def test_report_of_embeddings_is_read_with_and_without_text(
    path: str, body: dict[str, Any], model: str | None, tokens: int | None
) -> None:
    raw = json.dumps(body).encode()
    for text in (raw, BodyRedactor().feed(raw)):
        decoder = StreamDecoder(ExchangeInfo(path=path, content_type="application/json"))
        decoder.feed([(1, text)])
        decoder.finish()
        assert (decoder.dialect, decoder.operation) == ("embeddings", "embeddings")
        assert (decoder.response_model, decoder.output_event_count) == (model, 0)
        assert (decoder.usage and decoder.usage.input_tokens) == tokens


@pytest.mark.parametrize("path", ["/v1/messages/batches/b/results", "/v1/files/f/content"])
def test_lines_of_a_stored_file_are_no_stream(path: str) -> None:
    answer = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "text", "text": "Hi"}],
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 4},
    }
    lines = b"\n".join(
        json.dumps({"custom_id": str(i), "result": {"message": answer}}).encode() for i in (1, 2)
    )
    for method, dialect in (("GET", "unknown"), ("POST", "anthropic_messages")):
        decoder = StreamDecoder(ExchangeInfo(method=method, path=path, content_type="application/x-jsonl"))
        decoder.feed([(1, lines)])
        decoder.finish()
        assert decoder.dialect == dialect
