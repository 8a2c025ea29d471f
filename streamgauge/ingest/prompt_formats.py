"""The member names of the request formats that determine the segments of a prompt, and their meaning.

Settings are the parameters that are part of the cached prefix by the vendors' documentation. Sampling parameters are not.
"""

from __future__ import annotations

# Kinds of an open container.
(NONE, BODY, TOOLS, SYSTEM, SYSTEM_OBJECT, MESSAGES, MESSAGE, PARTS, CALLS, IMAGES, THOUGHTS, DEEP, SEGMENT, INNER,
 CONTENT, BLOCK, MARK, GROUP) = range(18)  # fmt: skip
# Meanings of a name. Some names occur both in the body and in a message.
(MODEL, SETTING, PROMPT, WRAPPER, TEXT, INPUT, ROLE, TYPE, NAME, ID, AUDIO, FUNCTION, POINT, TTL, MIME, LAST,
 DECLARATIONS) = range(20, 37)  # fmt: skip
BODY_NAMES = {
    **dict.fromkeys([b"model", b"modelId", b"model_id"], MODEL),
    **dict.fromkeys([
        b"tool_choice", b"toolChoice", b"function_call", b"functionCallingConfig", b"function_calling_config", b"parallel_tool_calls",
        b"response_format", b"format", b"output_format", b"output_config", b"thinking", b"think", b"enable_thinking", b"reasoning",
        b"reasoning_effort", b"speed", b"context_management", b"mcp_servers", b"web_search_options", b"cachedContent",
        b"cached_content", b"chat_template_kwargs", b"cache_salt", b"prompt_cache_key", b"safety_mode", b"documents",
        b"additionalModelRequestFields",
    ], SETTING),
    **dict.fromkeys([b"tools", b"functions", b"integrations"], TOOLS),
    **dict.fromkeys([
        b"system", b"instructions", b"system_prompt", b"systemInstruction", b"system_instruction", b"preamble", b"additional_instructions",
    ], SYSTEM),
    **dict.fromkeys([b"messages", b"contents", b"chat_history", b"additional_messages", b"item"], MESSAGES),
    **dict.fromkeys([b"prompt", b"inputs", b"input_prefix"], PROMPT),
    **dict.fromkeys([b"request", b"toolConfig", b"tool_config", b"parameters", b"session", b"response", b"thread"], WRAPPER),
    b"input": INPUT, b"text": TEXT, b"message": LAST, b"cache_control": MARK,
}  # fmt: skip
"""`request` is used by Code Assist, `input` and `parameters` by DashScope, `session` and `response` by the Realtime API."""
MESSAGE_NAMES = {
    b"role": ROLE, b"type": TYPE, b"name": NAME, b"tool_name": NAME, b"tool_call_id": ID, b"call_id": ID, b"id": ID,
    b"content": CONTENT, b"parts": CONTENT, b"message": CONTENT, b"refusal": CONTENT, b"tool_calls": CALLS,
    b"function_call": FUNCTION, b"images": IMAGES, b"audio": AUDIO, b"reasoning_content": THOUGHTS, b"reasoning": THOUGHTS,
    b"thinking": THOUGHTS, b"tool_plan": THOUGHTS, b"tools": TOOLS, b"cache_control": MARK,
}  # fmt: skip
PART_NAMES = {
    b"type": TYPE, b"name": NAME, b"server_label": NAME, b"id": ID, b"call_id": ID, b"tool_use_id": ID, b"toolUseId": ID,
    b"mimeType": MIME, b"mime_type": MIME, b"content": CONTENT, b"cachePoint": POINT, b"cache_control": MARK,
    b"prompt_cache_breakpoint": MARK,
    b"functionDeclarations": DECLARATIONS, b"function_declarations": DECLARATIONS, b"ttl": TTL, b"text": TEXT,
    **dict.fromkeys([
        b"function", b"functionCall", b"function_call", b"functionResponse", b"function_response", b"toolUse", b"toolResult",
        b"toolSpec", b"inlineData", b"inline_data", b"fileData", b"file_data",
    ], FUNCTION),
}  # fmt: skip
KINDS_BY_NAME = {
    b"text": "text", b"thought": "reasoning", b"reasoningContent": "reasoning", b"image": "image", b"video": "file", b"document": "file",
    b"audio": "audio", b"functionCall": "tool_call", b"function_call": "tool_call", b"toolUse": "tool_call", b"executableCode": "tool_call",
    b"functionResponse": "tool_result", b"function_response": "tool_result", b"toolResult": "tool_result",
    b"codeExecutionResult": "tool_result",
}  # fmt: skip
"""Kinds of parts without a `type`."""
KINDS_BY_TYPE = {
    **dict.fromkeys([b"text", b"input_text", b"output_text", b"refusal", b"message"], "text"),
    **dict.fromkeys([b"image", b"image_url", b"input_image", b"computer_screenshot"], "image"),
    **dict.fromkeys([b"audio", b"input_audio", b"audio_url", b"output_audio"], "audio"),
    **dict.fromkeys([b"file", b"input_file", b"document", b"video", b"video_url", b"container_upload"], "file"),
    **dict.fromkeys([b"thinking", b"redacted_thinking", b"reasoning", b"reasoning_text", b"summary_text", b"thought"], "reasoning"),
}  # fmt: skip
STRINGS = {
    TOOLS << 8: "tool", SYSTEM << 8: "system", MESSAGES << 8: "text", PARTS << 8: "text", IMAGES << 8: "image", THOUGHTS << 8: "reasoning",
    BODY << 8 | SETTING: "settings", BODY << 8 | MODEL: "model", BODY << 8 | SYSTEM: "system",
    **dict.fromkeys((BODY << 8 | name for name in (INPUT, PROMPT, TEXT, LAST, MESSAGES)), "text"),
    MESSAGE << 8 | CONTENT: "text", MESSAGE << 8 | THOUGHTS: "reasoning",
}  # fmt: skip
"""What contains a string, and what its name means (0: an element of an array) → the kind of segment that it is."""
_NOTHING, _MARK = (NONE, None), (MARK, None)
_SETTINGS, _MESSAGES = (SEGMENT, "settings"), (MESSAGES, None)
CONTAINERS: dict[int, tuple[tuple[int, str | None], tuple[int, str | None]]] = {
    BODY << 8 | TOOLS: (_NOTHING, (TOOLS, None)),
    BODY << 8 | SYSTEM: ((SYSTEM_OBJECT, None), (SYSTEM, None)),
    BODY << 8 | MESSAGES: ((MESSAGE, None), _MESSAGES),
    BODY << 8 | INPUT: ((BODY, None), _MESSAGES),
    BODY << 8 | TEXT: ((BODY, None), _MESSAGES),
    BODY << 8 | WRAPPER: ((BODY, None), (BODY, None)),
    BODY << 8 | PROMPT: (_SETTINGS, _MESSAGES),
    BODY << 8 | SETTING: (_SETTINGS, _SETTINGS),
    SYSTEM_OBJECT << 8 | CONTENT: ((SEGMENT, "system"), (SYSTEM, None)),
    MESSAGES << 8: ((MESSAGE, None), (SEGMENT, "text")),
    MESSAGE << 8 | CONTENT: ((SEGMENT, ""), (PARTS, None)),
    MESSAGE << 8 | CALLS: (_NOTHING, (CALLS, None)),
    MESSAGE << 8 | IMAGES: (_NOTHING, (IMAGES, None)),
    MESSAGE << 8 | THOUGHTS: ((SEGMENT, "reasoning"), (THOUGHTS, None)),
    MESSAGE << 8 | TOOLS: (_NOTHING, (TOOLS, None)),
    MESSAGE << 8 | FUNCTION: ((SEGMENT, "tool_call"), _NOTHING),
    MESSAGE << 8 | AUDIO: ((SEGMENT, "audio"), _NOTHING),
    MESSAGE << 8 | MARK: (_MARK, _NOTHING),
    GROUP << 8 | DECLARATIONS: ((TOOLS, None), (TOOLS, None)),
    SEGMENT << 8 | FUNCTION: ((INNER, None), _NOTHING),
    SEGMENT << 8 | CONTENT: (_NOTHING, (CONTENT, None)),
    INNER << 8 | CONTENT: (_NOTHING, (CONTENT, None)),
    CONTENT << 8: ((BLOCK, None), (BLOCK, None)),
    **dict.fromkeys((of << 8 | name for of in (SEGMENT, INNER) for name in (MARK, POINT)), (_MARK, _MARK)),
    **dict.fromkeys((BODY << 8 | MARK, BLOCK << 8 | MARK), (_MARK, _MARK)),
    **{of << 8: ((SEGMENT, kind), (SEGMENT, kind)) for of, kind in (
        (TOOLS, "tool"), (SYSTEM, "system"), (PARTS, ""), (CALLS, "tool_call"), (IMAGES, "image"), (THOUGHTS, "reasoning"),
    )},
}  # fmt: skip
"""As `STRINGS`, for an object and an array → what it is, and the kind of the segment that begins with it. "": its members say it."""
