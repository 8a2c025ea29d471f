"""Generated streams to decode: one workload per dialect and per costly variant of a dialect. Identical in every run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

WORDS = [" token", " the", " of", "ing", " a", ".", " measured", " stream", "\n", " é", ' "quoted"', " and"]


class Workload(NamedTuple):
    name: str
    dialect: str
    path: str
    content_type: str
    first: list[bytes]
    event: Callable[[int, str], bytes]
    """The n-th output event, with this piece of text."""
    last: list[bytes]


def sse(value: Any, name: str = "") -> bytes:
    line = f"event: {name}\n" if name else ""
    return f"{line}data: {value if isinstance(value, str) else _compact(value)}\n\n".encode()


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def _chunk(choices: list[dict[str, Any]], **more: Any) -> bytes:
    return sse(
        {
            "id": "chatcmpl-9f8e7d6c5b4a39281706",
            "object": "chat.completion.chunk",
            "created": 1706123456,
            "model": "llama-3.1-8b-instruct",
            "system_fingerprint": None,
            "choices": choices,
            **more,
        }
    )


def _choice(delta: dict[str, Any], finish: str | None = None, index: int = 0) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


def _of_task(kind: str, **members: Any) -> bytes:
    return sse(
        {"jsonrpc": "2.0", "id": 1, "result": {"kind": kind, "taskId": "t", "contextId": "c"} | members}
    )


USAGE = {"prompt_tokens": 25, "completion_tokens": 400, "total_tokens": 425}
CHAT_LAST = [_chunk([_choice({}, "stop")], usage=USAGE), sse("[DONE]")]
CHAT_FIRST = [_chunk([_choice({"role": "assistant", "content": ""})])]
RNG = random.Random(7)


def _chat(name: str, event: Callable[[int, str], bytes]) -> Workload:
    return Workload(
        name, "openai_chat", "/v1/chat/completions", "text/event-stream", CHAT_FIRST, event, CHAT_LAST
    )


def _padding() -> str:
    return "".join(RNG.choices("abcdefghijklmnopqrstuvwxyz0123456789", k=RNG.randint(2, 16)))


def _named(value: dict[str, Any], key: str = "type") -> bytes:
    return sse(value, str(value[key]))


def _line(value: dict[str, Any]) -> bytes:
    return _compact(value).encode() + b"\n"


ANTHROPIC_FIRST = [
    _named(
        {
            "type": "message_start",
            "message": {"id": "msg_1", "model": "claude", "usage": {"input_tokens": 25, "output_tokens": 1}},
        }
    ),
    _named({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
]
ANTHROPIC_LAST = [
    _named({"type": "content_block_stop", "index": 0}),
    _named({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 400}}),
    _named({"type": "message_stop"}),
]
RESPONSE = {"id": "resp_1", "object": "response", "model": "gpt", "status": "in_progress", "output": []}
REALTIME_RESPONSE = {**RESPONSE, "object": "realtime.response"}

WORKLOADS = [
    _chat("openai_chat", lambda n, text: _chunk([_choice({"content": text})])),
    _chat("openai_chat, reasoning", lambda n, text: _chunk([_choice({"reasoning_content": text})])),
    _chat(
        "openai_chat, padded", lambda n, text: _chunk([_choice({"content": text})], obfuscation=_padding())
    ),
    _chat(
        "openai_chat, tool calls",
        lambda n, text: _chunk([_choice({"tool_calls": [{"index": 0, "function": {"arguments": text}}]})]),
    ),
    _chat(
        "openai_chat, usage on each",
        lambda n, text: _chunk(
            [_choice({"content": text})],
            usage={"prompt_tokens": 25, "completion_tokens": n, "total_tokens": 25 + n},
        ),
    ),
    _chat(
        "openai_chat, logprobs",
        lambda n, text: _chunk(
            [
                {
                    **_choice({"content": text}),
                    "logprobs": {
                        "content": [{"token": text, "logprob": -0.1, "bytes": [1], "top_logprobs": []}]
                    },
                }
            ]
        ),
    ),
    Workload(
        "openai_completions",
        "openai_completions",
        "/v1/completions",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {
                "id": "cmpl-1",
                "object": "text_completion",
                "created": 1706123456,
                "model": "llama",
                "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": None}],
            }
        ),
        [
            sse(
                {
                    "id": "cmpl-1",
                    "object": "text_completion",
                    "choices": [{"text": "", "finish_reason": "stop"}],
                    "usage": USAGE,
                }
            ),
            sse("[DONE]"),
        ],
    ),
    Workload(
        "openai_responses",
        "openai_responses",
        "/v1/responses",
        "text/event-stream",
        [_named({"type": "response.created", "sequence_number": 0, "response": RESPONSE})],
        lambda n, text: _named(
            {
                "type": "response.output_text.delta",
                "sequence_number": n + 4,
                "item_id": "msg_1",
                "output_index": 0,
                "content_index": 0,
                "delta": text,
                "logprobs": [],
                "obfuscation": _padding(),
            }
        ),
        [
            _named(
                {
                    "type": "response.completed",
                    "sequence_number": 500,
                    "response": {
                        **RESPONSE,
                        "status": "completed",
                        "usage": {"input_tokens": 25, "output_tokens": 400},
                    },
                }
            )
        ],
    ),
    Workload(
        "openai_realtime",
        "openai_realtime",
        "/v1/realtime",
        "text/event-stream",
        [sse({"type": "response.created", "event_id": "event_1", "response": REALTIME_RESPONSE})],
        lambda n, text: sse(
            {
                "type": "response.output_text.delta",
                "event_id": f"event_{n + 2}",
                "response_id": "resp_1",
                "item_id": "item_1",
                "output_index": 0,
                "content_index": 0,
                "delta": text,
            }
        ),
        [
            sse(
                {
                    "type": "response.done",
                    "event_id": "event_0",
                    "response": {**REALTIME_RESPONSE, "status": "completed"},
                }
            )
        ],
    ),
    Workload(
        "anthropic_messages",
        "anthropic_messages",
        "/v1/messages",
        "text/event-stream",
        ANTHROPIC_FIRST,
        lambda n, text: _named(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        ),
        ANTHROPIC_LAST,
    ),
    Workload(
        "anthropic_messages, tool use",
        "anthropic_messages",
        "/v1/messages",
        "text/event-stream",
        [
            ANTHROPIC_FIRST[0],
            _named(
                {
                    "type": "content_block_start",
                    "index": 0,
                    "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
                }
            ),
        ],
        lambda n, text: _named(
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": text},
            }
        ),
        ANTHROPIC_LAST,
    ),
    Workload(
        "openai_live",
        "openai_live",
        "/v1/live/sessions",
        "text/event-stream",
        [
            sse(
                {
                    "type": "answer.started",
                    "model": "gpt-live",
                    "format": {"type": "audio/pcm", "rate": 24_000},
                }
            )
        ],
        lambda n, text: sse({"type": "session.output_transcript.delta", "delta": text}),
        [sse({"type": "answer.ended", "reason": "silence"})],
    ),
    Workload(
        "gemini_live",
        "gemini_live",
        "/ws/google.ai.generativelanguage.v1beta.GenerativeService.BidiGenerateContent",
        "text/event-stream",
        [],
        lambda n, text: sse({"serverContent": {"modelTurn": {"parts": [{"text": text}]}}}),
        [sse({"serverContent": {"turnComplete": True}})],
    ),
    Workload(
        "a2a",
        "a2a",
        "/v1/message:stream",
        "text/event-stream",
        [_of_task("task", id="t", contextId="c", status={"state": "submitted"})],
        lambda n, text: _of_task(
            "artifact-update",
            append=bool(n),
            artifact={"artifactId": "a", "parts": [{"kind": "text", "text": text}]},
        ),
        [_of_task("status-update", status={"state": "completed"}, final=True)],
    ),
    Workload(
        "anthropic_complete",
        "anthropic_complete",
        "/v1/complete",
        "text/event-stream",
        [],
        lambda n, text: _named(
            {
                "type": "completion",
                "id": "compl_1",
                "completion": text,
                "stop_reason": None,
                "model": "claude-2.1",
                "log_id": "compl_1",
                "padding": " " * (n % 9),
            }
        ),
        [_named({"type": "completion", "id": "compl_1", "completion": "", "stop_reason": "stop_sequence"})],
    ),
    Workload(
        "lmstudio_chat",
        "lmstudio_chat",
        "/api/v1/chat",
        "text/event-stream",
        [_named({"type": "chat.start", "model_instance_id": "m"}), _named({"type": "message.start"})],
        lambda n, text: _named({"type": "message.delta", "content": text}),
        [
            _named({"type": "message.end"}),
            _named(
                {
                    "type": "chat.end",
                    "result": {"output": [], "stats": {"input_tokens": 25, "total_output_tokens": 400}},
                }
            ),
        ],
    ),
    Workload(
        "cohere_v2",
        "cohere_v2",
        "/v2/chat",
        "text/event-stream",
        [
            _named(
                {
                    "type": "message-start",
                    "id": "x",
                    "delta": {"message": {"role": "assistant", "content": []}},
                }
            ),
            _named(
                {
                    "type": "content-start",
                    "index": 0,
                    "delta": {"message": {"content": {"type": "text", "text": ""}}},
                }
            ),
        ],
        lambda n, text: _named(
            {"type": "content-delta", "index": 0, "delta": {"message": {"content": {"text": text}}}}
        ),
        [
            _named(
                {
                    "type": "message-end",
                    "delta": {
                        "finish_reason": "COMPLETE",
                        "usage": {"tokens": {"input_tokens": 25, "output_tokens": 400}},
                    },
                }
            )
        ],
    ),
    Workload(
        "cohere_v1",
        "cohere_v1",
        "/v1/chat",
        "application/stream+json",
        [_line({"is_finished": False, "event_type": "stream-start", "generation_id": "x"})],
        lambda n, text: _line({"is_finished": False, "event_type": "text-generation", "text": text}),
        [
            _line(
                {"is_finished": True, "event_type": "stream-end", "finish_reason": "COMPLETE", "response": {}}
            )
        ],
    ),
    Workload(
        "gemini",
        "gemini",
        "/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {
                "candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}],
                "usageMetadata": {
                    "promptTokenCount": 25,
                    "candidatesTokenCount": n,
                    "totalTokenCount": 25 + n,
                },
                "modelVersion": "gemini-2.5-flash",
                "responseId": "abc",
            }
        ),
        [sse({"candidates": [{"content": {"parts": [{"text": "."}]}, "finishReason": "STOP", "index": 0}]})],
    ),
    Workload(
        "gemini_interactions",
        "gemini_interactions",
        "/v1beta/interactions",
        "text/event-stream",
        [
            sse(
                {
                    "event_type": "interaction.created",
                    "interaction": {"id": "v1", "model": "gemini", "status": "in_progress"},
                },
                "interaction.created",
            ),
            sse({"event_type": "step.start", "index": 0, "step": {"type": "model_output"}}, "step.start"),
        ],
        lambda n, text: sse(
            {"event_type": "step.delta", "index": 0, "delta": {"type": "text", "text": text}}, "step.delta"
        ),
        [
            sse(
                {"event_type": "interaction.completed", "interaction": {"id": "v1", "status": "completed"}},
                "interaction.completed",
            )
        ],
    ),
    Workload(
        "ollama",
        "ollama",
        "/api/chat",
        "application/x-ndjson",
        [],
        lambda n, text: _line(
            {
                "model": "qwen3:4b",
                "created_at": f"2026-08-04T19:58:15.{n % 10**6:06}Z",
                "message": {"role": "assistant", "content": text},
                "done": False,
            }
        ),
        [
            _line(
                {
                    "model": "qwen3:4b",
                    "message": {"role": "assistant", "content": ""},
                    "done": True,
                    "done_reason": "stop",
                    "eval_count": 400,
                }
            )
        ],
    ),
    Workload(
        "openai_assistants",
        "openai_assistants",
        "/v1/threads/t/runs",
        "text/event-stream",
        [
            sse(
                {"id": "run_1", "object": "thread.run", "status": "queued", "model": "gpt-4"},
                "thread.run.created",
            )
        ],
        lambda n, text: sse(
            {
                "id": "msg_1",
                "object": "thread.message.delta",
                "delta": {
                    "content": [{"index": 0, "type": "text", "text": {"value": text, "annotations": []}}]
                },
            },
            "thread.message.delta",
        ),
        [
            sse(
                {"id": "run_1", "object": "thread.run", "status": "completed", "usage": USAGE},
                "thread.run.completed",
            ),
            sse("[DONE]", "done"),
        ],
    ),
    Workload(
        "openai_audio",
        "openai_audio",
        "/v1/audio/transcriptions",
        "text/event-stream",
        [],
        lambda n, text: sse({"type": "transcript.text.delta", "delta": text}),
        [
            sse(
                {
                    "type": "transcript.text.done",
                    "text": "",
                    "usage": {"input_tokens": 25, "output_tokens": 400},
                }
            )
        ],
    ),
    Workload(
        "openai_images",
        "openai_images",
        "/v1/images/generations",
        "text/event-stream",
        [],
        lambda n, text: _named({"type": "image_generation.partial_image", "b64_json": text}),
        [
            _named(
                {
                    "type": "image_generation.completed",
                    "b64_json": "",
                    "usage": {"input_tokens": 25, "output_tokens": 400, "total_tokens": 425},
                }
            )
        ],
    ),
    Workload(
        "dashscope",
        "dashscope",
        "/api/v1/services/aigc/text-generation/generation",
        "text/event-stream",
        [],
        lambda n, text: (
            f"id:{n}\nevent:result\n:HTTP_STATUS/200\ndata:".encode()
            + _compact(
                {
                    "output": {
                        "choices": [
                            {"message": {"content": text, "role": "assistant"}, "finish_reason": "null"}
                        ]
                    },
                    "usage": {"total_tokens": 25 + n, "input_tokens": 25, "output_tokens": n},
                    "request_id": "5c5f0a31-7de1-9d5c-8f5e-1",
                }
            ).encode()
            + b"\n\n"
        ),
        [
            b'event:result\ndata:{"output":{"choices":[{"message":{"content":""},"finish_reason":"stop"}]}}\n\n'
        ],
    ),
    Workload(
        "replicate",
        "replicate",
        "/v1/streams/x",
        "text/event-stream",
        [],
        lambda n, text: f"event: output\nid: {n}:0\ndata: {text.strip() or '.'}\n\n".encode(),
        [b"event: done\nid: 1\ndata: {}\n\n"],
    ),
    Workload(
        "llamacpp_completion",
        "llamacpp_completion",
        "/completion",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {"index": 0, "content": text, "tokens": [], "stop": False, "id_slot": 0, "tokens_predicted": n}
        ),
        [
            sse(
                {
                    "content": "",
                    "stop": True,
                    "stop_type": "eos",
                    "tokens_predicted": 400,
                    "tokens_evaluated": 9,
                }
            )
        ],
    ),
    Workload(
        "sglang_generate",
        "sglang_generate",
        "/generate",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {"text": text, "meta_info": {"id": "r1", "prompt_tokens": 9, "completion_tokens": n}}
        ),
        [sse({"text": ".", "meta_info": {"finish_reason": {"type": "stop"}}}), b"data: [DONE]\n\n"],
    ),
    Workload(
        "tgi_generate",
        "tgi_generate",
        "/generate_stream",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {
                "index": n,
                "token": {"id": 13, "text": text, "logprob": -2.8, "special": False},
                "generated_text": None,
            }
        ),
        [
            sse(
                {
                    "index": 400,
                    "token": {"id": 13, "text": ".", "logprob": -2.8, "special": False},
                    "generated_text": "x",
                    "details": {"finish_reason": "length", "generated_tokens": 401},
                }
            )
        ],
    ),
    Workload(
        "writer_completion",
        "writer_completion",
        "/v1/completions",
        "text/event-stream",
        [],
        lambda n, text: sse({"value": text}),
        [],
    ),
    Workload(
        "cloudflare_run",
        "cloudflare_run",
        "/client/v4/accounts/x/ai/run/@cf/meta/llama-3.1-8b-instruct",
        "text/event-stream",
        [],
        lambda n, text: sse({"response": text, "p": _padding()}),
        [sse({"response": "", "usage": USAGE}), sse("[DONE]")],
    ),
    Workload(
        "watsonx_generate",
        "watsonx_generate",
        "/ml/v1/text/generation_stream",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {
                "model_id": "ibm/granite",
                "results": [
                    {
                        "generated_text": text,
                        "generated_token_count": n + 1,
                        "input_token_count": 0,
                        "stop_reason": "not_finished",
                    }
                ],
            }
        ),
        [sse({"model_id": "ibm/granite", "results": [{"generated_text": "", "stop_reason": "eos_token"}]})],
    ),
    Workload(
        "bedrock_converse",
        "bedrock_converse",
        "/model/m/converse-stream",
        "text/event-stream",
        [sse({"role": "assistant"}, "messageStart")],
        lambda n, text: sse({"contentBlockIndex": 0, "delta": {"text": text}}, "contentBlockDelta"),
        [
            sse({"stopReason": "end_turn"}, "messageStop"),
            sse({"usage": {"inputTokens": 9, "outputTokens": 9}}, "metadata"),
        ],
    ),
    Workload(
        "bedrock_invoke",
        "bedrock_invoke",
        "/model/m/invoke-with-response-stream",
        "text/event-stream",
        [],
        lambda n, text: sse({"generation": text, "generation_token_count": n}),
        [sse({"stop_reason": "stop", "amazon-bedrock-invocationMetrics": {"outputTokenCount": 9}})],
    ),
    Workload(
        "mcp",
        "mcp",
        "/mcp",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {"method": "notifications/message", "params": {"level": "info", "data": text}, "jsonrpc": "2.0"},
            "message",
        ),
        [sse({"jsonrpc": "2.0", "id": 1, "result": {"content": [], "isError": False}}, "message")],
    ),
    Workload(
        "unknown",
        "unknown",
        "/rpc",
        "text/event-stream",
        [],
        lambda n, text: sse(
            {"jsonrpc": "2.0", "id": n, "result": {"content": [{"type": "text", "text": text}]}}
        ),
        [],
    ),
]


def reads_of(workload: Workload, events: int, events_per_read: int) -> list[bytes]:
    """The body of one stream, cut into reads."""
    pieces = (WORDS[RNG.randrange(len(WORDS))] for _ in range(events))
    body = [*workload.first, *(workload.event(n, piece) for n, piece in enumerate(pieces)), *workload.last]
    return [b"".join(body[at : at + events_per_read]) for at in range(0, len(body), events_per_read)]
