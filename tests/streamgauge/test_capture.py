"""`streamgauge capture --pcap`: what it prints, and its exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.deadline import DEADLINE_S
from tests.ingest.capture.packets import Talk, pcap
from tests.ingest.capture.test_exchanges import GET, PLAIN


def test_damaged_file_is_read_as_far_as_possible_and_fails(tmp_path: Path) -> None:
    packets = Talk().open().client(GET).server(PLAIN).close().packets
    packets += Talk(client_port=1).open().client(b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03").packets
    file = tmp_path / "traffic.pcap"
    file.write_bytes(pcap(packets)[:-3])
    done = subprocess.run(
        [sys.executable, "-m", "streamgauge", "capture", "--pcap", file, "--data", tmp_path / "data"],
        capture_output=True, text=True, timeout=DEADLINE_S,
    )  # fmt: skip
    assert done.returncode == 1
    count = len(packets) - 1
    problem = f"the rest of the file cannot be read: it is cut off, after {count} packets"
    assert done.stdout == f"1 request in {count} packets; {problem}\n"
    assert "1 connections are TLS" in done.stderr
    assert (tmp_path / "data" / "log" / "w512").is_dir()


def test_interface_or_file_is_required_and_a_missing_one_is_one_line(tmp_path: Path) -> None:
    for arguments, message in (
        ([], "Pass either --interface NAME or --pcap FILE"),
        (["--pcap", tmp_path / "none"], "does not exist"),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "streamgauge", "capture", "--data", tmp_path / "data", *arguments],
            capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip
        assert done.returncode == 2
        assert message in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_port_without_requests_is_said_with_those_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "traffic.pcap"
    file.write_bytes(pcap(Talk().open().client(GET).server(PLAIN).close().packets))
    command = [sys.executable, "-m", "streamgauge", "capture", "--pcap", file, "--data", tmp_path / "data"]
    done = subprocess.run([*command, "--port", "1"], capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 1
    assert "no request to these ports. The file has connections to 4000\n" in done.stderr
