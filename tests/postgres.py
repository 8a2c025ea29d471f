"""A real PostgreSQL for tests: a temporary cluster on the loopback interface."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S

USER = "streamgauge"
READY_S = DEADLINE_S


@dataclass
class Postgres:
    """One cluster. As root it runs as the user `postgres`, because PostgreSQL does not run as root."""

    folder: Path = field(init=False)
    durable: bool = False
    """Whether commits wait for the disk (PostgreSQL's default). Tests do not need it."""
    port: int = 0
    process: subprocess.Popen[bytes] | None = None
    made: int = 0

    def start(self) -> None:
        """Create the cluster and wait until it is ready. Skips the test without PostgreSQL."""
        binaries = find_binaries()
        # Not in pytest's folder, which only its user may enter.
        self.folder = Path(tempfile.mkdtemp(prefix="streamgauge-pg-"))
        if os.geteuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        cluster = str(self.folder / "cluster")
        subprocess.run(
            [*as_unprivileged_user(), binaries / "initdb", "-D", cluster, "-A", "trust", "-U", USER, "--no-sync"],
            check=True, capture_output=True, cwd="/",
        )  # fmt: skip
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "on" if self.durable else "off",
        }
        self.process = subprocess.Popen(
            [*as_unprivileged_user(), str(binaries / "postgres"), "-D", cluster]
            + [part for name, value in settings.items() for part in ("-c", f"{name}={value}")],
            stdout=subprocess.DEVNULL, stderr=(self.folder / "log").open("wb"), cwd="/",
        )  # fmt: skip
        deadline_s = time.monotonic() + READY_S
        while subprocess.run(
            [binaries / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False, cwd="/"
        ).returncode:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            assert time.monotonic() < deadline_s, "PostgreSQL is not ready"
            time.sleep(0.05)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # an immediate shutdown
            self.process.wait(DEADLINE_S)
        shutil.rmtree(self.folder, ignore_errors=True)

    def new_database(self) -> str:
        """The DSN of an empty database."""
        self.made += 1
        name = f"lake{os.getpid()}_{self.made}"
        self.run(f"CREATE DATABASE {name}", "postgres")
        return f"host=127.0.0.1 port={self.port} user={USER} dbname={name}"

    def end_sessions(self, database: str) -> None:
        """End the sessions of all clients of a database, as a restart of the server does."""
        self.run(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()",
            database,
        )

    def run(self, sql: str, database: str) -> str:
        """The output of psql."""
        command = ["psql", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER, "-d", database, "-Atqc", sql]
        return subprocess.run(command, check=True, capture_output=True, text=True, cwd="/").stdout.strip()


def find_binaries() -> Path:
    """The folder of the newest server's programs. Skips the test without one."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    on_path = shutil.which("initdb")
    if not found and not on_path:
        pytest.skip("no PostgreSQL; on Debian: apt-get install postgresql")
    return found[-1].parent if found else Path(str(on_path)).resolve().parent


def as_unprivileged_user() -> list[str]:
    """Prefix of a command that must not run as root."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--reuid", "postgres", "--regid", "postgres", "--clear-groups", "--"]
