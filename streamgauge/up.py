"""`streamgauge up`: every part as a process of its own, started, watched and stopped in order.

- One `up` owns a data folder (`up.lock`). Parts are told apart by their command lines; each writes `run/<part>.json` when it is
  ready, and that file with the right pid is what "ready" means here.
- A part that dies is started again, at growing intervals, and the fact is logged and counted in `run/up.json`.
- Stopping goes down the stream: tap (drains), ship, analytics, dashboard, so that nothing is half-written.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from analytics.storage.data_folder_lock import UP, lock_data_folder
from ingest.private_files import make_private_folder, write_json
from ingest.tap.options import join_address, split_address
from ingest.tap.sockets import bind
from streamgauge.command_settings import ANALYZE, DASHBOARD, SERVE, SHIP, TAP
from streamgauge.flags import flag, flags
from streamgauge.settings import Settings

log = logging.getLogger(__name__)

READY_TIMEOUT_S = 60.0
"""Cold imports on a slow disk take seconds, not a minute: after this something is wrong."""
POLL_S = 0.05
BACKOFF_FIRST_S, BACKOFF_MAX_S = 0.5, 10.0
HEALTHY_S = 60.0
"""A part that ran this long starts again with the first back-off."""
STOP_GRACE_S = 15.0
"""What a part may take beyond the tap's drain time to stop by itself."""


@dataclass
class Part:
    """One process of `up`."""

    name: str
    argv: list[str]
    environment: dict[str, str]
    grace_s: float = STOP_GRACE_S
    after: str | None = None
    """Part that must be ready before this one is first started."""
    process: subprocess.Popen[bytes] | None = None
    restarts: int = 0
    started_s: float = 0.0
    restart_at_s: float | None = None
    backoff_s: float = BACKOFF_FIRST_S

    def start(self) -> None:
        # A process group of its own: Ctrl-C in the terminal reaches `up` alone, which then stops the parts in order.
        self.process = subprocess.Popen(
            self.argv, env=self.environment, stdin=subprocess.DEVNULL, process_group=0
        )
        self.started_s, self.restart_at_s = time.monotonic(), None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None


@dataclass
class Supervisor:
    """The parts in the order in which they stop, and the folder where they say that they are ready."""

    run_dir: Path
    parts: list[Part] = field(default_factory=list)
    stopping: bool = False

    def start(self) -> int | None:
        """Start all parts and wait until each is ready. An exit code if one could not start."""
        for part in self.parts:
            (self.run_dir / f"{part.name}.json").unlink(missing_ok=True)
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        waiting = list(self.parts)
        while waiting and not self.stopping:
            for part in list(waiting):
                if part.process is None:
                    if part.after not in {other.name for other in waiting}:
                        part.start()
                    continue
                code = part.process.poll()
                if code is not None:
                    log.debug("%s ended with %s before it was ready", part.name, code)
                    return code if code > 0 else 1
                if self.ready(part) is not None:
                    waiting.remove(part)
            if time.monotonic() > deadline_s:
                log.error(
                    "%s was not ready after %.0f s", " and ".join(p.name for p in waiting), READY_TIMEOUT_S
                )
                return 1
            time.sleep(POLL_S)
        self.tell()
        return None

    def ready(self, part: Part) -> dict[str, Any] | None:
        """What the part says of itself, once its present process is ready."""
        try:
            said: dict[str, Any] = json.loads((self.run_dir / f"{part.name}.json").read_bytes())
        except (OSError, ValueError):
            return None
        return said if said.get("pid") == part.pid else None

    def watch(self) -> None:
        """Until told to stop: start again what died."""
        while not self.stopping:
            now_s = time.monotonic()
            for part in self.parts:
                if part.restart_at_s is not None:
                    if now_s >= part.restart_at_s:
                        part.start()
                        self.tell()
                    continue
                assert part.process
                code = part.process.poll()
                if code is None:
                    continue
                if now_s - part.started_s > HEALTHY_S:
                    part.backoff_s = BACKOFF_FIRST_S
                part.restarts += 1
                part.restart_at_s = now_s + part.backoff_s
                how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
                log.warning(
                    "%s (pid %s) died: %s. Started again in %.1f s (restart %d)",
                    part.name, part.pid, how, part.backoff_s, part.restarts,
                )  # fmt: skip
                part.backoff_s = min(part.backoff_s * 2, BACKOFF_MAX_S)
            time.sleep(POLL_S)

    def stop(self) -> None:
        """Stop the parts in order; one that does not end in its grace is killed, which is logged."""
        for part in self.parts:
            if part.process is None or part.process.poll() is not None:
                continue
            part.process.terminate()
            try:
                part.process.wait(part.grace_s)
            except subprocess.TimeoutExpired:
                log.error("%s (pid %s) did not stop in %.0f s: killed", part.name, part.pid, part.grace_s)
                part.process.kill()
                part.process.wait()

    def tell(self) -> None:
        """Keep `run/up.json` true."""
        said = {
            "pid": os.getpid(),
            "parts": {p.name: {"pid": p.pid, "restarts": p.restarts} for p in self.parts},
        }
        path = self.run_dir / "up.json"
        try:
            write_json(path, said)
        except OSError as e:  # a full disk must not end the parts that go on without it
            log.warning("cannot write %s (%s): it tells of an earlier state", path, e.strerror)


def run(settings: Settings) -> int:
    """Run all parts until SIGINT or SIGTERM. 0 after a clean stop; 2 when something in the way was named."""
    if not settings.upstream:
        raise click.UsageError(
            "no upstream: say what stands behind the tap, such as --upstream http://localhost:4000",
            click.get_current_context(silent=True),
        )
    _check(settings)
    lock = lock_data_folder(settings.data, UP)
    make_private_folder(settings.data / "run")
    settings.data.chmod(0o700)
    supervisor = Supervisor(settings.data / "run", _parts(settings))

    def on_signal(number: int, frame: object) -> None:
        if supervisor.stopping:  # asked twice: do not drain
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
            click.echo("stopping: open streams may finish first; Ctrl-C again ends them", err=True)
        return 0
    finally:
        supervisor.stopping = True
        supervisor.stop()
        (supervisor.run_dir / "up.json").unlink(missing_ok=True)
        lock.close()


def _check(settings: Settings) -> None:
    """What a part would refuse a second later is refused here, before any part has started. Raises OSError."""
    for name in ("upstream_ca", "upstream_cert", "upstream_key", "tls_cert", "tls_key"):
        path = getattr(settings, name)
        if path is not None and not path.is_file():
            raise OSError(f"{flag(name)}: there is no file {path}")
    places = [(flag(name), *split_address(getattr(settings, name))) for name in ("listen", "admin")]
    if settings.serve:
        places.append(("--sql-port", settings.sql_host, settings.sql_port))
    if settings.metrics:
        places.append(("--metrics", *split_address(settings.metrics)))
    if settings.otlp_listen:
        places.append(("--otlp-listen", *split_address(settings.otlp_listen)))
    if not settings.no_dashboard:
        places.append(("--dashboard-port", settings.dashboard_host, settings.dashboard_port))
    for name, host, port in places:
        try:
            bind(join_address(host, port), shared=False).close()
        except OSError as e:
            raise OSError(f"{e} with {name}") from None


def _parts(settings: Settings) -> list[Part]:
    environment = dict(os.environ, STREAMGAUGE_PARENT=str(os.getpid()))
    if settings.kafka_options:
        environment["STREAMGAUGE_KAFKA_OPTIONS"] = json.dumps(settings.kafka_options)
    environment["STREAMGAUGE_STORE"] = settings.store
    for secret in ("sql_token", "client_key", "dashboard_token", "otlp_token"):
        if (value := getattr(settings, secret)) is not None:
            environment[f"STREAMGAUGE_{secret.upper()}"] = value.get_secret_value()

    def part(
        name: str, fields: tuple[str, ...], grace_s: float = STOP_GRACE_S, after: str | None = None
    ) -> Part:
        argv = [sys.executable, "-m", "streamgauge", name, *flags(settings, fields)]
        return Part(name, argv, environment, grace_s, after)

    parts = [part("tap", TAP, settings.drain_timeout + STOP_GRACE_S)]
    if settings.kafka:
        parts.append(part("ship", SHIP))
    parts.append(part("analyze", ANALYZE))
    if settings.serve:
        parts.append(part("serve", SERVE, after="analyze"))  # analytics creates the store
    if not settings.no_dashboard:
        parts.append(part("dashboard", DASHBOARD))
    return parts


def _welcome(supervisor: Supervisor, settings: Settings) -> None:
    said = {part.name: supervisor.ready(part) or {} for part in supervisor.parts}
    behind = ", ".join(f"{u.name} = {u.url}" for u in settings.upstream)
    lines = [
        ("tap", f"{said['tap'].get('listen')}  →  {behind}"),
        (
            "metrics",
            "   ".join(filter(None, (f"{said['tap'].get('admin')}/metrics", said["analyze"].get("metrics")))),
        ),
        (
            "sql",
            f'streamgauge sql --data {settings.data} "FROM streams LIMIT 10"',
        ),
    ]
    if said["analyze"].get("otlp"):
        lines.append(("spans", f"{said['analyze']['otlp']}/v1/traces takes those of clients and gateways"))
    if settings.serve:
        lines.append(
            ("sql port", f"{said['serve'].get('quack')}, token in {settings.data / 'run' / 'serve.json'}")
        )
    if "dashboard" in said:
        lines.insert(0, ("dashboard", str(said["dashboard"].get("url"))))
    if settings.kafka:
        lines.append(("kafka", f"{settings.kafka}, topic {settings.kafka_topic}"))
    click.echo("streamgauge is ready: point your clients at the tap. Ctrl-C stops.")
    for name, value in lines:
        click.echo(f"  {name:<10} {value}")
    sys.stdout.flush()
