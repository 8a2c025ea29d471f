"""The names of the request formats that matter to the segments of a prompt, and what they mean.

Settings are the parameters that belong to the cached prefix by the vendors' documentation. Parameters of sampling are none.
"""

from __future__ import annotations

# What an open container is.
(NONE, BODY, TOOLS, SYSTEM, SYSTEM_OBJECT, MESSAGES, MESSAGE, PARTS, CALLS, IMAGES, THOUGHTS, DEEP, SEGMENT, INNER,
 CONTENT, BLOCK, MARK, GROUP) = range(18)  # fmt: skip
# What a name means. Several of them are names in the body and in a message.
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
"""`request` is of Code Assist, `input` and `parameters` of DashScope, `session` and `response` of the Realtime API."""
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
"""Of parts without a `type`."""
KINDS_BY_TYPE = {
    **dict.fromkeys([b"text", b"input_text", b"output_text", b"refusal", b"message"], "text"),
    **dict.fromkeys([b"image", b"image_url", b"input_image", b"computer_screenshot"], "image"),
    **dict.fromkeys([b"audio", b"input_audio", b"audio_url", b"output_audio"], "audio"),
    **dict.fromkeys([b"file", b"input_file", b"document", b"video", b"video_url", b"container_upload"], "file"),
    **dict.fromkeys([b"thinking", b"redacted_thinking", b"reasoning", b"reasoning_text", b"summary_text", b"thought"], "reasoning"),
}  # fmt: skip
