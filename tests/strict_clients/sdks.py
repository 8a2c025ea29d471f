"""Answers of the official SDKs for Python: `python -m tests.strict_clients.sdks`.

Each line of the input is {dialect, content_type, body}, with the bytes of the body as characters; each line of the output has the
answer or the error of every client. The bytes arrive in process: the SDK's own parser and types read them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import openai

from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES

Answer = dict[str, Any]
PROMPT: Any = [{"role": "user", "content": "hi"}]


class Bodies(httpx2.BaseTransport):
    """Answers each request with the current body."""

    body = b""
    content_type = ""

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, headers={"content-type": self.content_type}, content=self.body)


BODIES = Bodies()
OPENAI = openai.OpenAI(api_key="k", max_retries=0, http_client=openai.DefaultHttpxClient(transport=BODIES))
ANTHROPIC = anthropic.Anthropic(
    api_key="k", max_retries=0, http_client=anthropic.DefaultHttpxClient(transport=BODIES)
)


def answer(text: str, reasoning: str, finish: Any, usage: Any, calls: list[Any]) -> Answer:
    return {"text": text, "reasoning": reasoning, "finish": finish, "usage": usage, "calls": calls}


def chat() -> Answer:
    with OPENAI.chat.completions.stream(
        model="m", messages=PROMPT, stream_options={"include_usage": True}, response_format=openai.NOT_GIVEN
    ) as stream:
        try:
            final: Any = stream.get_final_completion()
        except (openai.LengthFinishReasonError, openai.ContentFilterFinishReasonError):
            final = stream.current_completion_snapshot  # whole: these report how the model finished
    choice, usage = final.choices[0], final.usage
    message = choice.message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or []]
    counts = usage and [getattr(usage, "prompt_tokens", None), getattr(usage, "completion_tokens", None)]
    text = (message.content or "") + (message.refusal or "")
    return answer(text, "", choice.finish_reason, counts, calls) | {"role": message.role}


def responses() -> Answer:
    with OPENAI.responses.stream(model="m", input="hi") as stream:
        final: Any = stream.get_final_response()
    text = reasoning = ""
    calls = []
    for item in final.output:
        parts = getattr(item, "content", None) or []
        if item.type == "message":
            text += "".join(
                getattr(part, "text", None) or getattr(part, "refusal", None) or "" for part in parts
            )
        elif item.type == "reasoning":
            reasoning += "".join(part.text for part in [*parts, *(item.summary or [])])
        elif item.type in ("function_call", "custom_tool_call"):
            calls.append((item.name, item.arguments if item.type == "function_call" else item.input))
    counts = final.usage and [getattr(final.usage, of, None) for of in ("input_tokens", "output_tokens")]
    return answer(text, reasoning, final.status, counts, calls)


def messages() -> Answer:
    with ANTHROPIC.messages.stream(model="m", max_tokens=9, messages=PROMPT) as stream:
        final: Any = stream.get_final_message()
    calls = [(block.name, json.dumps(block.input)) for block in final.content if block.type == "tool_use"]
    text = "".join(block.text for block in final.content if block.type == "text")
    reasoning = "".join(block.thinking for block in final.content if block.type == "thinking")
    return answer(
        text, reasoning, final.stop_reason, [final.usage.input_tokens, final.usage.output_tokens], calls
    )


CLIENTS: dict[str, tuple[str, Callable[[], Answer]]] = {
    CHAT: ("openai-python", chat),
    RESPONSES: ("openai-python", responses),
    MESSAGES: ("anthropic-python", messages),
}

if __name__ == "__main__":
    for line in sys.stdin:
        given = json.loads(line)
        client, run = CLIENTS[given["dialect"]]
        BODIES.body, BODIES.content_type = given["body"].encode("latin-1"), given["content_type"]
        try:
            found = run()
        except Exception as e:  # whatever the SDK raises
            found = {"error": f"{type(e).__name__}: {e}"[:200]}
        print(json.dumps({client: [found]}, default=str), flush=True)
