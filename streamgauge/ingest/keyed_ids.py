"""Keyed hashes of client ids and session ids, and their key.

Equal values have equal hashes under one key. A value cannot be derived from its hash. The tap, `ship` and analytics on one data
folder share the key, so a session has the same id in a header and in a body.

A session, conversation or thread is named by a client in a header or in the request's body. The tap records the hash of a header
as the field `RECORDED`, and that of a subagent as `RECORDED_AGENT`; the headers themselves are never recorded. Values of headers
that are declared safe (`NAME:plain`) are recorded as they are, if they are identifiers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from streamgauge.ingest.identifiers import identifier
from streamgauge.ingest.private_files import write_private

FILE = "client.key"
"""File of the key in the data folder, unless `--client-key` is set."""
_KEY_BYTES = 32


def keyed_hash(value: bytes, key: bytes, *, kind: bytes = b"") -> str:
    """32 hex digits. The same value has different hashes for different kinds."""
    hasher = keyed_hasher(key, kind=kind)
    hasher.update(value)
    return hasher.hexdigest()


def keyed_hasher(key: bytes, *, kind: bytes = b"") -> hashlib.blake2b:
    """Computes the `keyed_hash` of a value that arrives in parts."""
    return hashlib.blake2b(key=key[:64], digest_size=16, person=kind)


def load_client_key(path: Path) -> bytes:
    """Read the hash key; create it on the first start. Processes that start at the same time get the same key.

    Raises OSError, and ValueError if the file has no valid key.
    """
    with contextlib.suppress(FileNotFoundError):
        key = path.read_bytes()
        if len(key) >= _KEY_BYTES // 2:
            return key
        raise ValueError(
            f"{path} holds no key: it is too short. Remove it to create a new one; client ids change then."
        )
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    write_private(fresh, secrets.token_bytes(_KEY_BYTES))
    with contextlib.suppress(FileExistsError):
        # `link` fails if the file exists, `rename` would replace it. So the key of the process that was first is
        # everybody's.
        os.link(fresh, path)
    fresh.unlink()
    return path.read_bytes()


RECORDED = "x-streamgauge-session-id"
"""Name of the recorded field with the session id. A client's own field of this name is not recorded."""
RECORDED_AGENT = "x-streamgauge-agent-id"
"""The session of the subagent that sent the request. `RECORDED` then has its parent's."""
AGENT_HEADER, PARENT_AGENT_HEADER = b"x-claude-code-agent-id", b"x-claude-code-parent-agent-id"
"""A subagent of Claude Code, and the one that started it. Their ids are unique in the session only."""
PARENT_HEADERS = (b"x-codex-parent-thread-id", b"x-parent-session-id")
"""The session of a subagent's parent: Codex, OpenCode."""
_OF_SUBAGENTS = (AGENT_HEADER, PARENT_AGENT_HEADER, *PARENT_HEADERS)
HEADERS = (
    "x-claude-code-session-id", "thread-id", "session-id", "session_id", "x-session-id", "x-opencode-session", "x-session-affinity",
    "x-litellm-session-id", "x-litellm-trace-id", "langfuse_session_id", "x-langfuse-session-id", "x-bf-session-id",
    "helicone-session-id", "x-openwebui-chat-id", "x-conversation-id", "conversation-id", "conversation_id", "x-chat-id",
    "x-thread-id", "x-task-id", "x-grok-conv-id", "mcp-session-id",
)  # fmt: skip
"""Headers with a session, the most specific first: Claude Code, Codex, OpenCode, LiteLLM, Langfuse, Bifrost, Helicone, Open WebUI,
LibreChat, agents, MCP. In a subagent of Codex, `thread-id` is its own and `session-id` that of the main agent."""
MAX_VALUE_BYTES = 1024
MAX_HEADERS = 32
_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,64}")
_CREDENTIALS = (
    "authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "x-goog-api-key",
)  # fmt: skip


def parse_session_header(text: str) -> tuple[str, bool]:
    """(name in lower case, whether its values are recorded as they are) of `NAME` or `NAME:plain`. Raises ValueError."""
    name, sep, option = text.strip().lower().partition(":")
    if not _NAME.fullmatch(name) or (sep and option != "plain"):
        raise ValueError(f"{text!r} is not a header such as x-my-session or x-my-session:plain")
    if name in _CREDENTIALS:
        raise ValueError(f"{text!r} is a header with a credential, which is never recorded")
    return name, bool(sep)


def parse_session_headers(found: object) -> tuple[str, ...]:
    """The headers of a plugin: a text or several, as `parse_session_header` takes them. Raises ValueError."""
    names = (
        (found,) if isinstance(found, str) else tuple(found) if isinstance(found, list | tuple) else (None,)
    )
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{found!r} is not a header such as x-my-session, or a list of them")
    for name in names:
        parse_session_header(name)
    return names


def session_hash(value: str, key: bytes) -> str:
    """The session id of a value that a client chose."""
    return keyed_hash(value.encode("utf-8", "surrogatepass"), key, kind=b"session")


class SessionHeaders:
    """Finds the session in the fields of a request's head. Configured names come before `HEADERS`."""

    def __init__(self, configured: Sequence[str], key: bytes) -> None:
        """`configured`: as `parse_session_header` takes them. Raises ValueError."""
        own = dict(map(parse_session_header, configured))
        names = dict.fromkeys((*own, *HEADERS))
        self.names = {name: number for number, name in enumerate((*map(str.encode, names), *_OF_SUBAGENTS))}
        self._own = {name.encode(): is_plain for name, is_plain in own.items()}
        self._key = key

    def recorded(self, fields: Iterable[Any]) -> list[tuple[str, str]]:
        """The fields to record. `fields`: each with its `name` in lower case and its `value`."""
        texts: dict[bytes, str] = {}
        for field in fields:
            if field.name in self.names and 0 < len(field.value) <= MAX_VALUE_BYTES:
                texts.setdefault(field.name, field.value.decode("utf-8", "replace"))
        name = min(
            (name for name in texts if name not in _OF_SUBAGENTS), key=self.names.__getitem__, default=None
        )
        text, agent = texts.get(name, "") if name else "", texts.get(AGENT_HEADER)
        own = parent = None
        if name is not None:
            own = identifier(text) or "" if self._own.get(name) else session_hash(text, self._key)
        if agent is not None:
            above = texts.get(PARENT_AGENT_HEADER)
            parent = session_hash(f"{text}/{above}", self._key) if above is not None else own
            own = session_hash(f"{text}/{agent}", self._key)
        elif name is not None and name not in self._own:
            above = next((texts[header] for header in PARENT_HEADERS if header in texts), text)
            parent = session_hash(above, self._key) if above != text else None
        is_subagent = agent is not None or parent is not None
        found = [(RECORDED, parent), (RECORDED_AGENT, own)] if is_subagent else [(RECORDED, own)]
        return [(field, value) for field, value in found if value is not None]
