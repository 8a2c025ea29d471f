"""Decode a `delta` (or a `message`) of the OpenAI family: text, reasoning, refusal, audio, tool calls. Every type is checked.

`reasoning_content`, `reasoning`, `reasoning_text` and `thinking` are one channel. `reasoning_details` repeat it, and are
used only without the others. `content` may be a list of typed parts. Images are in `images` or in such parts.
"""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.dialects.events import ChoiceDelta, ToolCallDelta
from streamgauge.analytics.dialects.openai_tool_calls import ToolCallKeys, text_of
from streamgauge.analytics.dialects.tolerant_json import arguments_of

IMAGE_PARTS = ("image", "image_url", "output_image")  # a tuple: what is looked up may not be hashable


def read_delta(delta: dict[str, Any], choice_delta: ChoiceDelta, calls: ToolCallKeys) -> None:
    """Add the content of a JSON `delta` to `choice_delta`."""
    content = delta.get("content")
    if isinstance(content, str):
        choice_delta.text = content
    elif isinstance(content, (list, dict)):
        _add_parts(content if isinstance(content, list) else [content], choice_delta)
    choice_delta.reasoning = _reasoning(delta) or choice_delta.reasoning
    choice_delta.refusal = text_of(delta.get("refusal")) or choice_delta.refusal
    audio = delta.get("audio")
    if isinstance(audio, dict):
        choice_delta.audio_chars = len(text_of(audio.get("transcript")))
        choice_delta.audio_data_chars = len(text_of(audio.get("data")))
    images = delta.get("images")
    if isinstance(images, list):
        choice_delta.images += len(images)
    choice_delta.tool_calls = calls.decode(choice_delta.choice, delta.get("tool_calls"))
    call = delta.get("function_call")
    if isinstance(call, dict) and not choice_delta.tool_calls:
        arguments = arguments_of(call.get("arguments"))
        choice_delta.tool_calls = [ToolCallDelta("function_call", "", text_of(call.get("name")), arguments)]


def token_count(choice: dict[str, Any]) -> int | None:
    """Tokens that the server lists for this event: `token_ids`, else `logprobs`."""
    ids = choice.get("token_ids")
    if isinstance(ids, list) and ids:
        return len(ids)
    logprobs = choice.get("logprobs")
    if not isinstance(logprobs, dict):
        return None
    lists = [logprobs.get(key) for key in ("content", "refusal")]
    if not any(isinstance(found, list) for found in lists):
        lists = [logprobs.get("tokens")]
    total = sum(len(found) for found in lists if isinstance(found, list))
    return total or None


def _reasoning(delta: dict[str, Any]) -> str:
    for key in ("reasoning_content", "reasoning", "reasoning_text", "thinking"):
        found = delta.get(key)
        if isinstance(found, str) and found:
            return found
        if isinstance(found, dict) and isinstance(found.get("content"), str):
            return str(found["content"])
    details = delta.get("reasoning_details")
    if not isinstance(details, list):
        return ""
    return "".join(
        text_of(d.get("text")) or text_of(d.get("summary")) for d in details if isinstance(d, dict)
    )


def _add_parts(parts: list[Any], choice_delta: ChoiceDelta) -> None:
    """`content` as a list of typed parts (Mistral, Databricks)."""
    for part in parts:
        if isinstance(part, str):
            choice_delta.text += part
        elif isinstance(part, dict):
            kind = part.get("type")
            if kind in ("thinking", "reasoning"):
                choice_delta.reasoning += _nested_text(part)
            elif kind == "refusal":
                choice_delta.refusal += text_of(part.get("refusal"))
            elif kind in IMAGE_PARTS:
                choice_delta.images += 1
            elif isinstance(part.get("text"), str):
                choice_delta.text += part["text"]


def _nested_text(part: dict[str, Any]) -> str:
    for key in ("thinking", "reasoning", "summary", "content", "text"):
        inner = part.get(key)
        if isinstance(inner, str):
            return inner
        if isinstance(inner, list):
            texts = (
                i if isinstance(i, str) else text_of(i.get("text"))
                for i in inner
                if isinstance(i, (str, dict))
            )
            return "".join(texts)
    return ""
