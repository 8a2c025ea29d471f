"""Rules that a stream must follow, or clients with strict parsers reject it or misread it.

Each rule was derived from the published parsers of these clients, and tests run the clients on streams that break it.
`streams.violations` lists the codes of the broken rules. Which events show them: `streamgauge.analytics.decoding.client_checks`.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamgauge.analytics.schema.sql_quoting import literal

CHAT, MESSAGES, RESPONSES = "openai_chat", "anthropic_messages", "openai_responses"
"""Dialects with rules. They are values of `streams.dialect`."""

CLIENTS = {
    "openai-python": "OpenAI SDK for Python",
    "openai-node": "OpenAI SDK for Node",
    "anthropic-python": "Anthropic SDK for Python",
    "anthropic-node": "Anthropic SDK for Node",
    "ai-sdk": "Vercel AI SDK",
    "codex": "Codex",
    "claude-code": "Claude Code",
}
"""Name of a client → what readers see."""

_OF_DIALECT = {
    CHAT: {"py": "openai-python", "node": "openai-node", "ai": "ai-sdk"},
    MESSAGES: {"py": "anthropic-python", "node": "anthropic-node", "ai": "ai-sdk", "claude": "claude-code"},
    RESPONSES: {"py": "openai-python", "node": "openai-node", "ai": "ai-sdk", "codex": "codex"},
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule. A stream that breaks it has `code` in `streams.violations`."""

    code: str
    meaning: str
    """What the stream does, as one sentence."""
    clients: dict[str, tuple[str, ...]]
    """Dialect → the clients that fail or misread the stream, of `CLIENTS`."""


def _rule(code: str, meaning: str, *, chat: str = "", messages: str = "", responses: str = "") -> Rule:
    of_dialects = ((CHAT, chat), (MESSAGES, messages), (RESPONSES, responses))
    found = {d: tuple(_OF_DIALECT[d][name] for name in names.split()) for d, names in of_dialects if names}
    return Rule(code, meaning, found)


RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in (
        # The frame of the events
        _rule("invalid_json", "The data of an event is no JSON: merged or split events, or a text such as `ping`.",
              chat="py node ai", messages="py node ai claude", responses="py node ai"),
        _rule("invalid_utf8", "An event has bytes that are no UTF-8.", chat="py", messages="py", responses="py codex"),
        _rule("empty_data", "An event has an empty `data` line.", chat="py node ai", messages="ai", responses="py node ai"),
        _rule("event_without_data", "An `event` line has no `data` line.", chat="py node", responses="py node"),
        _rule("lone_field", "An `id` or `retry` line stands alone between blank lines.", chat="py", responses="py"),
        _rule("missing_data_prefix", "A line has JSON without `data:`, and clients skip it.",
              chat="py node ai", messages="py node ai claude", responses="py node ai codex"),
        _rule("byte_order_mark", "The stream begins with a byte order mark.", messages="py", responses="codex"),
        _rule("unterminated_end", "The last event lacks its blank line, and clients drop it.",
              chat="py node ai", messages="node ai claude", responses="py node ai codex"),
        _rule("zero_usage", "The usage counts 0 tokens for a prompt or for output.",
              chat="py node ai", messages="py node ai claude", responses="py node ai codex"),
        _rule("foreign_event", "An event is none of the API: a JSON ping, metrics or similar.",
              chat="node ai", messages="ai", responses="node"),
        _rule("wrong_type", "A member has another type or value than in the API, such as a number as a string.",
              chat="ai", messages="ai"),
        _rule("text_not_string", "Text, or the arguments of a tool call, is no string or in another member.",
              chat="py node ai", messages="py node ai claude", responses="py ai"),
        # Chat completions
        _rule("missing_choices", "A chunk, often that of the usage, has no array `choices`.", chat="py node ai"),
        _rule("null_error", 'A chunk has `"error": null`, which is read as an error.', chat="ai"),
        _rule("missing_id", "Chunks have no `id`: their usage is lost.", chat="node"),
        _rule("wrong_object", "The `object` of chunks is not `chat.completion.chunk`.", chat="py"),
        _rule("missing_index", "A choice has no `index`.", chat="py node ai"),
        _rule("missing_delta", "A choice, often that of the finish reason, has no `delta`.", chat="py"),
        _rule("missing_role", "No delta has the role `assistant`.", chat="node"),
        _rule("wrong_role", "A delta has another role than `assistant`.", chat="node ai"),
        _rule("usage_after_done", "A chunk follows `[DONE]`.", chat="py node"),
        _rule("tool_call_without_index", "A delta of a tool call has no `index`.", chat="py node ai"),
        _rule("tool_call_without_function", "A delta of a tool call has no `function`.", chat="py node ai"),
        _rule("tool_call_without_type", "A tool call has no `type`.", chat="node"),
        _rule("tool_call_without_name", "The first delta of a tool call has no name.", chat="ai"),
        _rule("repeated_tool_name", "Later deltas of a tool call repeat its name, which is appended.", chat="py"),
        _rule("tool_index_gap", "The indices of tool calls do not count from 0.", chat="py node"),
        _rule("tool_index_reused", "Two tool calls have the same index and become one.", chat="py node ai"),
        # Messages
        _rule("missing_event_name", "Events have no `event` line, and clients skip them.", messages="py node claude"),
        _rule("named_done", "`[DONE]` has an `event` line.", messages="py node"),
        _rule("missing_type", "The data of an event, a block or a delta has no `type`.",
              messages="py node ai claude", responses="py node ai codex"),
        _rule("missing_message_start", "The stream does not begin with `message_start`.", messages="py node ai claude"),
        _rule("repeated_message_start", "A second `message_start` arrives.", messages="node"),
        _rule("start_without_usage", "`message_start` has no count of input tokens.", messages="py node ai claude"),
        _rule("start_without_content", "`message_start` has no array `content`.", messages="py node"),
        _rule("delta_without_usage", "`message_delta` has no count of output tokens.", messages="py node ai claude"),
        _rule("delta_without_block", "A delta belongs to a block that did not start.", messages="py ai claude"),
        _rule("delta_after_block", "A delta belongs to a block that has stopped.", messages="ai"),
        _rule("unstopped_block", "A block has no `content_block_stop`.", messages="claude"),
        _rule("block_index_gap", "The indices of blocks do not count from 0.", messages="py node"),
        _rule("block_without_text", "A block of text starts without the member `text`.", messages="py ai"),
        _rule("missing_message_stop", "The stream ends without `message_stop`.", messages="node ai claude"),
        # Responses
        _rule("missing_response_created", "The stream does not begin with `response.created`.", responses="py node"),
        _rule("response_id_changes", "The id of the response changes.", responses="py"),
        _rule("item_id_changes", "A message has another id when it is done than when it was added.", responses="py ai"),
        _rule("delta_of_other_item", "Text has another item id than its output item, or no output item.", responses="ai"),
        _rule("text_without_delta", "Text arrives only in the final events, and not in deltas.", responses="ai"),
        _rule("incomplete_event", "An event lacks a member that the API documents as required.", responses="ai"),
        _rule("item_not_added", "Output has no `response.output_item.added` before it.", responses="py node"),
        _rule("part_not_added", "Text has no content part at its `content_index`, counted from 0.", responses="py node"),
        _rule("item_without_content", "A message is added without the array `content`.", responses="py node"),
        _rule("output_index_gap", "The indices of output items do not count from 0.", responses="node"),
        _rule("missing_output", "A response object has no array `output`.", responses="node"),
        _rule("empty_final_output", "`response.completed` has an empty `output` after output was streamed.", responses="py node"),
        _rule("missing_item_done", "An output item has no `response.output_item.done` before the end.", responses="codex"),
        _rule("call_without_id", "A function call is done without its `call_id`, and is lost.", responses="codex"),
        _rule("missing_response_completed", "Another event than `response.completed` ends the stream.", responses="py node ai codex"),
        _rule("completed_without_id", "`response.completed` has no id of the response.", responses="py codex"),
        _rule("missing_usage", "`response.completed` has no count of input tokens.", responses="py node ai codex"),
        _rule("incomplete_usage", "The usage lacks a count that Codex requires.", responses="codex"),
    )
}  # fmt: skip
"""Code → rule, in the order of the documentation."""


def clients_of(code: str, dialect: str) -> tuple[str, ...]:
    """The clients that a violation breaks. () for a dialect without the rule."""
    rule = RULES.get(code)
    return rule.clients.get(dialect, ()) if rule is not None else ()


CLIENT_RULES = ", ".join(
    f"({literal(rule.code)}, {literal(dialect)}, [{', '.join(map(literal, clients))}], {literal(rule.meaning)})"
    for rule in RULES.values()
    for dialect, clients in rule.clients.items()
)
"""Rows of (rule, dialect, clients, meaning) as SQL."""
