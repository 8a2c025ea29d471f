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
        _rule("invalid_json", "The data of an event is no JSON object: merged or split events, or a text such as `ping`.",
              chat="py node ai", messages="py node ai claude", responses="py node ai"),
        _rule("invalid_utf8", "An event has bytes that are no UTF-8.", chat="py", messages="py", responses="py codex"),
        _rule("empty_data", "An event has an empty `data` line.", chat="py node ai", messages="ai", responses="py node ai"),
        _rule("event_without_data", "An `event` line has no `data` line.", chat="py node", responses="py node"),
        _rule("lone_field", "An `id` or `retry` line stands alone between blank lines.", chat="py", responses="py"),
        _rule("missing_data_prefix", "A line has JSON without `data:`, and clients skip it.",
              chat="py node ai", messages="py node ai claude", responses="py node ai codex"),
        _rule("byte_order_mark", "The stream begins with a byte order mark.", messages="py", responses="codex"),
        _rule("hidden_first_event", "A byte order mark precedes an event with the role or content, which is lost.", chat="py"),
        _rule("unterminated_end", "The last event lacks its blank line, and clients drop it.",
              chat="py node ai", messages="node ai claude", responses="py node ai codex"),
        _rule("padded_done", "`[DONE]` has other characters after it, such as a space.", chat="ai", responses="ai"),
        _rule("foreign_event", "An event is none of the API: a JSON ping, metrics or similar.",
              chat="node ai", messages="ai", responses="node"),
        _rule("wrong_type", "A member that the client validates is missing or has another type than in the API.",
              chat="ai", messages="ai"),
        _rule("text_not_string", "Text, or the arguments of a tool call, is no string or in another member.",
              chat="node ai", messages="node ai claude", responses="py ai"),
        # Chat completions
        _rule("missing_choices", "A chunk, often that of the usage, has no array `choices`, or one with null.", chat="py node ai"),
        _rule("wrong_choice", "A choice or a tool call is no object.", chat="py ai"),
        _rule("null_error", 'A chunk has `"error": null`, which is read as an error.', chat="ai"),
        _rule("late_error", "An error follows the finish reason.", chat="py node ai"),
        _rule("missing_id", "The chunk of the usage has no `id`, and the usage is lost.", chat="node"),
        _rule("usage_not_last", "A chunk without the usage follows the chunk that has it, and the usage is lost.", chat="py"),
        _rule("usage_then_null", "A chunk with another `usage` follows, such as null, and the usage is lost.", chat="node"),
        _rule("wrong_object", "The `object` of a chunk with content, or with the role, is not `chat.completion.chunk`.", chat="py"),
        _rule("missing_index", "The `index` of a choice is missing or no whole number.", chat="py"),
        _rule("missing_choice", "No choice has the `index` 0.", chat="node"),
        _rule("choice_index_gap", "The indices of choices do not count from 0.", chat="py"),
        _rule("missing_delta", "A choice, often that of the finish reason, or an event with a delta, has none.", chat="py", messages="py"),
        _rule("missing_finish", "A choice has no finish reason.", chat="node"),
        _rule("missing_role", "A choice has another role than `assistant`, or none.", chat="node"),
        _rule("wrong_role", "A delta has another role than `assistant`.", chat="ai"),
        _rule("wrong_logprobs", "The `logprobs` of a choice are no object.", chat="py ai"),
        _rule("message_beside_delta", "A choice has a `message` beside its `delta`, which replaces all text so far.", chat="node"),
        _rule("unjoined_text", "A text is no string, follows a value that is none, or is in a list of parts.", chat="py", messages="py"),
        _rule("unindexed_list", "The entries of a list in a delta, such as `reasoning_details`, have no `index`.", chat="py"),
        _rule("usage_after_done", "Content, the role or usage follows `[DONE]`.", chat="py node", responses="py node"),
        _rule("wrong_tool_calls", "The tool calls of a delta are no list.", chat="py node ai"),
        _rule("tool_call_without_index", "A delta of a tool call has no `index`.", chat="py node ai"),
        _rule("tool_call_without_function", "A delta of a tool call has no object `function`.", chat="py ai"),
        _rule("tool_call_without_type", "A tool call has no `type` or no `function` when it ends.", chat="node"),
        _rule("wrong_tool_type", "The `type` of a tool call is not `function`.", chat="node"),
        _rule("tool_type_changes", "The `type` of a tool call is `custom`, or changes.", chat="py"),
        _rule("tool_call_without_name", "The first delta of a tool call has no name.", chat="ai"),
        _rule("repeated_tool_name", "Later deltas of a tool call repeat its name, which is appended.", chat="py"),
        _rule("tool_index_gap", "The indices of tool calls do not count from 0.", chat="py node"),
        _rule("tool_index_reused", "Two tool calls have the same index and become one.", chat="py node ai"),
        # Messages
        _rule("missing_event_name", "Events have no `event` line, and clients skip them.", messages="py node claude"),
        _rule("invalid_ping", "The data of a ping, or of an event without a name, is no JSON.", messages="ai"),
        _rule("named_done", "`[DONE]` has an `event` line.", messages="py node"),
        _rule("missing_type", "The data of an event has no `type`.", messages="ai claude", responses="node ai codex"),
        _rule("missing_message_start", "The stream does not begin with `message_start`.", messages="py node claude"),
        _rule("repeated_message_start", "A second `message_start` arrives.", messages="node"),
        _rule("second_message", "A message starts before the message with another id has stopped.", messages="ai"),
        _rule("message_without_usage", "`message_start` has no message with an object `usage`.", messages="py node"),
        _rule("start_without_usage", "`message_start` has no count of input tokens.", messages="ai claude"),
        _rule("start_without_content", "`message_start` has no array `content` for the blocks.", messages="py node"),
        _rule("null_delta", "The delta or the usage of an event is missing or null.", messages="node"),
        _rule("delta_without_usage", "`message_delta` has no object `usage`.", messages="py ai claude"),
        _rule("uncounted_delta", "`message_delta` has no count of output tokens.", messages="ai claude"),
        _rule("wrong_count", "`message_delta` has a count of input tokens that is no number.", messages="py node ai"),
        _rule("finish_after_stop", "The finish reason or the usage follows `message_stop`.", messages="node ai claude"),
        _rule("content_after_stop", "A delta follows `message_stop`.", messages="node"),
        _rule("finish_overwritten", "A `message_delta` without a finish reason follows the one that has it.", messages="py node ai"),
        _rule("delta_without_type", "A delta has no `type`.", messages="ai claude"),
        _rule("delta_without_block", "A delta belongs to a block that did not start.", messages="py"),
        _rule("delta_before_blocks", "A delta arrives before any block.", messages="node"),
        _rule("inactive_block", "Text or reasoning belongs to a block of another type, or to none.", messages="ai claude"),
        _rule("delta_after_block", "A delta belongs to a block that has stopped.", messages="ai"),
        _rule("block_without_index", "The `index` of a delta or of the end of a block is no whole number.", messages="py ai claude"),
        _rule("stop_without_block", "A block stops that did not start.", messages="py"),
        _rule("unstopped_block", "A block has no `content_block_stop`.", messages="claude"),
        _rule("unstopped_tool", "A tool call has no `content_block_stop`, and is lost.", messages="ai"),
        _rule("reopened_tool", "A block starts at the index of a tool call that is open, and the call is lost.", messages="ai"),
        _rule("block_index_gap", "The index of a block is not its place in the message, and its deltas are lost.", messages="py node"),
        _rule("start_without_block", "`content_block_start` has no object `content_block`.", messages="py ai"),
        _rule("block_without_text", "A block of text or thinking starts without the member of this name.", messages="py ai"),
        _rule("block_without_thinking", "A block of thinking starts without text, or a block with a text that is no string.",
              messages="node ai"),
        _rule("malformed_input", "The arguments of a tool call are no JSON.", messages="node"),
        _rule("unparsable_input", "Arguments of a tool call have a fault beside a missing comma.", messages="py"),
        _rule("missing_message_stop", "The stream ends without `message_stop`.", messages="node ai claude"),
        # Responses
        _rule("missing_response_created", "The stream does not begin with `response.created`.", responses="py node"),
        _rule("response_id_changes", "The id of the response changes.", responses="py"),
        _rule("incomplete_event", "An event lacks a required member, or has one of another type.", responses="ai"),
        _rule("missing_item", "The `item` of an event is no object.", responses="py"),
        _rule("null_item", "The `item` of an event is missing or null.", responses="node codex"),
        _rule("output_index_reused", "Two output items have the same index.", responses="py"),
        _rule("item_id_changes", "An output item has another id or type when it is done than when it was added.", responses="py"),
        _rule("item_id_repeats", "Two output items are the same.", responses="py codex"),
        _rule("item_done_again", "A tool call is done twice, and becomes two.", responses="ai"),
        _rule("message_not_open", "A message is done that was not added, or twice.", responses="ai"),
        _rule("reasoning_not_open", "Reasoning belongs to an item or a part that is not open.", responses="ai"),
        _rule("delta_of_other_item", "Text has another item id than its output item, or no output item.", responses="ai"),
        _rule("delta_of_other_type", "A delta belongs to an output item of another type.", responses="py"),
        _rule("text_without_delta", "Text arrives only in the final events, and not in deltas.", responses="ai"),
        _rule("item_not_added", "Output has no `response.output_item.added` before it.", responses="py node"),
        _rule("unknown_output_index", "Output has another index than its output item.", responses="py"),
        _rule("output_index_gap", "An event has an output index that is not the place of an output item.", responses="node"),
        _rule("missing_part", "`response.content_part.added` has no object `part`, or none with a text.", responses="py"),
        _rule("part_not_added", "Text has no content part at its `content_index`, counted from 0.", responses="py node"),
        _rule("part_of_other_type", "Text has no content part of text in its output item.", responses="py"),
        _rule("unknown_part", "A part has no `response.content_part.added` before it.", responses="node"),
        _rule("reasoning_part_not_added", "Text of reasoning has no content part at its `content_index`.", responses="node"),
        _rule("summary_part_not_added", "A summary has no part at its `summary_index`.", responses="node"),
        _rule("item_without_content", "A message has no array `content`.", responses="py node"),
        _rule("missing_output", "A response object has no array `output`.", responses="node"),
        _rule("empty_final_output", "`response.completed` lacks output that was streamed.", responses="py node"),
        _rule("missing_item_done", "An output item has no `response.output_item.done` before the end.", responses="codex"),
        _rule("call_without_done", "A tool call has no `response.output_item.done`, and is lost.", responses="ai"),
        _rule("unfinished_item", "An output item is neither done nor in `response.completed`.", responses="py"),
        _rule("call_without_id", "A function call is done without its `call_id`, and is lost.", responses="codex"),
        _rule("missing_response_completed", "Another event than `response.completed` ends the stream.", responses="py node ai codex"),
        _rule("incomplete_response", "The stream ends with `response.incomplete`, and the helper raises.", responses="py codex"),
        _rule("event_after_completed", "An output item or another state of the response follows `response.completed`.", responses="node"),
        _rule("completed_without_id", "`response.completed` has no id of the response.", responses="py codex"),
        _rule("wrong_status", "The status of the final response is not that of its event.", responses="py node"),
        _rule("missing_usage", "`response.completed` has no count of input tokens.", responses="codex"),
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
