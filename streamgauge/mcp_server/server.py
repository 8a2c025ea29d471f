"""The tools with their descriptions (`descriptions.md`), registered with the official SDK, and their service over HTTP at `/mcp`.

The descriptions are for a language model that is on call: what the tool answers, its units, and what to call next.

Over HTTP
- Every request needs the bearer token, and must name an allowed host and origin (`streamgauge.ingest.listening`).
- There are no sessions: each request stands for itself, so a client that leaves keeps nothing here.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import secrets
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import CallToolResult, TextContent, ToolAnnotations

from streamgauge.analytics.intake.connection_limits import ReceiverLimits
from streamgauge.analytics.query.query_errors import QueryError, to_wire
from streamgauge.ingest import listening
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.ready_file import remove_ready_file, write_ready_file
from streamgauge.mcp_server.tools import MAX_ANSWER_BYTES, MAX_ROWS, TIMEOUT_S, Tools

_LIMITS = {"answer_kib": MAX_ANSWER_BYTES // 1024, "max_rows": MAX_ROWS, "timeout_s": f"{TIMEOUT_S:g}"}
_SECTIONS = (
    Path(__file__).with_name("descriptions.md").read_text("utf-8").format(**_LIMITS).split("\n## ")[1:]
)
TEXTS = {name: text.strip() for name, _, text in (section.partition("\n") for section in _SECTIONS)}
"""The instructions, and the descriptions of the tools by name."""

PATH = "/mcp"
MAX_BODY_BYTES = 256 * 1024
MAX_BODIES_BYTES = 64 * MAX_BODY_BYTES
MAX_CONNECTIONS = 64
STOP_WITHIN_S = 2
READ_ONLY = ToolAnnotations(
    read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False
)


def new_server(tools: Tools, version: str, *, hidden: str | None = None) -> MCPServer[Any]:
    """The server. `hidden`: a text that is removed from errors, such as the path of the store for readers elsewhere."""
    logging.getLogger("mcp").setLevel(logging.ERROR)  # failed calls are answers, not faults of the server
    server: MCPServer[Any] = MCPServer(
        "streamgauge",
        title="Streamgauge",
        instructions=TEXTS["instructions"],
        version=version,
        log_level="ERROR",
    )

    def answering(tool: Callable[..., Mapping[str, Any]]) -> Callable[..., CallToolResult]:
        @functools.wraps(tool)  # the SDK reads the schemas of arguments and answers from its annotations
        def answer(**arguments: Any) -> CallToolResult:
            try:
                found = dict(tool(**arguments))
            except (QueryError, ValueError) as e:
                error = e if isinstance(e, QueryError) else QueryError(str(e))
                text = str(to_wire(error, hidden)["message"])
                if error.position is not None:
                    text += f" Position: character {error.position + 1}."
                return CallToolResult(content=[TextContent(text=text)], is_error=True)
            compact = json.dumps(found, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            return CallToolResult(content=[TextContent(text=compact)], structured_content=found)

        return answer

    tool: Callable[..., Any]
    for tool in (tools.describe_tables, tools.query, tools.diagnose, tools.stream, tools.context):
        title = tool.__name__.replace("_", " ").capitalize()
        server.add_tool(answering(tool), title=title, description=TEXTS[tool.__name__], annotations=READ_ONLY)
    return server


class BearerGate:
    """ASGI middleware that admits requests with `Authorization: Bearer TOKEN`.

    The SDK's own check of tokens is a part of OAuth: it publishes an authorization server, which clients then ask, and we have none.
    """

    def __init__(self, app: listening.AsgiApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(
        self, scope: listening.Message, receive: listening.Receive, send: listening.Send
    ) -> None:
        if scope["type"] == "http":
            # Two headers are refused: a proxy in front may have checked only the other one.
            given = [value for name, value in scope["headers"] if name == b"authorization"]
            if len(given) != 1 or not listening.has_token(given[0], self._token):
                reason = (
                    "request refused: it has no valid token. Send the header Authorization: Bearer TOKEN."
                )
                await listening.refuse(scope, send, reason, 401, (b"www-authenticate", b"Bearer"))
                return
        await self._app(scope, receive, send)


def gated(server: MCPServer[Any], token: str, hosts: listening.AllowedHosts) -> listening.AsgiApp:
    """The ASGI application behind both gates."""
    app: listening.AsgiApp = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, max_request_body_size=MAX_BODY_BYTES,
        # `HostGate` protects. The SDK compares whole Host headers with a list, which would refuse addresses and subdomains.
        transport_security=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )  # fmt: skip
    # The host comes first: a page of a foreign site must not find out whether its token is right.
    return listening.HostGate(BearerGate(app, token), hosts)


def serve(
    server: MCPServer[Any],
    *,
    listen: str,
    token: str | None,
    allowed_hosts: Iterable[str],
    data: Path,
    ready: Callable[[str], None],
) -> None:
    """Run until stopped. `listen`: HOST:PORT, port 0 any free port. `token` None: a random one. Clients read both from `run/mcp.json`.

    `ready` gets the URL. Raises ValueError for a token that is too short, OSError if it cannot listen.
    """
    listening.check_token("--mcp-token", token)
    token = token or secrets.token_urlsafe(32)
    # Not by uvicorn, which exits when the port is in use, and so could not name the flag.
    listener = listening.bind(listen, flag="--mcp-listen")
    host, _ = listening.split_address(listen)
    listener.listen(MAX_CONNECTIONS)
    limits = ReceiverLimits(max_connections=MAX_CONNECTIONS, max_bytes=MAX_BODIES_BYTES)
    config = uvicorn.Config(
        gated(server, token, listening.AllowedHosts(allowed_hosts, listen_host=host)),
        log_config=None, log_level="warning", access_log=False, ws="none", proxy_headers=False, server_header=False,
        # With deadlines, and a share for each client address, which uvicorn's `limit_concurrency` does not have.
        http=limits.connection,  # type: ignore[arg-type]  # any callable
        timeout_graceful_shutdown=STOP_WITHIN_S,
    )  # fmt: skip
    service = uvicorn.Server(config)
    url = f"http://{listening.join_address(host, listener.getsockname()[1])}{PATH}"
    ready_file = data / "run" / "mcp.json"
    prepare_data_folder(data)  # a failed start creates nothing
    write_ready_file(ready_file, {"url": url, "token": token})
    try:
        ready(url)
        with _without_a_second_signal():
            service.run(sockets=[listener])
    finally:
        remove_ready_file(ready_file)
        listener.close()


@contextlib.contextmanager
def _without_a_second_signal() -> Iterator[None]:
    """uvicorn raises the signal that stopped it again when it has ended. Ignore it, so that the command ends cleanly."""
    before = {kind: signal.signal(kind, lambda *_: None) for kind in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
