"""Start the targets of the benchmark: nginx, the tap in its variants, the LiteLLM proxy, and the mock upstream.

The proxy under test runs on the first core, upstream and load client (C, compiled here) on the others.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.tap.processes import children
from streamgauge.ingest.http1.upstreams import parse_upstreams
from tests.options import tap_options

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
START_TIMEOUT_S = 20.0
CORES = sorted(os.sched_getaffinity(0))
PROXY_CORE, OTHER_CORES = {CORES[0]}, set(CORES[1:]) or {CORES[0]}
TAP_PROGRAM = "import pickle, sys; from streamgauge.ingest.tap.main import run; sys.exit(run(pickle.loads(bytes.fromhex(sys.argv[1]))))"
NGINX_CONF = """
daemon off; pid {folder}/nginx.pid; error_log {folder}/error.log; worker_processes 1; worker_rlimit_nofile 65536;
events {{ worker_connections 32768; }}
http {{
  access_log off; tcp_nodelay on; keepalive_requests 1000000000;
  client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c; uwsgi_temp_path {folder}/d;
  scgi_temp_path {folder}/e;
  upstream mock {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 1000000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=16384;
    location / {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
      proxy_read_timeout 300s;
    }}
    location /ws {{
      proxy_pass http://mock; proxy_http_version 1.1; proxy_set_header Connection Upgrade; proxy_set_header Upgrade $http_upgrade;
    }}
  }}
}}
"""


LITELLM = ROOT / ".venv-litellm" / "bin" / "litellm"
LITELLM_CONF = """
model_list:
  - model_name: bench
    litellm_params: {{model: openai/bench, api_base: "http://127.0.0.1:{upstream}/paced/100000", api_key: sk-none}}
general_settings: {{master_key: sk-bench}}
litellm_settings: {{telemetry: false}}
"""
LITELLM_BODY = b'{"model": "bench", "stream": true, "messages": [{"role": "user", "content": "hi"}]}'


@dataclasses.dataclass
class Target:
    """A server under load. The CPU and memory of `pids` and their descendants are measured."""

    name: str
    port: int
    pids: list[int]
    admin: str | None = None
    """The tap's admin URL."""
    request: bytes | None = None
    """The request to send instead of the load client's default."""

    def counters(self) -> dict[str, int]:
        """The tap's counters, {} for other targets."""
        if self.admin is None:
            return {}
        with urllib.request.urlopen(f"{self.admin}/ledger", timeout=10) as answer:
            found: dict[str, int] = json.load(answer)
            return found


def compile_c(folder: Path) -> None:
    """Build the mock upstream and the load client."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise SystemExit("bench tap: no C compiler found. On Debian: apt-get install gcc libc6-dev")
    for name in ("upstream", "load"):
        subprocess.run(
            [compiler, "-O2", "-o", str(folder / name), str(HERE / f"{name}.c"), "-lm"], check=True
        )


def debian_program(name: str, package: str) -> str | None:
    """Path of a program. Installs its package as root on Debian; None if it is not available."""
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin")
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        command = ["apt-get", "install", "-y", "--no-install-recommends", package]
        # RUNLEVEL=1 prevents the package from starting its own server.
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "RUNLEVEL": "1"}
        subprocess.run(command, check=False, stdout=subprocess.DEVNULL, env=environment)
        found = shutil.which(name, path="/usr/sbin")
    return found


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def wait_for(met: Callable[[], Any], timeout_s: float = START_TIMEOUT_S) -> Any:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            if value := met():
                return value
        time.sleep(0.05)
    raise SystemExit("bench tap: a server did not start in time")


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def listening(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port), timeout=1):
        return True


def pinned(cores: set[int], *, idle: bool = False) -> Callable[[], None]:
    """A preexec_fn that pins the child to these cores. `idle`: with idle priority."""

    def pin() -> None:
        os.sched_setaffinity(0, cores)
        if idle:
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))

    return pin


@contextlib.contextmanager
def started(
    argv: list[str],
    cores: set[int],
    stdout: int | None = None,
    *,
    idle: bool = False,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        argv,
        preexec_fn=pinned(cores, idle=idle),
        stdout=stdout,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **(environment or {})},
        cwd=cwd,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def upstream_port(folder: Path) -> int:
    """The port of the mock upstream started with this folder."""
    return int((folder / "port").read_text())


@contextlib.contextmanager
def mock_upstream(folder: Path) -> Iterator[int]:
    """Run the mock upstream. Yields its port."""
    with started([str(folder / "upstream"), str(folder / "port")], OTHER_CORES) as upstream:
        port = wait_for(lambda: upstream_port(folder))
        assert upstream.poll() is None
        yield port


@contextlib.contextmanager
def nginx(folder: Path, upstream: int) -> Iterator[Target | None]:
    """Run nginx with one worker. Yields None if it is not available."""
    program = debian_program("nginx", "nginx-light")
    if program is None:
        yield None
        return
    port = free_port()
    conf = folder / "nginx.conf"
    conf.write_text(NGINX_CONF.format(folder=folder, upstream=upstream, port=port))
    with started([program, "-c", str(conf), "-p", str(folder)], PROXY_CORE) as process:
        wait_for(lambda: listening(port))
        yield Target("nginx", port, wait_for(lambda: children(process.pid)))


@contextlib.contextmanager
def tap(
    name: str,
    data: Path,
    upstream: int,
    *,
    prefix: Sequence[str] = (),
    start_timeout_s: float = START_TIMEOUT_S,
    **overrides: Any,
) -> Iterator[Target]:
    """Run a tap with these options. `prefix`: a command that runs it, such as a profiler."""
    options = tap_options(
        upstreams=parse_upstreams([f"bench=http://127.0.0.1:{upstream}"]),
        data=data,
        listen="127.0.0.1:0",
        admin="127.0.0.1:0",
        drain_timeout_s=0.1,
        **overrides,
    )
    argv = [*prefix, sys.executable, "-c", TAP_PROGRAM, pickle.dumps(options).hex()]
    with started(argv, PROXY_CORE) as process:
        ready = wait_for(functools.partial(read_json, data / "run" / "tap.json"), start_timeout_s)
        yield Target(name, int(ready["listen"].rpartition(":")[2]), [process.pid], admin=ready["admin"])


@contextlib.contextmanager
def tap_of(work_tree: Path, name: str, data: Path, upstream: int) -> Iterator[Target]:
    """Run `streamgauge tap` from another work tree of this repository."""
    argv = [sys.executable, "-m", "streamgauge", "tap", "--upstream", f"bench=http://127.0.0.1:{upstream}"]
    argv += [
        "--data",
        str(data),
        "--listen",
        "127.0.0.1:0",
        "--admin",
        "127.0.0.1:0",
        "--drain-timeout",
        "0.1",
    ]
    with started(argv, PROXY_CORE, cwd=work_tree) as process:
        ready = wait_for(functools.partial(read_json, data / "run" / "tap.json"))
        yield Target(name, int(ready["listen"].rpartition(":")[2]), [process.pid], admin=ready["admin"])


@contextlib.contextmanager
def litellm(folder: Path, upstream: int) -> Iterator[Target | None]:
    """Run the LiteLLM proxy. Yields None if it is not installed (`make test-setup`)."""
    if not LITELLM.exists():
        yield None
        return
    (folder / "litellm.yaml").write_text(LITELLM_CONF.format(upstream=upstream))
    port = free_port()
    argv = [
        str(LITELLM),
        "--config",
        str(folder / "litellm.yaml"),
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
    ]
    with started(
        argv, PROXY_CORE, stdout=subprocess.DEVNULL, environment={"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    ) as process:
        wait_for(lambda: listening(port), 120)
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer sk-bench\r\n"
        head += f"Content-Type: application/json\r\nContent-Length: {len(LITELLM_BODY)}\r\n\r\n"
        yield Target("LiteLLM proxy", port, [process.pid], request=head.encode() + LITELLM_BODY)
