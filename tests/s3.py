"""A real S3 server for tests: S3Proxy over a folder, on the loopback interface, with signed requests."""

from __future__ import annotations

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.deadline import DEADLINE_S
from tests.ports import free_port

SCRIPT = Path(__file__).parents[1] / "deploy" / "s3" / "server-for-tests"
KEY, SECRET = "AKSTREAMGAUGE", "signs/with+odd=characters"
READY_S = DEADLINE_S
LOGBACK = """<configuration>
  <appender name="STDERR" class="ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target><encoder><pattern>%d %p %m%n</pattern></encoder>
  </appender>
  <root level="warn"><appender-ref ref="STDERR"/></root>
</configuration>
"""


@dataclass
class S3:
    """One server. `folder` has a folder for each bucket with a file for each object."""

    url: str
    folder: Path
    process: subprocess.Popen[bytes]

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables of a client."""
        return {
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
        }

    def bucket(self, name: str) -> str:
        """Create a bucket. Returns its address."""
        (self.folder / name).mkdir()
        return f"s3://{name}"

    def objects(self, bucket: str) -> set[str]:
        """The keys of a bucket."""
        root = self.folder / bucket
        return {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}


@contextmanager
def s3_server(folder: Path) -> Iterator[S3]:
    """Run a server until it is ready. Skips the test if it is not installed."""
    jars = _jars()
    objects = folder / "objects"
    objects.mkdir()
    (folder / "logback.xml").write_text(LOGBACK)
    port = free_port()
    properties = {
        "s3proxy.endpoint": f"http://127.0.0.1:{port}",
        "s3proxy.authorization": "aws-v2-or-v4",
        "s3proxy.identity": KEY,
        "s3proxy.credential": SECRET,
        "jclouds.provider": "filesystem-nio2",
        "jclouds.filesystem.basedir": str(objects),
    }
    (folder / "s3proxy.conf").write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    command = ["java", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{jars}/*"]
    command += [f"-Dlogback.configurationFile={folder / 'logback.xml'}", "org.gaul.s3proxy.Main"]
    with (folder / "s3proxy.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--properties", str(folder / "s3proxy.conf")], stdout=log, stderr=log
        )
    try:
        server = S3(f"http://127.0.0.1:{port}", objects, process)
        deadline_s = time.monotonic() + READY_S
        while not _answers(server.url):
            assert process.poll() is None, (folder / "s3proxy.log").read_text()
            assert time.monotonic() < deadline_s, "the S3 server is not ready"
            time.sleep(0.05)
        yield server
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


def _jars() -> Path:
    try:
        done = subprocess.run([SCRIPT], capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the S3 server is not installed: make test-setup")
    if done.returncode:
        pytest.skip(f"deploy/s3/server-for-tests failed: {done.stderr.strip()[-200:]}")
    return Path(done.stdout.strip().splitlines()[-1])


def _answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True  # unsigned requests are rejected
    except OSError:
        return False
    return True
