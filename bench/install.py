"""Size of the base install and of each extra, time from `pip install` to the first forwarded request, and times of commands.

`python -m bench install` prints the tables of docs/explanation/performance.md. It builds the wheel and installs it with pip and uv in new
environments, with warm caches. The first request passes `streamgauge tap`, with `ship` running, to an
HTTP server of the standard library. Sizes include compiled Python files. Commands of the base install are timed as processes; `sql`
and `status` ask an analytics that has been running for a while.
"""

from __future__ import annotations

import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from streamgauge.analytics.query.query_socket import WARM_UP_AFTER_S
from tests.installed import OFFERED, ROOT
from tests.ports import free_port

ROUNDS = 3
COMMANDS = (("--help",), ("version",), ("sql", "SELECT 1"), ("status",))
RUNS = 20


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(Path(folder))
        environment = Path(folder) / "venv"
        print("| install | packages | MB | s with uv |\n|---|--:|--:|--:|")
        for extra in ("", *sorted(OFFERED)):
            what = f"{wheel}[{extra}]" if extra else str(wheel)
            install_with_uv(environment, what)
            seconds = statistics.median(timed(install_with_uv, environment, what) for _ in range(ROUNDS))
            compile_files(environment)
            (packages,) = environment.glob("lib/python*/site-packages")
            count = len(list(packages.glob("*.dist-info"))) - 1  # without our own
            size = sum(f.stat().st_size for f in packages.rglob("*") if f.is_file())
            name = f"`streamgauge[{extra}]`" if extra else "`streamgauge`"
            print(f"| {name} | {count} | {size / 1e6:.0f} | {seconds:.1f} |", flush=True)
        print("\n| first forwarded request after the start of | median s | slowest s |\n|---|--:|--:|")
        for name, install in (
            ("`python -m venv` and `pip install`", install_with_pip),
            ("`uv venv` and `uv pip install`", install_with_uv),
        ):
            found = [first_request(install, environment, str(wheel)) for _ in range(ROUNDS)]
            print(f"| {name} | {statistics.median(found):.1f} | {max(found):.1f} |")
        command_times(environment, str(wheel))
    return 0


def build(folder: Path) -> Path:
    """The wheel of this work tree."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install_with_pip(environment: Path, what: str) -> None:
    shutil.rmtree(environment, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    subprocess.run([environment / "bin" / "pip", "install", "--quiet", what], check=True)


def install_with_uv(environment: Path, what: str) -> None:
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "--quiet", "--clear", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([uv, "pip", "install", "--quiet", "--python", python, what], check=True)


def compile_files(environment: Path) -> None:
    """As pip does and uv does not."""
    subprocess.run([environment / "bin" / "python", "-m", "compileall", "-q", environment], check=False)


def timed(install: Callable[[Path, str], None], environment: Path, what: str) -> float:
    began_s = time.monotonic()
    install(environment, what)
    return time.monotonic() - began_s


class _Upstream(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged."""


def first_request(install: Callable[[Path, str], None], environment: Path, wheel: str) -> float:
    """Seconds from the creation of the environment until a request through the tap has a response."""
    upstream = ThreadingHTTPServer(("127.0.0.1", 0), _Upstream)
    threading.Thread(target=upstream.serve_forever, daemon=True).start()
    listen = f"127.0.0.1:{free_port()}"
    seconds = timed(install, environment, wheel)
    command = [environment / "bin" / "streamgauge"]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as data:
        processes = [
            subprocess.Popen([*command, *argv, "--data", data], stderr=subprocess.DEVNULL)
            for argv in (
                ("tap", "--listen", listen, "--admin", "127.0.0.1:0", "--upstream", f"http://127.0.0.1:{upstream.server_port}"),
                ("ship", "--kafka", "127.0.0.1:1"),
            )
        ]  # fmt: skip
        try:
            while True:
                try:
                    with urllib.request.urlopen(f"http://{listen}/", timeout=5) as response:
                        assert response.read() == b"ok"
                        return seconds + time.monotonic() - began_s
                except OSError:
                    assert processes[0].poll() is None
                    time.sleep(0.02)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(20)
            upstream.shutdown()


def command_times(environment: Path, wheel: str) -> None:
    """Print the median and the maximum of the wall time of each command of the base install."""
    install_with_uv(environment, wheel)
    compile_files(environment)
    command = environment / "bin" / "streamgauge"
    with tempfile.TemporaryDirectory() as data:
        analytics = subprocess.Popen(
            [sys.executable, "-m", "streamgauge", "analyze", "--data", data, "--metrics="],
            cwd=ROOT,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(2 * WARM_UP_AFTER_S)
            print("\n| command | median s | slowest s |\n|---|--:|--:|")
            for argv in COMMANDS:
                more = ("--data", data) if argv[0] in ("sql", "status") else ()
                found = []
                for _ in range(RUNS):
                    began_s = time.monotonic()
                    subprocess.run([command, *argv, *more], check=True, stdout=subprocess.DEVNULL)
                    found.append(time.monotonic() - began_s)
                name = " ".join(f'"{word}"' if " " in word else word for word in argv)
                print(f"| `{name}` | {statistics.median(found[1:]):.2f} | {max(found[1:]):.2f} |")
        finally:
            analytics.terminate()
            analytics.wait(30)
