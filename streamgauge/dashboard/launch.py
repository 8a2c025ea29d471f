"""Run the dashboard: Streamlit in this process.

- Streamlit contacts no other sites: no usage statistics, no update check; fonts and scripts come from the package.
- On addresses other than the loopback, readers need a token or sign in (`access`).
- Every request and WebSocket must name an allowed host (`streamgauge.ingest.listening`), also on the loopback.
- DATA/run/dashboard.json {"pid", "url"} is written (mode 0600) when /_stcore/health responds, touched while it does, and
  removed on a clean stop. The URL includes the token.
- SIGTERM and SIGINT stop it with exit code 0.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from streamgauge.dashboard import page_settings
from streamgauge.dashboard.access import TOKEN_FILE, SameHost, TokenGate, check_file, stored_token
from streamgauge.ingest import listening
from streamgauge.ingest.guards import guarded_thread
from streamgauge.ingest.private_files import prepare_data_folder
from streamgauge.ingest.ready_file import (
    HEARTBEAT_S,
    SILENT_AFTER_S,
    Heartbeat,
    remove_ready_file,
    write_ready_file,
)

log = logging.getLogger(__name__)

HERE = Path(__file__).resolve().parent
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """Options of the dashboard."""

    data: Path
    """The data folder. The pages show its tables, and run/dashboard.json is written there."""
    store: str = field(repr=False)
    """Catalog of the tables: `sqlite` in the data folder, or `postgres:DSN`."""
    listen: str
    """HOST:PORT. Port 0 uses any free port."""
    stall_floor_s: float
    stall_factor: float
    """The limit of stalls (`StallLimit`), which the page of a stream draws."""
    saved_views: Sequence[tuple[str, str]]
    """Names and addresses, relative to the dashboard, of the links in the sidebar."""
    token: str | None
    """Token of the readers. None: no token on the loopback, elsewhere the stored token of the data folder."""
    oidc: Path | None
    """File of an OpenID Connect provider (`access`). Readers who sign in need no token, unless `token` is set."""
    allowed_hosts: tuple[str, ...]
    """Further host names of the dashboard, such as that of a reverse proxy. The one of `oidc` needs no entry."""


def run(options: DashboardOptions) -> int:
    """Serve until SIGTERM or SIGINT, and return the exit code.

    Raises OSError with a one-line message if the address cannot be used or the data folder is not writable.
    """
    hosts = check(options)
    host, _ = listening.split_address(options.listen)
    # Only the check: Streamlit binds the port itself, and its error would not name the flag.
    with listening.bind(options.listen, flag="--dashboard-listen") as probe:
        port = probe.getsockname()[1]
    prepare_data_folder(options.data)
    ready_file = options.data / "run" / "dashboard.json"
    os.environ[page_settings.ENV_DATA] = str(options.data.resolve())
    os.environ[page_settings.ENV_STORE] = options.store
    os.environ[page_settings.ENV_STALL_FLOOR] = repr(options.stall_floor_s)
    os.environ[page_settings.ENV_STALL_FACTOR] = repr(options.stall_factor)
    os.environ[page_settings.ENV_SAVED_VIEWS] = json.dumps(dict(options.saved_views))
    os.environ[page_settings.ENV_OIDC] = str(options.oidc.resolve()) if options.oidc is not None else ""
    url = f"http://{listening.join_address('localhost' if host in ('0.0.0.0', '::') else host, port)}"  # noqa: S104 - compared
    stopped = threading.Event()
    token = _token(options)
    if token is not None:
        log.info("dashboard on %s requires the token in %s", host, options.data / TOKEN_FILE)
    guard = page_settings.GUARDS.guard("announcer", silent_after_s=SILENT_AFTER_S)
    announcer = guarded_thread(guard, lambda: _announce(ready_file, url, token, stopped), stopped)
    announcer.start()
    try:
        return _serve(streamlit_config(host, port, options.oidc), token, hosts)
    finally:
        stopped.set()
        announcer.join(timeout=5)
        with contextlib.suppress(OSError):
            remove_ready_file(ready_file)


def streamlit_config(host: str, port: int, oidc: Path | None = None) -> dict[str, object]:
    """Streamlit's options. Secrets come only from the OIDC file."""
    return {
        "secrets.files": [str(oidc.resolve())] if oidc is not None else [],
        "server.address": host,
        "server.port": port,
        "server.headless": True,
        "server.fileWatcherType": "none",
        "server.runOnSave": False,
        "server.maxUploadSize": 1,
        "server.disconnectedSessionTTL": 60,
        "browser.gatherUsageStats": False,
        "browser.serverPort": port,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "none",
        "client.showErrorLinks": False,
        "runner.magicEnabled": False,
        # A full collection after each run takes a third of a second, in which no page is sent. Python collects by itself.
        "runner.postScriptGC": False,
        "logger.level": "warning",
        "logger.hideWelcomeMessage": True,
        "theme.base": str(HERE / "theme.toml"),
    }


def _serve(config: dict[str, object], token: str | None, hosts: listening.AllowedHosts) -> int:
    # Importing Streamlit takes a second. Imported here, it does not delay errors about invalid options.
    from altair.utils.schemapi import disable_debug_mode
    from starlette.middleware import Middleware
    from streamlit.starlette import App

    from streamgauge.dashboard.page_head import PageHead

    disable_debug_mode()  # see charts.drawing.draw
    gates = [Middleware(listening.HostGate, hosts=hosts), Middleware(SameHost)]
    if token:
        gates.append(Middleware(TokenGate, token=token))
    # Streamlit's server shuts down on a signal, and then raises it again for these handlers.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)
    sys.argv = [str(HERE / "app.py")]  # Streamlit reads the script's arguments from here
    try:
        App(HERE / "app.py", middleware=[*gates, Middleware(PageHead)]).run(config=config)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _exit(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def check(options: DashboardOptions) -> listening.AllowedHosts:
    """The hosts that requests may name. Raises OSError if the dashboard cannot start: the OIDC file is not usable."""
    names = list(options.allowed_hosts)
    if options.oidc is not None:
        names.append(check_file(options.oidc))
    return listening.AllowedHosts(names, listen_host=listening.split_address(options.listen)[0])


def _token(options: DashboardOptions) -> str | None:
    """The token that readers need, or None."""
    if options.token is not None:
        return options.token
    if options.oidc is not None or listening.is_loopback(listening.split_address(options.listen)[0]):
        return None
    return stored_token(options.data)


def _announce(path: Path, url: str, token: str | None, stopped: threading.Event) -> None:
    """Write the ready file when the server responds. Then touch it after each response."""
    while not _is_ready(url):
        page_settings.GUARDS.guard("announcer").beat()
        if stopped.wait(POLL_S):
            return
    log.info("dashboard ready at %s", url)
    content = {"url": f"{url}/?token={token}" if token else url}
    with contextlib.suppress(OSError):  # for example a full disk: the heartbeat tries again
        write_ready_file(path, content)
    heartbeat = Heartbeat(path, content)
    while not stopped.wait(HEARTBEAT_S):
        page_settings.GUARDS.guard("announcer").beat()
        if _is_ready(url):
            heartbeat.beat(page_settings.GUARDS.faults())


def _is_ready(url: str) -> bool:
    """Whether the health check succeeds. `http.client` ignores proxy environment variables."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
