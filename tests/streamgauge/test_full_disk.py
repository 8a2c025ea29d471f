"""A full disk while the tap runs, stops, starts and is killed: captured = stored + lost, with a row of `losses` for each lost stream.

The data folder is a small filesystem. A file fills it, and requests go on. Afterwards each request is either stored or lost.
"""

from __future__ import annotations

import http.client
import http.server
import json
import re
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from streamgauge.commands.status import status_command
from streamgauge.ingest.ready_file import read_ready_file
from streamgauge.ingest.record_log.embedded_reader import EmbeddedReader
from streamgauge.ingest.record_log.run_totals import read_run_totals
from streamgauge.ingest.tap.relay.choice import native_relay
from tests.deadline import DEADLINE_S, until
from tests.small_disk import fill, small_disk
from tests.streamgauge.stored import analyse, outcomes, write_streams
from tests.streamgauge.upstream import upstream as answering

pytestmark = pytest.mark.usefixtures("reads_in_process")
TAP = """
import logging, sys
from pathlib import Path
from streamgauge.ingest.tap.main import run
from streamgauge.ingest.tap.options import TapOptions
from streamgauge.ingest.http1.upstreams import parse_upstreams
from streamgauge.settings.process_options import options_of
from streamgauge.settings.model import Settings
logging.basicConfig(level=logging.INFO)
data, upstream, relay, queue = sys.argv[1:]
sys.exit(run(options_of(
    TapOptions, Settings(), upstreams=parse_upstreams([upstream]), data=Path(data), listen="127.0.0.1:0", admin="127.0.0.1:0", tap_name="t",
    relay=relay, queue_bytes=int(queue), log_stop_timeout_s=0.3, alive_s=0.2, drain_timeout_s=1.0,
)))
"""
BATCH = 15
"""Requests before, during and after the full disk."""
RELAYS = [
    "python",
    pytest.param(
        "native", marks=pytest.mark.skipif(native_relay is None, reason="the native relay is not built")
    ),
]


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    with answering() as url:
        yield url


class Disk:
    """A small filesystem and a file that fills it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"

    def fill(self) -> None:
        fill(self.folder / "filler")

    def free(self) -> None:
        (self.folder / "filler").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk", "24m") as folder:
        yield Disk(folder)


class Tap:
    """A tap process and the number of requests that it has answered."""

    def __init__(self, data: Path, upstream: str, relay: str, queue_bytes: int, output: Path) -> None:
        self.data, self.output = data, output
        self.requests = 0
        with output.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", TAP, str(data), upstream, relay, str(queue_bytes)], stderr=log
            )
        self._address = until(self._listening, f"the tap: {output.read_text()}")

    def _listening(self) -> str | None:
        """Its address: from its log line, because the ready file needs room on the disk."""
        assert self.process.poll() is None, self.output.read_text()
        ready = [line for line in self.output.read_text().splitlines() if "tap ready: " in line]
        if len(ready) < starts(self.output):
            return None
        self.admin = ready[-1].partition("admin: ")[2].partition(",")[0]
        return ready[-1].partition("tap ready: ")[2].partition(",")[0]

    def request(self, count: int = BATCH) -> None:
        connection = http.client.HTTPConnection(self._address.removeprefix("http://"), timeout=DEADLINE_S)
        with closing(connection):
            for _ in range(count):
                connection.request(
                    "POST",
                    "/v1/chat/completions",
                    b'{"model": "m", "stream": true}',
                    {"Content-Type": "application/json"},
                )
                response = connection.getresponse()
                assert (response.status, response.read()[-8:]) == (200, b"[DONE]\n\n")
        self.requests += count

    def counters(self) -> dict[str, int]:
        with urllib.request.urlopen(f"{self.admin}/ledger", timeout=DEADLINE_S) as response:
            found: dict[str, int] = json.load(response)
        return found

    def recordingz(self) -> str:
        try:
            with urllib.request.urlopen(f"{self.admin}/recordingz", timeout=DEADLINE_S) as response:
                return str(response.read(), "utf-8")
        except urllib.error.HTTPError as e:
            with e:
                return str(e.read(), "utf-8")

    def wait_until_failing(self) -> None:
        """Wait until an append has failed after the last request."""
        errors = self.counters()["log_append_errors"]
        until(lambda: self.counters()["log_append_errors"] > errors, "a failed append")

    def wait_until_logged(self) -> None:
        """Wait until the log has all streams of this run."""
        until(
            lambda: (
                [0, *(t.streams_in_log for t in read_run_totals(self.data / "log").values())][-1]
                == self.requests
            ),
            "records",
        )

    def stop(self) -> None:
        self.process.terminate()
        assert self.process.wait(DEADLINE_S) == 0, self.output.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(DEADLINE_S)


_starts: dict[Path, int] = {}


def starts(output: Path) -> int:
    return _starts.get(output, 0)


class Rig:
    """Starts of a tap on one data folder, counted."""

    def __init__(self, disk: Disk, upstream: str, relay: str, queue_bytes: int, output: Path) -> None:
        self.disk = disk
        self._arguments = upstream, relay, queue_bytes, output
        self.taps: list[Tap] = []
        self.step = ""

    @contextmanager
    def running(self) -> Iterator[Rig]:
        try:
            yield self
        finally:
            for tap in self.taps:
                if tap.process.poll() is None:
                    tap.kill()

    def start(self) -> Tap:
        output = self._arguments[3]
        _starts[output] = starts(output) + 1
        tap = Tap(self.disk.data, *self._arguments)
        self.taps.append(tap)
        return tap

    @property
    def requests(self) -> int:
        return sum(tap.requests for tap in self.taps)


def status_of(data: Path, form: str = "json") -> tuple[int, str]:
    arguments = ["--data", str(data), "--format", form]
    result = CliRunner().invoke(status_command, arguments, standalone_mode=False)
    assert result.exception is None, result.exception
    return result.return_value, result.output


def check(rig: Rig, *, lost: int) -> None:
    """Each request is stored or lost once, and each lost stream has a row of `losses`."""
    data = rig.disk.data
    analyse(data)
    code, text = status_of(data)
    status = json.loads(text)
    counts = {
        name: status[name]
        for name in ("captured", "captured_at_most", "stored", "in_flight", "lost", "unreported")
    }
    assert counts == {
        "captured": rig.requests, "captured_at_most": rig.requests, "stored": rig.requests - lost, "in_flight": 0, "lost": lost,
        "unreported": 0,
    }, text  # fmt: skip
    assert (code, status["unknown"], status["faults"]) == (0, [], {}), text
    assert outcomes(data) == {"ok": rig.requests - lost, "lost": lost, "without_row": 0}
    print(rig.step, counts, status["losses_by_cause"])


def check_unreported(rig: Rig, unreported: int) -> None:
    """The tap has ended while the disk was full: the totals of the run show what is lost."""
    code, text = status_of(rig.disk.data)
    status = json.loads(text)
    assert (code, status["unreported"], status["captured"]) == (1, unreported, rig.requests), text
    assert status["reconciles"]
    _, shown = status_of(rig.disk.data, "table")
    assert f"{unreported} streams are lost without a row in `losses`" in shown


@pytest.mark.parametrize("relay", RELAYS)
def test_each_request_is_stored_or_lost_once_while_the_tap_runs_stops_starts_and_is_killed_on_a_full_disk(
    relay: str, disk: Disk, upstream: str, tmp_path: Path
) -> None:
    """Run, stop, start and kill a tap on a full disk, with traffic. What is lost is known in each state."""
    with Rig(disk, upstream, relay, 4 * 2**20, tmp_path / "tap.log").running() as rig:
        rig.step = f"{relay}: run"
        tap = rig.start()
        tap.request()
        tap.wait_until_logged()
        disk.fill()
        tap.request()
        tap.wait_until_failing()
        disk.free()
        tap.request()
        tap.wait_until_logged()
        assert tap.recordingz() == "recording\n"
        check(rig, lost=0)

        rig.step = f"{relay}: stop"
        disk.fill()
        tap.request()
        tap.wait_until_failing()
        assert f"{disk.data / 'log'}: No space left on device" in tap.recordingz()
        found = CliRunner().invoke(status_command, ["--data", str(disk.data)], standalone_mode=False)
        assert 1 in (found.return_value, found.exit_code)  # an error if SQLite needs space to read
        shown = f"{found.output}{found.exception}"
        assert f"cannot append to {disk.data / 'log'}" in shown
        assert f"fault in disk: the disk of {disk.data} is full" in shown
        tap.stop()
        disk.free()  # the totals of the run are stored, whether or not there is space again
        check_unreported(rig, BATCH)

        rig.step = f"{relay}: start"
        disk.fill()
        tap = rig.start()
        tap.request()
        tap.wait_until_failing()
        disk.free()
        tap.request()
        tap.wait_until_logged()
        check(rig, lost=BATCH)

        rig.step = f"{relay}: restart"
        disk.fill()
        tap.request()
        tap.kill()  # at once: the log thread has not stored the totals
        tap = rig.start()
        tap.request()
        tap.kill()
        disk.free()
        tap = rig.start()
        tap.request()
        tap.wait_until_logged()
        tap.stop()
        check(rig, lost=3 * BATCH)


def test_the_first_start_on_a_full_disk_serves_and_records_once_there_is_room(
    disk: Disk, upstream: str, tmp_path: Path
) -> None:
    disk.fill()
    with Rig(disk, upstream, "auto", 4 * 2**20, tmp_path / "tap.log").running() as rig:
        tap = rig.start()
        tap.request()
        tap.wait_until_failing()
        disk.free()
        tap.request()
        tap.wait_until_logged()
        until(lambda: read_ready_file(disk.data / "run" / "tap.json"), "the ready file")
        tap.stop()
        check(rig, lost=0)


def test_readers_go_on_while_the_disk_is_full_and_release_its_space(disk: Disk) -> None:
    """Shipping frees space. The messages name the files."""
    write_streams(disk.data, range(50))
    log_dir = disk.data / "log"
    with EmbeddedReader(log_dir, "ship") as reader:
        assert reader.poll(0)
    write_streams(disk.data, range(100, 150))  # a second segment
    full = len(list((log_dir / "w0").glob("*.sqlite")))
    disk.fill()
    with EmbeddedReader(log_dir, "ship") as reader:
        entries = reader.poll(0)
        disk.fill()
        reader.release("w0", entries[-1].offset + 1)
        assert len(list((log_dir / "w0").glob("*.sqlite"))) == full - 1
    disk.fill()
    with pytest.raises(OSError, match=re.escape(str(log_dir / "readers" / "other.json"))):
        EmbeddedReader(log_dir, "other")
