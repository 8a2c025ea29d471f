"""`streamgauge up`: run each part as a process.

- One `up` per data folder (`up.lock`). A part is ready when `run/<part>.json` has its pid.
- `up` refuses to start only for settings of the tap and of itself, which `streamgauge.settings.process_options` finds, and if the
  tap refuses its first start with exit code 2.
- A part that exits, or cannot start for any other reason, is started again with increasing delays, and the other parts
  run meanwhile. The reason is the part's newest error line. It is logged, and `run/up.json` has it until the part is ready.
- A part that makes no progress (`PartProgress`) is reported after `SILENT_AFTER_S`, and killed and restarted after
  `--hung-after`.
- `up` binds the tap's sockets and passes them on. SIGUSR2 replaces the tap: a second one starts with the same sockets, and when
  it serves, the former one drains. A tap that crashes finds the connections that waited meanwhile.
- Parts stop in the order of the data flow: tap (drains), capture, ship, analytics, dashboard.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import click
from pydantic import SecretStr

from streamgauge.analytics.storage.data_folder_lock import UP, lock_data_folder
from streamgauge.commands.background import own_command, stop_process
from streamgauge.commands.part_process import BACKOFF_FIRST_S, STOP_GRACE_S, Part
from streamgauge.ingest.capture.packet_socket import PacketSocket
from streamgauge.ingest.guards import Guard, Guards
from streamgauge.ingest.listening import REPLACED, bind_tap
from streamgauge.ingest.private_files import write_json
from streamgauge.ingest.ready_file import SILENT_AFTER_S, read_ready_file
from streamgauge.settings.flags import flags
from streamgauge.settings.model import Settings, settings_of, unknown_variables, variable
from streamgauge.settings.process_options import start_faults
from streamgauge.settings.values import parse_interface

log = logging.getLogger(__name__)

POLL_S = 0.05
OBSERVE_S = 1.0
WAITING_S = 10.0
"""Interval of the log lines that name the parts that are still starting."""
BACKOFF_MAX_S = 10.0
START_BACKOFF_MAX_S = 30.0
"""Longest delay after a start that failed. An attempt costs a second of CPU time, and its cause may last for days."""
REFUSED = 2
"""Exit code of a part that refuses its settings."""
HEALTHY_S = 10.0
"""A part that ran longer than this is restarted with the first delay."""
WAIT_FOR_TAP_S = 2.0
"""Connections wait for the next start of the tap if it is no later than this; else they are refused until then."""


@dataclass
class Pipeline:
    """Starts, restarts and stops the parts, which are listed in stop order."""

    run_dir: Path
    parts: list[Part]
    hung_after_s: float
    """0: never kill a part."""
    stopping: bool = False
    replace_tap: bool = False
    """Start another tap, and stop the present one when it serves."""
    refused: bool = False
    """The tap refused its first start."""
    _successor: Part | None = None
    """The tap that is starting beside the present one."""
    _draining: Part | None = None
    """The former tap."""
    _drain_until_s: float = 0.0
    guard: Guard = field(default_factory=lambda: Guards().guard("up"))
    _state_is_written: bool = True
    _observed_s: float = field(default_factory=time.monotonic)

    def start(self) -> None:
        """Start all parts. Returns when the tap is ready, and each other part is ready or cannot start, or when `stopping`."""
        for part in self.parts:
            # A file of an earlier `up` that was killed may have the pid of a process that runs now.
            self.guard.attempt((self.run_dir / f"{part.name}.json").unlink, True)
        began_s = reported_s = time.monotonic()
        while not self.stopping and (waiting := [part for part in self.parts if not part.settled]):
            self._step()
            if (now_s := time.monotonic()) - reported_s >= WAITING_S:
                reported_s = now_s
                names = " and ".join(part.name for part in waiting)
                log.info("still starting after %.0f s: %s", now_s - began_s, names)
            time.sleep(POLL_S)
        self.guard.attempt(self.write_state)

    def watch(self) -> None:
        """Restart parts that exit or make no progress, until `stopping`."""
        while not self.stopping:
            self._step()
            time.sleep(POLL_S)

    def _step(self) -> None:
        """Check every part once. An unexpected error must not end `up`, because the tap would end with it."""
        # Before the loop: the parts of one step must not depend on the order in which they are listed.
        unsettled = {part.name for part in self.parts if not part.settled}
        done = [self.guard.attempt(self._step_part, part, unsettled) for part in self.parts]
        done.append(self.guard.attempt(self._step_replacement))
        if not (self.guard.attempt(self._observe) and all(done)):
            # The exception may have prevented an update, and without the file no part would be judged.
            self._state_is_written = False

    def _step_part(self, part: Part, unsettled: Collection[str]) -> None:
        if part.process is None or part.restart_at_s is not None:
            if part.name == "tap" and self._successor is not None:
                return  # it serves soon
            if part.after not in unsettled and time.monotonic() >= (part.restart_at_s or 0.0):
                self._start(part)
            return
        code = part.process.poll()
        if code is None:
            self._check(part)
        # Only at the first start: later, `up` has reported that it is ready, and somebody may correct the setting meanwhile.
        elif part.name == "tap" and code == REFUSED and not part.restarts and not part.is_ready:
            self.refused = self.stopping = True
        else:
            self._ended(part, part.why_it_ended(code), f"(pid {part.process.pid}) exited")

    def _step_replacement(self) -> None:
        """Start, watch or complete the replacement of the tap."""
        drained, successor = self._draining, self._successor
        if drained is not None and drained.process is not None:
            if drained.process.poll() is not None:
                log.info("the former tap (pid %s) has ended", drained.process.pid)
                self._draining = None
            elif time.monotonic() >= self._drain_until_s:
                log.error("killing the former tap (pid %s): it did not stop in time", drained.pid)
                drained.process.kill()
        if successor is not None:
            self._step_successor(successor)
        elif self.replace_tap and self._draining is None:
            self.replace_tap = False
            present = next((part for part in self.parts if part.name == "tap" and part.is_ready), None)
            if present is None:
                log.warning("cannot replace the tap: none is serving")
                return
            successor = present.successor()
            successor.start()
            self._successor = successor
            log.info("replacing the tap (pid %s): pid %s is starting", present.pid, successor.pid)

    def _step_successor(self, successor: Part) -> None:
        assert successor.process is not None
        assert successor.progress is not None
        at = next(place for place, part in enumerate(self.parts) if part.name == "tap")
        present = self.parts[at]
        if (code := successor.process.poll()) is not None:
            log.error("cannot replace the tap: %s. The present one serves", successor.why_it_ended(code))
            self._successor = None
        elif successor.progress.ready:
            log.info("the tap (pid %s) serves, the former one (pid %s) drains", successor.pid, present.pid)
            self._successor, successor.is_ready, self.parts[at] = None, True, successor
            if present.process is not None and present.process.poll() is None:
                present.process.send_signal(REPLACED)
                self._draining, self._drain_until_s = present, time.monotonic() + present.grace_s
            self.write_state()
        elif self.hung_after_s and successor.progress.silent_s >= self.hung_after_s:
            log.error("cannot replace the tap: the new one (pid %s) does not start", successor.pid)
            successor.process.kill()

    def _start(self, part: Part) -> None:
        try:
            part.start()
        except OSError as e:
            self._ended(part, e.strerror or str(e), "cannot be started")
        self.write_state()

    def _check(self, part: Part) -> None:
        """Note that a running part has become ready, and kill it if it hangs."""
        assert part.process
        if not part.is_ready and self.ready(part) is not None:
            part.is_ready = True
            if part.failure is not None:
                log.info("%s (pid %s) is ready", part.name, part.pid)
                part.failure = None
                self.write_state()
        elif self.hung_after_s and part.progress and part.progress.silent_s >= self.hung_after_s:
            part.failure = (
                f"no progress for {self.hung_after_s:.0f} s. If it needs longer, raise --hung-after"
            )
            log.error("killing %s (pid %s): %s", part.name, part.pid, part.failure)
            part.process.kill()
            part.progress = None  # a process that waits for the disk ends later

    def _ended(self, part: Part, reason: str, event: str) -> None:
        """Plan the next start of a part."""
        now_s = time.monotonic()
        # A part that becomes ready and fails at once, again and again, must not be started twice a second.
        if part.is_ready and now_s - part.started_s > HEALTHY_S:
            part.backoff_s = BACKOFF_FIRST_S
        part.restarts += 1
        part.restart_at_s = now_s + part.backoff_s
        if part.backoff_s > WAIT_FOR_TAP_S:
            part.close_sockets()
        if part.progress is not None or part.failure is None:  # else it was killed, and the reason is known
            part.failure = reason
        log.warning(
            "%s %s: %s. Restarting in %.1f s (restart %d).",
            part.name, event, reason.rstrip("."), part.backoff_s, part.restarts,
        )  # fmt: skip
        # The tap is tried often, whatever the reason: while it does not run, clients get no answers.
        longest_s = BACKOFF_MAX_S if part.is_ready or part.name == "tap" else START_BACKOFF_MAX_S
        part.backoff_s = min(part.backoff_s * 2, longest_s)
        part.is_ready, part.silent_since = False, None
        self.write_state()

    def ready(self, part: Part) -> dict[str, Any] | None:
        """The content of the part's ready file; None if its current process is not ready."""
        content = read_ready_file(self.run_dir / f"{part.name}.json")
        return content if content and content.get("pid") == part.pid else None

    def _observe(self) -> None:
        """Every `OBSERVE_S`: observe the parts, and report a part that stops or resumes making progress."""
        elapsed_s = time.monotonic() - self._observed_s
        if elapsed_s < OBSERVE_S:
            return
        self._observed_s += elapsed_s
        if not self._state_is_written:
            self.write_state()
        for part in [*self.parts, *([self._successor] if self._successor else [])]:
            if part.process is None or part.progress is None or part.process.returncode is not None:
                continue
            part.progress.observe(elapsed_s)
            if part is self._successor:
                continue
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

    def stop(self) -> None:
        """Stop the parts in order. Kills a part that exceeds its grace time. Removes the ready files of killed parts."""
        order = [*([self._successor] if self._successor else []), *self.parts]
        for part in order:
            self.guard.attempt(part.close_sockets)
        if self._draining is not None:  # after the tap: both drain at the same time
            order.insert(1, self._draining)
        for part in order:
            if part is self._draining and part.process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):  # a second signal would end its streams
                    part.process.wait(min(part.grace_s, max(0.0, self._drain_until_s - time.monotonic())))
            if part.process is not None and stop_process(part.process, part.grace_s):
                log.error("killed %s (pid %s): it did not stop in time", part.name, part.process.pid)
            with contextlib.suppress(OSError):
                (self.run_dir / f"{part.name}.json").unlink(missing_ok=True)

    def hurry(self) -> None:
        """Do not drain."""
        for part in (*self.parts, self._successor, self._draining):
            if part is not None:
                part.grace_s = 1.0

    def write_state(self) -> None:
        """Update `run/up.json`."""
        parts = {
            p.name: {name: getattr(p, name) for name in ("pid", "restarts", "silent_since", "failure")}
            for p in self.parts
        }
        path = self.run_dir / "up.json"
        try:
            write_json(path, {"pid": os.getpid(), "parts": parts})
        except OSError as e:  # the parts can continue, for example on a full disk
            if self._state_is_written:
                log.warning("cannot write %s: %s. Its content is outdated.", path, e.strerror)
            self._state_is_written = False
        else:
            self._state_is_written = True


def run(settings: Settings, invalid: Collection[str] = ()) -> int:
    """Run all parts until SIGINT or SIGTERM. Returns 0 after a clean stop. Raises OSError if the tap cannot start.

    `invalid`: settings of other parts than the tap that have an invalid value. These parts read them on their own, refuse them,
    and start when they are corrected.
    """
    if not settings.upstream and not settings.capture:
        raise click.UsageError(
            "no upstream. Pass the URL of a gateway, such as --upstream http://localhost:4000.",
            click.get_current_context(silent=True),
        )
    if settings.upstream and (faults := start_faults(settings, "tap")):
        raise OSError(faults[0].message)
    with lock_data_folder(settings.data, UP):
        # Here and not in the tap: one line before anything starts is clearer than a part that is started again and again.
        parts = _parts(settings, invalid)
        for part in parts:
            part.sockets = part.bind_sockets()
        if settings.capture:
            PacketSocket(*parse_interface(settings.capture)).close()
        return _run_parts(settings, parts)


def _run_parts(settings: Settings, parts: list[Part]) -> int:
    pipeline = Pipeline(settings.data / "run", parts, settings.hung_after)

    def on_signal(number: int, frame: object) -> None:
        if pipeline.stopping:  # second signal: do not drain
            pipeline.hurry()
        pipeline.stopping = True

    def on_replace(number: int, frame: object) -> None:
        pipeline.replace_tap = True

    signal.signal(REPLACED, on_replace)
    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)
    try:
        pipeline.start()
        if pipeline.refused:
            return REFUSED
        if not pipeline.stopping:
            pipeline.guard.attempt(_welcome, pipeline, settings)  # it fails if nothing reads stdout
            pipeline.watch()
            click.echo("Stopping when open streams have finished. Press Ctrl-C again to stop now.", err=True)
        return 0
    finally:
        pipeline.stopping = True
        pipeline.stop()
        with contextlib.suppress(OSError):
            (pipeline.run_dir / "up.json").unlink(missing_ok=True)


def _parts(settings: Settings, invalid: Collection[str]) -> list[Part]:
    ignored = unknown_variables()  # reported once, by this process
    environment = {name: value for name, value in os.environ.items() if name not in ignored}
    environment["STREAMGAUGE_PARENT"] = str(os.getpid())  # a part ends with `up`, even if that is killed
    # In the environment, because every user of the machine can read the flags of a process.
    if settings.kafka_options:
        environment["STREAMGAUGE_KAFKA_OPTIONS"] = json.dumps(settings.kafka_options)
    # The DSN may have a password. An invalid one is left out, so that the part reads it on its own and reports it.
    if "store" not in invalid:
        environment["STREAMGAUGE_STORE"] = settings.store
    for name in settings_of("up"):
        if isinstance(secret := getattr(settings, name), SecretStr):
            environment[variable(name)] = secret.get_secret_value()

    def part(name: str, **options: Any) -> Part:
        valid = [setting for setting in settings_of(name) if setting not in invalid]
        # -P: a folder named like a module in the working directory is never imported.
        argv = [sys.executable, "-P", "-m", "streamgauge", name, *flags(settings, valid)]
        return Part(name, argv, environment, **options)

    parts: list[Part] = []
    if settings.upstream:
        bind_sockets = partial(bind_tap, settings.listen, settings.admin, settings.workers)
        parts.append(part("tap", grace_s=settings.drain_timeout + STOP_GRACE_S, bind_sockets=bind_sockets))
    if settings.capture:
        capture = part("capture")
        capture.argv += ["--interface", settings.capture]
        if not settings.upstream:
            capture.argv += ["--admin", settings.admin]
        parts.append(capture)
    if settings.kafka or "kafka" in invalid:
        parts.append(part("ship"))
    parts.append(part("analyze", works_silently=True))
    if settings.serve:
        parts.append(part("serve", after="analyze"))  # analytics creates the store
    if not settings.no_dashboard:
        parts.append(part("dashboard"))
    return parts


def _welcome(pipeline: Pipeline, settings: Settings) -> None:
    ready = {part.name: pipeline.ready(part) or {} for part in pipeline.parts if part.is_ready}
    analyze = ready.get("analyze", {})
    upstreams = ", ".join(f"{u.name} = {u.url}" for u in settings.upstream)
    tap = ready.get("tap")
    lines = [("tap", f"{tap.get('listen')}  →  {upstreams}")] if tap is not None else []
    if "capture" in ready:
        lines.append(("capture", settings.capture))
    metrics = [f"{tap.get('admin')}/metrics"] if tap is not None else []
    if analyze.get("metrics"):
        metrics.append(analyze["metrics"])
    lines += [
        *([("metrics", "   ".join(metrics))] if metrics else []),
        ("sql", f'{own_command()} sql --data {shlex.quote(str(settings.data))} "FROM streams LIMIT 10"'),
    ]
    if analyze.get("otlp"):
        lines.append(("spans", f"{analyze['otlp']}/v1/traces"))
    if "serve" in ready:
        token_file = settings.data / "run" / "serve.json"
        lines.append(("sql server", f"{ready['serve'].get('quack')}, token in {token_file}"))
    if "dashboard" in ready:
        lines.insert(0, ("dashboard", str(ready["dashboard"].get("url"))))
    if settings.kafka:
        lines.append(("kafka", f"{settings.kafka}, topic {settings.kafka_topic}"))
    lines += [("not ready", f"{part.name}: {part.failure}") for part in pipeline.parts if not part.is_ready]
    click.echo(f"streamgauge is ready{': point your clients at the tap' if tap else ''}. Ctrl-C stops.")
    for name, value in lines:
        click.echo(f"  {name:<10} {value}")
    sys.stdout.flush()
