"""Start, await and stop real processes for the end-to-end tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from streamgauge.analytics.query.query_errors import QueryError
from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.storage.data_folder_lock import RUN, lock_data_folder
from tests.analytics.stores import place_empty_catalog
from tests.deadline import DEADLINE_S, until
from tests.litellm_proxy import LITELLM
from tests.ports import free_port
from tests.tables import tables

ROOT = Path(__file__).resolve().parents[2]


def tables_of_run(data: Path) -> QueryPool:
    """The tables of `streamgauge run`, when its analytics has ended."""

    def has_ended() -> bool:
        try:
            lock_data_folder(data, RUN).close()
        except OSError:
            return False
        return True

    until(has_ended, "the analytics of the run to end")
    return tables(data)


def answers(url: str) -> bool | None:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status < 500)
    except urllib.error.HTTPError as e:
        return e.code < 500 or None
    except OSError:
        return None


@dataclass
class Up:
    """A running `streamgauge up`."""

    process: subprocess.Popen[str]
    data: Path
    log: Path
    store: str = "sqlite"

    def part(self, name: str) -> dict[str, Any]:
        content: dict[str, Any] = json.loads((self.data / "run" / f"{name}.json").read_text())
        return content

    @property
    def tap(self) -> str:
        return str(self.part("tap")["listen"])

    @property
    def admin(self) -> str:
        return str(self.part("tap")["admin"])

    def sql(self, query: str) -> list[dict[str, Any]]:
        return tables(self.data, self.store).query(query).to_dicts()

    def run(self, *argv: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run a `streamgauge` command on this data folder."""
        return subprocess.run(
            [sys.executable, "-m", "streamgauge", *argv, "--data", str(self.data)],
            cwd=self.data.parent,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )

    def rows(self, count: int, where: str = "true") -> list[dict[str, Any]]:
        """Wait for `count` streams that match `where`. Fails if there are more."""

        def enough() -> list[dict[str, Any]] | None:
            try:
                found = self.sql(f"SELECT * FROM streams WHERE {where} ORDER BY started_at, stream_id")
            except QueryError:  # analytics is being restarted
                return None
            assert len(found) <= count, f"{len(found)} rows, {count} streams"
            return found if len(found) == count else None

        try:
            return until(enough, f"{count} streams where {where}")
        except AssertionError as e:
            raise AssertionError(f"{e}\n{self.log.read_text()[-4000:]}") from None

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(DEADLINE_S)


@contextmanager
def up(
    upstreams: str | list[str],
    data: Path,
    *argv: str,
    dashboard: bool = False,
    creates_store: bool = False,
    **environment: str,
) -> Iterator[Up]:
    """Run `streamgauge up` on free ports until it is ready. A new data folder gets an empty store first, unless `creates_store`."""
    log = data.parent / f"{data.name}.log"
    names = [upstreams] if isinstance(upstreams, str) else upstreams
    command = [sys.executable, "-m", "streamgauge", "up", "--data", str(data)]
    for upstream in names:
        command += ["--upstream", upstream]
    for flag in ("--listen", "--admin"):
        command += [flag, "127.0.0.1:0"]
    command += ["--drain-timeout", "3", "--metrics", "127.0.0.1:0"]
    command += ["--dashboard-listen", "127.0.0.1:0"] if dashboard else ["--no-dashboard"]
    store = {**os.environ, **environment}.get("STREAMGAUGE_STORE", "sqlite")
    if store == "sqlite" and not creates_store and not data.exists():
        place_empty_catalog(data)
    with log.open("w") as sink:
        process = subprocess.Popen(
            [*command, *argv],
            stdout=sink,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=data.parent,
            env={**os.environ, **environment},
        )
    running = Up(process, data, log, store)
    try:

        def ready() -> bool | None:
            assert process.poll() is None, f"up ended with {process.returncode}:\n{log.read_text()}"
            return "streamgauge is ready" in log.read_text() or None

        until(ready, "up to be ready")
        yield running
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(DEADLINE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def simulator(*argv: str) -> Iterator[str]:
    """Run the simulated upstream as a process. Yields its URL."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(
        [sys.executable, "-m", "streamgauge", "simulate", "--listen", f"127.0.0.1:{port}", *argv],
        stdout=subprocess.DEVNULL,
    )
    try:
        until(lambda: answers(f"{url}/v1/models"), "the simulator")
        yield url
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def litellm_answers(url: str) -> None:
    """Wait until LiteLLM accepts requests."""
    until(lambda: answers(f"{url}/health/liveliness"), f"LiteLLM at {url}", 120)


@dataclass
class Litellm:
    """A running LiteLLM proxy."""

    url: str
    crashes: int = 0
    """How often it ended by a segmentation fault of its own and was started again: about once in 50 runs of the suite."""


@contextmanager
def litellm(
    config: str, folder: Path, port: int | None = None, *, wait: bool = True, **environment: str
) -> Iterator[Litellm]:
    """Run the real LiteLLM proxy with this configuration (YAML). The master key is `sk-test`.

    It takes a minute to start on a busy machine. Without `wait` the caller waits for it (`litellm_answers`).
    """
    (folder / "litellm.yaml").write_text(config)
    port = port or free_port()
    found = Litellm(f"http://127.0.0.1:{port}")
    command = [LITELLM, "--config", "litellm.yaml", "--host", "127.0.0.1", "--port", str(port)]
    log = (folder / "litellm.log").open("w")
    environ = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True", **environment}

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environ)

    process = start()

    def start_after_crashes() -> None:
        nonlocal process
        while process.wait() == -signal.SIGSEGV:
            found.crashes += 1
            process = start()

    supervisor = threading.Thread(target=start_after_crashes)
    supervisor.start()
    try:
        if wait:
            litellm_answers(found.url)
        yield found
    finally:
        process.terminate()
        supervisor.join(DEADLINE_S)
        if supervisor.is_alive():
            process.kill()
            supervisor.join()
        log.close()
