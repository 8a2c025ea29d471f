"""The command: options, transport, and a clean end."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
from typing import Any

import click

from streamgauge import __version__
from streamgauge.analytics.extras import require
from streamgauge.settings.flags import settings_options
from streamgauge.settings.model import settings_of

log = logging.getLogger("streamgauge")


@click.command("mcp")
@click.option(
    "--http",
    is_flag=True,
    help="Serve over streamable HTTP at --mcp-listen instead of stdin and stdout.",
)
@settings_options(*settings_of("mcp"))
def mcp_command(http: bool, **given: Any) -> int:
    """Run the MCP server for agents.

    The tools describe_tables, query, diagnose, stream and context only read. Analytics may be running or stopped. The server ends with its
    stdin or, with --http, at SIGTERM.
    """
    require("mcp")
    from streamgauge.analytics.storage.location import locate
    from streamgauge.ingest.ready_file import silence
    from streamgauge.mcp_server.server import new_server, serve
    from streamgauge.mcp_server.tools import Tools
    from streamgauge.process_logging import configure_logging
    from streamgauge.settings.flags import load_with_running_parts

    settings = load_with_running_parts(given)
    configure_logging(settings.log_format)
    os.umask(0o077)
    location = locate(settings.store, settings.data)
    tools = Tools(location, lambda: silence(settings.data, "analyze"))
    with contextlib.closing(tools):
        server = new_server(tools, __version__, hidden=location.label if http else None)
        if http:
            from streamgauge.settings.process_options import warn_if_exposed

            warn_if_exposed("the MCP port, which is not encrypted,", settings.mcp_listen)
            serve(
                server,
                listen=settings.mcp_listen,
                token=settings.mcp_token.get_secret_value() if settings.mcp_token else None,
                allowed_hosts=settings.allowed_host,
                data=settings.data,
                ready=lambda url: log.info("MCP server is ready: %s", url),
            )
            return 0
        if sys.stdin.isatty():
            log.info("MCP server reads requests of an agent from stdin. Ctrl-D ends it")
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, lambda *_: _end(tools))
        server.run("stdio")
        for kind in (signal.SIGTERM, signal.SIGINT):
            signal.signal(kind, signal.SIG_IGN)  # it ends already
    return 0


def _end(tools: Any) -> None:
    """End at once. The SDK's thread that reads stdin cannot be interrupted, and Python would wait for it."""
    tools.close()
    os._exit(0)
