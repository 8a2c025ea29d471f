"""`streamgauge up`: run each part as a process.

- One `up` per data folder (`up.lock`). A part is ready when `run/<part>.json` has its pid.
- A part that exits is restarted with increasing delays. Restarts are logged and counted in `run/up.json`.
- A part that makes no progress (`part_progress`) is reported after `SILENT_AFTER_S`, and killed and restarted after
  `--hung-after`.
- Parts stop in the order of the data flow: tap (drains), ship, analytics, dashboard.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from analytics.extras import require
from analytics.storage.data_folder_lock import UP, lock_data_folder
from ingest.private_files import write_json
from ingest.ready_file import SILENT_AFTER_S, read_ready_file
from ingest.tap.options import join_address, split_address
from ingest.tap.sockets import bind
from streamgauge.command_settings import ANALYZE, DASHBOARD, SERVE, SHIP, TAP
from streamgauge.flags_from_settings import flag, flags
from streamgauge.part_progress import PartProgress
from streamgauge.settings import Settings, unknown_variables

log = logging.getLogger(__name__)

POLL_S = 0.05
OBSERVE_S = 1.0
WAITING_S = 10.0
"""Interval of the log lines that name the parts that are still starting."""
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 10.0
HEALTHY_S = 10.0
"""A part that ran longer than this is restarted with the first delay."""
STOP_GRACE_S = 15.0
"""Time limit for a part to stop. The tap's drain time is added."""


@dataclass
class Part:
    """One process of `up`."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    grace_s: float = STOP_GRACE_S
    after: str | None = None
    """Name of the part that must be ready before this one starts."""
    works_silently: bool = False
    """See `PartProgress`."""
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started_s: float = 0.0
    restart_at_s: float | None = None
    backoff_s: float = BACKOFF_FIRST_S
    progress: PartProgress | None = None
    silent_since: str | None = None
    """ISO time since which the part makes no progress, if that was reported."""

    def start(self, run_dir: Path) -> None:
        # Own process group: Ctrl-C in the terminal signals only `up`, which stops the parts in order.
        self.process = subprocess.Popen(
            self.argv, env=self.environment, stdin=subprocess.DEVNULL, process_group=0
        )
        self.started_s, self.restart_at_s = time.monotonic(), None
        self.silent_since = None
        ready_file = run_dir / f"{self.name}.json"
        self.progress = PartProgress(self.process.pid, ready_file, works_silently=self.works_silently)

    @property
    def pid(self) -> int | None:
        """None while no process runs."""
        return self.process.pid if self.process and self.process.returncode is None else None


@dataclass
class Supervisor:
    """Starts, restarts and stops the parts, which are listed in stop order."""

    run_dir: Path
    parts: list[Part] = field(default_factory=list)
    hung_after_s: float = 60.0
    """0: never kill a part."""
    stopping: bool = False
    _started: bool = False
    _observed_s: float = field(default_factory=time.monotonic)

    def start(self) -> int | None:
        """Start all parts and wait until they are ready. Returns an exit code if one fails or makes no progress."""
        for part in self.parts:
            (self.run_dir / f"{part.name}.json").unlink(missing_ok=True)
        began_s = reported_s = time.monotonic()
        waiting = list(self.parts)
        while waiting and not self.stopping:
            for part in list(waiting):
                if part.process is None:
                    if part.after not in {other.name for other in waiting}:
                        part.start(self.run_dir)
                        self.write_state()
                    continue
                code = part.process.poll()
                if code is not None:
                    log.debug("%s exited with code %s before it was ready", part.name, code)
                    return code if code > 0 else 1
                if self.ready(part) is not None:
                    waiting.remove(part)
            self._observe()
            for part in waiting:
                if self._is_hung(part):
                    log.error(
                        "cannot start %s (pid %s): no progress for %.0f s. See its log lines above. "
                        "If it needs longer, raise --hung-after.",
                        part.name, part.pid, self.hung_after_s,
                    )  # fmt: skip
                    return 1
            if (now_s := time.monotonic()) - reported_s >= WAITING_S:
                reported_s = now_s
                names = " and ".join(part.name for part in waiting)
                log.info("still starting after %.0f s: %s", now_s - began_s, names)
            time.sleep(POLL_S)
        self.write_state()
        self._started = True
        return None

    def ready(self, part: Part) -> dict[str, Any] | None:
        """The content of the part's ready file; None if its current process is not ready."""
        content = read_ready_file(self.run_dir / f"{part.name}.json")
        return content if content and content.get("pid") == part.pid else None

    def watch(self) -> None:
        """Restart parts that exit or make no progress, until `stopping`."""
        while not self.stopping:
            now_s = time.monotonic()
            self._observe()
            for part in self.parts:
                if part.restart_at_s is not None:
                    if now_s >= part.restart_at_s:
                        part.start(self.run_dir)
                        self.write_state()
                    continue
                assert part.process
                code = part.process.poll()
                if code is None:
                    if self._is_hung(part):
                        log.error(
                            "killing %s (pid %s): no progress for %.0f s",
                            part.name,
                            part.pid,
                            self.hung_after_s,
                        )
                        part.process.kill()
                        part.progress = None  # a process that waits for the disk ends later
                    continue
                if now_s - part.started_s > HEALTHY_S:
                    part.backoff_s = BACKOFF_FIRST_S
                part.restarts += 1
                part.restart_at_s = now_s + part.backoff_s
                reason = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                log.warning(
                    "%s (pid %s) exited: %s. Restarting in %.1f s (restart %d).",
                    part.name, part.process.pid, reason, part.backoff_s, part.restarts,
                )  # fmt: skip
                part.backoff_s = min(part.backoff_s * 2, BACKOFF_MAX_S)
                part.silent_since = None
                self.write_state()
            time.sleep(POLL_S)

    def _observe(self) -> None:
        """Every `OBSERVE_S`: observe the parts, and report a part that stops or resumes making progress."""
        elapsed_s = time.monotonic() - self._observed_s
        if elapsed_s < OBSERVE_S:
            return
        self._observed_s += elapsed_s
        if not self._can_write():
            return
        for part in self.parts:
            if part.process is None or part.progress is None or part.process.returncode is not None:
                continue
            part.progress.observe(elapsed_s)
            silent_s = part.progress.silent_s
            if silent_s >= SILENT_AFTER_S and part.silent_since is None:
                since = datetime.now(UTC) - timedelta(seconds=silent_s)
                part.silent_since = since.isoformat(timespec="seconds")
                log.warning("%s (pid %s) has made no progress for %.0f s", part.name, part.pid, silent_s)
                self.write_state()
            elif not silent_s and part.silent_since is not None:
                log.info("%s (pid %s) makes progress again", part.name, part.pid)
                part.silent_since = None
                self.write_state()

    def _can_write(self) -> bool:
        """Touch `run/up.json`, which exists after the start. If this fails, the parts cannot touch their files either."""
        try:
            os.utime(self.run_dir / "up.json")
        except OSError:
            return not self._started
        return True

    def _is_hung(self, part: Part) -> bool:
        return bool(self.hung_after_s and part.progress and part.progress.silent_s >= self.hung_after_s)

    def stop(self) -> None:
        """Stop the parts in order. Kills a part that exceeds its grace time. Removes the ready files of killed parts."""
        for part in self.parts:
            if part.process is not None and part.process.poll() is None:
                part.process.terminate()
                try:
                    part.process.wait(part.grace_s)
                except subprocess.TimeoutExpired:
                    log.error(
                        "killing %s (pid %s): it did not stop within %.0f s",
                        part.name, part.pid, part.grace_s,
                    )  # fmt: skip
                    part.process.kill()
                    part.process.wait()
            with contextlib.suppress(OSError):
                (self.run_dir / f"{part.name}.json").unlink(missing_ok=True)

    def write_state(self) -> None:
        """Update `run/up.json`."""
        parts = {
            p.name: {"pid": p.pid, "restarts": p.restarts, "silent_since": p.silent_since} for p in self.parts
        }
        path = self.run_dir / "up.json"
        try:
            write_json(path, {"pid": os.getpid(), "parts": parts})
        except OSError as e:  # the parts can continue, for example on a full disk
            log.warning("cannot write %s: %s. Its content is outdated.", path, e.strerror)


def run(settings: Settings) -> int:
    """Run all parts until SIGINT or SIGTERM. Returns 0 after a clean stop.

    Raises OSError, or ModuleNotFoundError for a missing extra, if they cannot start.
    """
    if not settings.upstream:
        raise click.UsageError(
            "no upstream. Pass the URL of a gateway, such as --upstream http://localhost:4000.",
            click.get_current_context(silent=True),
        )
    require("duckdb" if settings.no_dashboard else "streamlit")
    with lock_data_folder(settings.data, UP):
        _check(settings)
        return _run_parts(settings)


def _run_parts(settings: Settings) -> int:
    supervisor = Supervisor(settings.data / "run", _parts(settings), settings.hung_after)

    def on_signal(number: int, frame: object) -> None:
        if supervisor.stopping:  # second signal: do not drain
            for part in supervisor.parts:
                part.grace_s = 1.0
        supervisor.stopping = True

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    try:
        failed = supervisor.start()
        if failed is not None:
            return failed
        if not supervisor.stopping:
            _welcome(supervisor, settings)
            supervisor.watch()
            click.echo("Stopping when open streams have finished. Press Ctrl-C again to stop now.", err=True)
        return 0
    finally:
        supervisor.stopping = True
        supervisor.stop()
        (supervisor.run_dir / "up.json").unlink(missing_ok=True)


def _check(settings: Settings) -> None:
    """Check files and addresses before any part starts. Raises OSError."""
    for name in ("upstream_ca", "upstream_cert", "upstream_key", "tls_cert", "tls_key"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            raise OSError(f"cannot read {path}: no such file. Check {flag(name)}.")
    addresses = [(flag(name), *split_address(getattr(settings, name))) for name in ("listen", "admin")]
    if settings.metrics:
        addresses.append(("--metrics", *split_address(settings.metrics)))
    if settings.otlp_listen:
        addresses.append(("--otlp-listen", *split_address(settings.otlp_listen)))
    if not settings.no_dashboard:
        addresses.append(("--dashboard-port", settings.dashboard_host, settings.dashboard_port))
    for name, host, port in addresses:
        _check_address(name, host, port)
    if settings.serve:
        _check_address("--sql-port", settings.sql_host, settings.sql_port, quack=True)


def _check_address(name: str, host: str, port: int, *, quack: bool = False) -> None:
    """Raise OSError if a part could not listen there.

    `quack`: Quack sets only SO_REUSEPORT. Its closed connections occupy the port for a minute for any socket without that
    option. With the option, binding succeeds while another server listens, so we also connect.
    """
    try:
        bind(join_address(host, port), shared=quack).close()
    except OSError as e:
        raise OSError(f"{e} (set with {name})") from None
    if quack and port:
        from analytics.query.serve import is_listening

        if is_listening(host, port):
            raise OSError(
                f"cannot listen on {join_address(host, port)}: address already in use. "
                f"Choose another address (set with {name})"
            )


def _parts(settings: Settings) -> list[Part]:
    ignored = unknown_variables()  # reported once, by this process
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    environment["STREAMGAUGE_PARENT"] = str(os.getpid())
    if settings.kafka_options:
        environment["STREAMGAUGE_KAFKA_OPTIONS"] = json.dumps(settings.kafka_options)
    environment["STREAMGAUGE_STORE"] = settings.store
    for secret in ("sql_token", "client_key", "dashboard_token", "otlp_token"):
        if (value := getattr(settings, secret)) is not None:
            environment[f"STREAMGAUGE_{secret.upper()}"] = value.get_secret_value()

    def part(name: str, fields: tuple[str, ...], **options: Any) -> Part:
        return Part(
            name,
            [sys.executable, "-P", "-m", "streamgauge", name, *flags(settings, fields)],
            environment,
            **options,
        )

    parts = [part("tap", TAP, grace_s=settings.drain_timeout + STOP_GRACE_S)]
    if settings.kafka:
        parts.append(part("ship", SHIP))
    parts.append(part("analyze", ANALYZE, works_silently=True))
    if settings.serve:
        parts.append(part("serve", SERVE, after="analyze"))  # analytics creates the store
    if not settings.no_dashboard:
        parts.append(part("dashboard", DASHBOARD))
    return parts


def _welcome(supervisor: Supervisor, settings: Settings) -> None:
    ready = {part.name: supervisor.ready(part) or {} for part in supervisor.parts}
    upstreams = ", ".join(f"{u.name} = {u.url}" for u in settings.upstream)
    lines = [
        ("tap", f"{ready['tap'].get('listen')}  →  {upstreams}"),
        (
            "metrics",
            f"{ready['tap'].get('admin')}/metrics   {ready['analyze'].get('metrics') or ''}".rstrip(),
        ),
        ("sql", f'streamgauge sql --data {settings.data} "FROM streams LIMIT 10"'),
    ]
    if ready["analyze"].get("otlp"):
        lines.append(("spans", f"{ready['analyze']['otlp']}/v1/traces"))
    if settings.serve:
        token_file = settings.data / "run" / "serve.json"
        lines.append(("sql server", f"{ready['serve'].get('quack')}, token in {token_file}"))
    if "dashboard" in ready:
        lines.insert(0, ("dashboard", str(ready["dashboard"].get("url"))))
    if settings.kafka:
        lines.append(("kafka", f"{settings.kafka}, topic {settings.kafka_topic}"))
    click.echo("streamgauge is ready: point your clients at the tap. Ctrl-C stops.")
    for name, value in lines:
        click.echo(f"  {name:<10} {value}")
    sys.stdout.flush()
