"""SQL of the dimensions of a stream. Unknown values have a name, so that a filter can select them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamgauge.analytics.schema.clients import is_client_id
from streamgauge.analytics.schema.sql_quoting import later, literal

MODEL = "coalesce(request_model, response_model, '(no model)')"
"""The requested model, else the one in the response."""
GATEWAY = "coalesce(gateway, '(no gateway)')"
NO_KEY = "(no key)"
CLIENT = f"coalesce(client_id, '{NO_KEY}')"
UNKNOWN_APP = "(unknown)"
APP = f"coalesce(client_app, '{UNKNOWN_APP}')"
ENDED_AT = later("started_at", "coalesce(end_ns, 0)")
"""When a stream ended."""
INFERENCE = ("chat", "generate_content", "text_completion")
"""Operations that generate output."""
GENERATES = f"operation IN {INFERENCE}"
MEDIA = (
    "/images/generations", "/images/edits", "/images/variations", "/audio/speech", "/audio/transcriptions", "/audio/translations",
)  # fmt: skip
"""Ends of the paths of requests for images and speech: neither bytes nor characters tell their tokens."""
COUNT_TOKENS = "count_tokens"
"""Operation that counts a prompt and uses none of its tokens."""
SIDE_CALL = "side_call"
"""Operation of a program besides its conversations: titles, routers, warm-ups."""
WARM_UP = "warm_up"
"""Operation of a request that prepares the next one and generates nothing."""
WEBSOCKET = "websocket"
"""Operation of the row of a WebSocket."""
WEB = "web"
"""Operation of what programs and browsers fetch besides the API: `HEAD /`, icons, pages with what they show, CORS preflights."""
NO_REQUESTS = (WARM_UP, WEBSOCKET, WEB)
"""Operations that are in no count or share of requests, and have no objective and no roll-ups, because no client waits for their answer."""
HAS_ROLLUPS = f"coalesce(operation, '') NOT IN {NO_REQUESTS}"
SIDE_OPERATIONS = (COUNT_TOKENS, SIDE_CALL, "embeddings", "moderation", "rerank", *NO_REQUESTS)
"""They belong to no conversation."""
MCP, A2A = CALLED = ("mcp", "a2a")
"""The dialects of calls of tools and of other agents. Sessions have no turns of them."""
IS_CALL = f"coalesce(dialect, '') IN {CALLED}"
TO_MODEL = f"NOT {IS_CALL} AND {HAS_ROLLUPS}"
CALLS_MODEL = f"coalesce(operation, '') NOT IN {SIDE_OPERATIONS} AND {TO_MODEL}"
"""SQL conditions: a stream is a call of a tool or agent; it is a request, and no such call; it is a request of a conversation."""
TOOL_OPERATIONS = (
    "tools/call", "tasks/result", "prompts/get", "resources/read", "SendMessage", "SendStreamingMessage", "SubscribeToTask",
)  # fmt: skip
"""Operations of MCP and A2A that an agent waits for. The others connect, list or listen: they are no tool time."""
LEAST_LOOP = 3
"""A turn that has a tool call so often, with the same arguments and result, is a loop."""
INPUT_TOKENS = f"CASE WHEN operation IS DISTINCT FROM '{COUNT_TOKENS}' THEN input_tokens END"
"""SQL of the used input tokens of a stream, for sums and costs."""
MOST_NAMES = 100
"""Models, clients, their programs and error types that a minute of the roll-ups keeps."""
MOST_LABEL_VALUES = 200
"""Values of each label that a minute of the roll-ups keeps."""
OTHER = "_other"
"""Name of all others."""
DIMENSIONS: dict[str, str] = {"model": MODEL, "gateway": GATEWAY, "client": CLIENT, "app": APP}
"""Dimension → SQL of its value."""

LABEL = "label"
"""Filter of labels. Its values are texts NAME=VALUE."""


def dimension(name: str, groups: Mapping[str, str] = DIMENSIONS) -> str:
    """SQL of the value of one of the groupings, or of the label of this name."""
    return groups.get(name) or label(name)


def label(name: str) -> str:
    """SQL of the value of a label."""
    return f"coalesce(labels[{literal(name)}], '(none)')"


def has_labels(values: Sequence[str]) -> str:
    """SQL condition: of each label among the texts NAME=VALUE, the stream has one of the values."""
    chosen: dict[str, list[str]] = {}
    for name, _, value in (text.partition("=") for text in values):
        chosen.setdefault(name, []).append(value)
    return " AND ".join(is_one_of(label(name), of) for name, of in chosen.items())


def is_one_of(column: str, values: Sequence[str]) -> str:
    """SQL condition: the dimension has one of the values."""
    return f"{column} IN ({', '.join(map(literal, values))})"


def is_client(column: str, values: Sequence[str]) -> str:
    """As `is_one_of`. A value is a client id, or the name that readers show instead."""
    names = [value for value in values if not is_client_id(value)]
    if not names:
        return is_one_of(column, values)
    named = f"SELECT client_id FROM clients WHERE {is_one_of('name', names)}"
    return f"({is_one_of(column, values)} OR {column} IN ({named}))"
