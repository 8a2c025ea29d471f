"""Session headers of clients: which one is recorded, and how."""

from __future__ import annotations

import pytest

from streamgauge.ingest.http1.heads import HeadLimits, read_request_head
from streamgauge.ingest.identifiers import is_identifier
from streamgauge.ingest.keyed_ids import (
    RECORDED,
    RECORDED_AGENT,
    SessionHeaders,
    parse_session_header,
    session_hash,
)

KEY = b"k" * 32
UUID = "54c1eb09-bc4c-4d2f-98eb-6d2ab2d5e2fe"
THREAD = "0198f3c5-3f6e-7c4e-8e4f-0c6a5b1d2e3f"
SESSION = "ses_f84c6ba38ffe6UeTRaX25G3KTr"


def recorded(*headers: tuple[str, str], configured: tuple[str, ...] = ()) -> tuple[str, str] | None:
    """The session."""
    return next(iter(recorded_fields(*headers, configured=configured)), None)


def recorded_fields(*headers: tuple[str, str], configured: tuple[str, ...] = ()) -> list[tuple[str, str]]:
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
    raw = f"POST /v1/messages HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n{lines}\r\n"
    return SessionHeaders(configured, KEY).recorded(read_request_head(raw.encode(), HeadLimits()).fields)


@pytest.mark.parametrize(
    ("headers", "session"),
    [
        pytest.param([("User-Agent", "claude-cli/2.1.90 (external, cli)"), ("x-app", "cli"),
                      ("anthropic-beta", "claude-code-20250219"), ("X-Claude-Code-Session-Id", UUID)], UUID, id="Claude Code"),
        pytest.param([("originator", "codex_cli_rs"), ("User-Agent", "codex_cli_rs/0.160.0"), ("thread-id", THREAD),
                      ("session-id", UUID), ("x-client-request-id", THREAD)], THREAD, id="Codex"),
        pytest.param([("originator", "codex_cli_rs"), ("conversation_id", UUID), ("session_id", UUID)], UUID, id="Codex of 2025"),
        pytest.param([("User-Agent", "opencode/1.18.25 ai-sdk/provider-utils/4.0.23 runtime/bun/1.3.14"),
                      ("x-session-id", SESSION), ("x-session-affinity", SESSION)], SESSION, id="OpenCode"),
        pytest.param([("x-opencode-project", "p"), ("x-opencode-session", SESSION), ("x-opencode-request", "r")], SESSION,
                     id="OpenCode Zen"),
        pytest.param([("x-litellm-trace-id", "t"), ("x-litellm-session-id", "s 1")], "s 1", id="LiteLLM"),
        pytest.param([("langfuse_session_id", "s2"), ("langfuse_trace_id", "t")], "s2", id="Langfuse through LiteLLM"),
        pytest.param([("Helicone-Session-Id", "h"), ("Helicone-Session-Path", "/a")], "h", id="Helicone"),
        pytest.param([("X-OpenWebUI-User-Id", "u"), ("X-OpenWebUI-Chat-Id", UUID)], UUID, id="Open WebUI"),
        pytest.param([("X-Conversation-Id", UUID)], UUID, id="LibreChat"),
        pytest.param([("X-Task-ID", "1712345678901")], "1712345678901", id="Cline"),
        pytest.param([("mcp-session-id", UUID), ("mcp-protocol-version", "2025-11-25")], UUID, id="MCP"),
        pytest.param([("User-Agent", "OpenAI/Python 2.0"), ("x-request-id", UUID), ("traceparent", "00-1-2-01")], None,
                     id="OpenAI SDK"),
        pytest.param([("session-id", ""), ("x-session-id", UUID)], UUID, id="empty value"),
        pytest.param([("session-id", "x" * 1025)], None, id="too long"),
        pytest.param([("x-streamgauge-session-id", "forged")], None, id="own field"),
    ],
)  # fmt: skip
def test_headers_of_clients(headers: list[tuple[str, str]], session: str | None) -> None:
    found = recorded(*headers)
    assert found == (None if session is None else (RECORDED, session_hash(session, KEY)))
    if found is not None:
        assert is_identifier(found[1])


def test_subagent_is_hashed_with_its_session() -> None:
    found = [
        recorded_fields(("X-Claude-Code-Session-Id", session), ("X-Claude-Code-Agent-Id", "a1"))
        for session in (UUID, "other")
    ]
    assert [[name for name, _ in fields] for fields in found] == [[RECORDED, RECORDED_AGENT]] * 2
    assert found[0][0] == (RECORDED, session_hash(UUID, KEY))
    assert found[0][1] != found[1][1]
    assert [name for name, _ in recorded_fields(("x-claude-code-agent-id", "a1"))] == [RECORDED_AGENT]


@pytest.mark.parametrize(
    ("headers", "own", "parent"),
    [
        pytest.param([("session-id", UUID), ("thread-id", THREAD), ("x-codex-parent-thread-id", UUID),
                      ("x-openai-subagent", "collab_spawn")], THREAD, UUID, id="Codex"),
        pytest.param([("x-session-affinity", SESSION), ("X-Session-Id", SESSION), ("x-parent-session-id", "ses_1")], SESSION, "ses_1",
                     id="OpenCode"),
        pytest.param([("x-opencode-session", SESSION), ("x-parent-session-id", "ses_1")], SESSION, "ses_1", id="OpenCode Zen"),
        pytest.param([("x-claude-code-session-id", UUID), ("x-claude-code-agent-id", "a1")], f"{UUID}/a1", UUID, id="Claude Code"),
        pytest.param([("x-claude-code-session-id", UUID), ("x-claude-code-agent-id", "a2"), ("x-claude-code-parent-agent-id", "a1")],
                     f"{UUID}/a2", f"{UUID}/a1", id="subagent of a subagent of Claude Code"),
        pytest.param([("session-id", UUID), ("thread-id", UUID), ("x-codex-parent-thread-id", UUID)], UUID, None, id="its own parent"),
        pytest.param([("x-parent-session-id", "ses_1")], None, None, id="no session of its own"),
    ],
)  # fmt: skip
def test_subagent_has_its_session_and_its_parents(
    headers: list[tuple[str, str]], own: str | None, parent: str | None
) -> None:
    expected = [(RECORDED, parent), (RECORDED_AGENT, own)] if parent else [(RECORDED, own)]
    assert recorded_fields(*headers) == [(name, session_hash(id_, KEY)) for name, id_ in expected if id_]


def test_configured_header_names_no_subagent() -> None:
    headers = ("x-run", "r"), ("thread-id", THREAD), ("x-codex-parent-thread-id", UUID)
    assert recorded_fields(*headers, configured=("x-run",)) == [(RECORDED, session_hash("r", KEY))]


def test_configured_header_comes_first_and_is_hashed_unless_declared_plain() -> None:
    headers = ("session-id", "a"), ("X-Run", "run-7")
    assert recorded(*headers, configured=("x-run",)) == (RECORDED, session_hash("run-7", KEY))
    assert recorded(*headers, configured=("X-Run:plain",)) == (RECORDED, "run-7")
    _, text = recorded(("x-run", "some words of a prompt"), configured=("x-run:plain",)) or ("", "")
    assert text.startswith("hashed:")


def test_hash_depends_on_the_key_and_is_not_that_of_a_client_id() -> None:
    from streamgauge.ingest.http1.client_identity import client_id

    assert session_hash("s", KEY) != session_hash("s", b"j" * 32)
    assert session_hash("s", KEY) != client_id({b"x-api-key": b"s"}, KEY)


@pytest.mark.parametrize("text", ["", "a b", "x-run:safe", "x-run:", "é"])
def test_wrong_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a header such as x-my-session or x-my-session:plain"):
        parse_session_header(text)


@pytest.mark.parametrize("text", ["Authorization:plain", "cookie", "x-api-key"])
def test_header_with_a_credential_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is a header with a credential, which is never recorded"):
        parse_session_header(text)
