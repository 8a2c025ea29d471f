"""Start the dashboard: Streamlit in this process, quiet, local, and announced in the data folder once it answers.

- Nothing is asked of other sites: no usage statistics, no update check, fonts and scripts from the package itself.
- Beyond the loopback a token is wanted (`door`), which the announced address has, or readers sign in (`login`).
- DATA/run/dashboard.json {"pid", "url"} is written (0600, whole) when /_stcore/health answers, and removed on a clean stop.
- SIGTERM and SIGINT end it with exit code 0: the server shuts down by itself and then raises the signal again, for us.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import ipaddress
import json
import logging
import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import NoReturn

from dashboard import oidc_login
from dashboard.page_settings import (
    ENV_DATA,
    ENV_OIDC,
    ENV_SLO_ERROR_RATE,
    ENV_SLO_ITL,
    ENV_SLO_TTFT,
    ENV_STORE,
)
from dashboard.token_gate import FILE as TOKEN_FILE
from dashboard.token_gate import Door, RootGiven, kept_token
from ingest.private_files import write_json

log = logging.getLogger(__name__)

HERE = Path(__file__).resolve().parent
READY_TIMEOUT_S = 60.0
POLL_S = 0.1


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """What the dashboard can be told."""

    data: Path
    """The data folder: its tables are shown, and run/dashboard.json is written there."""
    store: str = field(default="sqlite", repr=False)
    """Catalog of the tables: `sqlite` in the data folder, or `postgres:DSN`."""
    host: str = "127.0.0.1"
    port: int = 8501
    """0: any free port."""
    slo_ttft_s: float = 2.0
    slo_itl_s: float = 0.1
    """The objectives that goodput and health are measured against, in seconds."""
    slo_error_rate: float = 0.05
    """The share of streams that may fail."""
    token: str | None = None
    """What a reader must give; None: nothing on the loopback, elsewhere a token that is kept in the data folder."""
    oidc: Path | None = None
    """File of an OpenID Connect provider (`login`): readers sign in there, and need no token unless one is set."""


def run(options: DashboardOptions) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code.

    Raises OSError with one line when the port is taken, the address is not ours, or the data folder cannot be written.
    """
    port = _claim(options.host, options.port)
    if options.oidc is not None:
        oidc_login.check(options.oidc)
    announcement = _announcement(options.data)
    os.environ[ENV_DATA] = str(options.data.resolve())
    os.environ[ENV_STORE] = options.store
    os.environ[ENV_SLO_TTFT] = repr(options.slo_ttft_s)
    os.environ[ENV_SLO_ITL] = repr(options.slo_itl_s)
    os.environ[ENV_SLO_ERROR_RATE] = repr(options.slo_error_rate)
    os.environ[ENV_OIDC] = str(options.oidc.resolve()) if options.oidc is not None else ""
    url = f"http://{_reachable(options.host)}:{port}"
    stopped = threading.Event()
    token = _token(options)
    if token is not None:
        log.info("the dashboard on %s wants a token: it is in %s", options.host, options.data / TOKEN_FILE)
    herald = threading.Thread(
        target=_announce, args=(announcement, url, token, stopped), name="herald", daemon=True
    )
    herald.start()
    try:
        return _streamlit(settings(options.host, port, options.oidc), token)
    finally:
        stopped.set()
        herald.join(timeout=5)
        _withdraw(announcement)


def settings(host: str, port: int, oidc: Path | None = None) -> dict[str, object]:
    """Streamlit's options, the same for everyone. No file but the one that is named holds secrets."""
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
        "logger.level": "warning",
        "logger.hideWelcomeMessage": True,
        "theme.base": str(HERE / "theme.toml"),
    }


def _streamlit(config: dict[str, object], token: str | None) -> int:
    # Here: importing Streamlit takes a second, and a refused start need not wait for it.
    from altair.utils.schemapi import disable_debug_mode
    from starlette.middleware import Middleware
    from streamlit.starlette import App

    disable_debug_mode()  # charts are held against their schema in tests, not while a reader waits

    asked = [Middleware(Door, token=token)] if token else []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop)
    sys.argv = [str(HERE / "app.py")]  # what Streamlit takes for the command line of the script
    try:
        App(HERE / "app.py", middleware=[*asked, Middleware(RootGiven)]).run(config=config)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    return 0


def _stop(signum: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


def _token(options: DashboardOptions) -> str | None:
    """The token that readers need: none on the loopback unless one is asked for."""
    if options.token is not None:
        return options.token
    if options.oidc is not None:
        return None
    return None if _is_loopback(options.host) else kept_token(options.data)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _claim(host: str, port: int) -> int:
    """The port that will be listened on, known to be free a moment ago."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise OSError(_why_not(host, port, error)) from None
        found: int = probe.getsockname()[1]
    return found


def _why_not(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"dashboard port {port} on {host} is in use: choose another with --dashboard-port (0 takes a free one)"
    if error.errno == errno.EACCES:
        return f"dashboard port {port} on {host} is not allowed: choose one above 1023 with --dashboard-port"
    return (
        f"dashboard address {host}:{port} cannot be listened on: {error.strerror or error} (--dashboard-host)"
    )


def _announcement(data: Path) -> Path:
    folder = data / "run"
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    except OSError as error:
        raise OSError(f"data folder {data} cannot be written: {error.strerror} (--data)") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OSError(f"data folder {data} cannot be written: {folder} is read-only for this user (--data)")
    return folder / "dashboard.json"


def _reachable(host: str) -> str:
    """The host of a URL that this machine's user can open."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return "localhost"
        if address.version == 6:
            return f"[{host}]"
    return host


def _announce(path: Path, url: str, token: str | None, stopped: threading.Event) -> None:
    """Wait for the health check, then write the file."""
    waited_s = 0.0
    while not stopped.wait(POLL_S):
        waited_s += POLL_S
        if _answers(url):
            write_json(path, {"pid": os.getpid(), "url": f"{url}/?token={token}" if token else url})
            log.info("dashboard at %s", url)
            return
        if waited_s > READY_TIMEOUT_S:
            log.error("dashboard does not answer at %s after %.0f s", url, READY_TIMEOUT_S)
            return


def _answers(url: str) -> bool:
    """Whether the health check says ok. Asked directly: no proxy of the environment stands between."""
    connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=2)
    try:
        connection.request("GET", "/_stcore/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _withdraw(path: Path) -> None:
    """Remove the file if it is ours."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()


if __name__ == "__main__":  # pragma: no cover - for development: python -m dashboard.launch DATA [PORT]
    sys.exit(run(DashboardOptions(data=Path(sys.argv[1]), port=int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
