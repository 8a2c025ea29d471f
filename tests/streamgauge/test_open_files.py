"""`streamgauge open`: files become streams of a data folder, without secrets, and a dashboard shows them."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import zstandard
from click.testing import CliRunner

from streamgauge.cli import cli
from streamgauge.commands import open_files
from streamgauge.ingest import input_file
from streamgauge.ingest.record_log.segments import list_segments, open_segment, read_rows
from streamgauge.ingest.records import encode, unpack
from tests.deadline import until
from tests.ingest.capture.packets import Sent, Talk, pcap
from tests.ingest.files.hars import BODY, STARTED_NS, entry, fields, har, socket_entry
from tests.ingest.running_tap import END, SSE_HEAD, chunk
from tests.tables import tables

SECRETS = 200
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n"


def with_secrets() -> dict[str, Any]:
    """An entry with secrets in each place that a HAR has for them, and in the prompt."""
    secrets = iter([f"planted-{n:03}-secret" for n in range(SECRETS)])

    def take(count: int) -> list[str]:
        return [next(secrets) for _ in range(count)]

    names = (
        "Authorization",
        "Cookie",
        "X-Api-Key",
        "Api-Key",
        "X-Goog-Api-Key",
        "Proxy-Authorization",
        "X-Custom",
        "Referer",
    )
    one = entry()
    request, response = one["request"], one["response"]
    request["headers"] += fields(*zip(names * 5, take(40), strict=True))
    response["headers"] += fields(*(("Set-Cookie", value) for value in take(40)))
    request["url"] += "?" + "&".join(f"key={value}" for value in take(40))
    request["queryString"] = fields(*(("key", value) for value in take(20)))
    request["cookies"] = fields(*zip(take(10), take(10), strict=True))
    message = {"role": "user", "content": " ".join(take(20))}
    request["postData"]["text"] = json.dumps({"model": "gpt-5", "stream": True, "messages": [message]})
    response["content"]["text"] = (
        f'data: {{"choices": [{{"delta": {{"content": "{" ".join(take(20))}"}}}}]}}\n\n' + BODY
    )
    assert next(secrets, None) is None
    return one


def bytes_below(folder: Path) -> bytes:
    """All bytes of the files, and the records in compressed entries."""
    found = [file.read_bytes() for file in folder.rglob("*") if file.is_file()]
    for segment in list_segments(folder / "log" / "w512"):
        with closing(open_segment(segment.path)) as connection:
            found += [
                encode(record) for row in read_rows(connection, 0, 2**30)[0] for record in unpack(row[1])[0]
            ]
    return b"".join(found)


def packets_of_a_stream() -> list[Sent]:
    """A stream with its first token after 200 ms, and secrets in the request."""
    body = json.dumps(
        {"model": "gpt-5", "stream": True, "messages": [{"role": "user", "content": "planted-prompt"}]}
    )
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nAuthorization: planted-key\r\nContent-Length: {len(body)}\r\n\r\n"
    first, rest = (part.encode() for part in (BODY[: BODY.index("\n\n") + 2], BODY[BODY.index("\n\n") + 2 :]))
    talk = Talk()
    talk.at_ns = STARTED_NS
    talk.open().client((head + body).encode()).wait(200).server(SSE_HEAD + chunk(first)).wait(50)
    return talk.server(chunk(rest) + END).close().packets


def test_files_become_streams_without_secrets_and_the_dashboard_shows_their_time(tmp_path: Path) -> None:
    timed = entry(_eventSourceMessages=[
        {"time": STARTED_NS / 1e9 + at_s, "data": event.removeprefix("data: ")}
        for at_s, event in zip((0.3, 0.4, 0.5, 0.6, 0.7), BODY.strip().split("\n\n"), strict=False)
    ])  # fmt: skip
    refused = entry(status=0)
    refused["response"]["_error"] = "net::ERR_CONNECTION_REFUSED"
    (tmp_path / "page.har").write_text(
        har(with_secrets(), timed, refused, {"request": 1}, entry(content={"size": 5}))
    )
    (tmp_path / "cut.har.gz").write_bytes(
        gzip.compress(har(entry(), entry(comment=os.urandom(2000).hex())).encode())[:-400]
    )
    (tmp_path / "one.sse.zst").write_bytes(zstandard.compress(HEAD + BODY.encode()))
    os.utime(tmp_path / "one.sse.zst", (STARTED_NS // 10**9 + 600,) * 2)
    (tmp_path / "empty.har").touch()
    (tmp_path / "lo.pcap").write_bytes(pcap(packets_of_a_stream()))
    files = ["page.har", "cut.har.gz", "one.sse.zst", "empty.har", "missing.har", "lo.pcap"]
    data, log = tmp_path / "data", tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamgauge", "open", "--data", str(data), *files],
            stderr=sink,
            cwd=tmp_path,
        )
    try:
        found = until(
            lambda: log.read_text() if "dashboard ready" in log.read_text() else None, "the dashboard"
        )
        address = urlsplit(
            next(line.split()[-1] for line in found.splitlines() if line.startswith("  dashboard"))
        )
        connection = http.client.HTTPConnection(address.netloc, timeout=10)
        connection.request("GET", "/_stcore/health")
        assert connection.getresponse().status == 200
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    assert parse_qs(address.query) == {
        "range": ["custom"], "from": ["2026-03-01T12:00"], "until": ["2026-03-01T12:11"], "refresh": ["off"],
    }  # fmt: skip
    for line in (
        "page.har: entry 4 cannot be read: it has no URL",
        "page.har: entry 5 cannot be read: the file has no body",
        "page.har: 3 requests read, 0 left out",
        "page.har: 2 without times of events",
        "cut.har.gz: 1 request read, 0 left out (of a cache, or not over the network); the rest of the file cannot be read: its gzip",
        "one.sse.zst: a recorded response. It has no times",
        "empty.har: the file is empty",
        "missing.har: cannot be read: No such file",
        "lo.pcap: 1 request in",
        "  requests  6, 1 failed",
    ):
        assert line in found
    query = tables(data).query
    rows = query("SELECT * FROM streams ORDER BY tap, outcome DESC, ttft_ns NULLS LAST").to_dicts()
    times = query(
        "SELECT DISTINCT at_ns FROM events JOIN streams USING (stream_id) WHERE tap = 'cut.har.gz'"
    ).to_dicts()
    assert [(row["tap"], row["outcome"], row["ttft_ns"] and round(row["ttft_ns"] / 1e6)) for row in rows] == [
        ("cut.har.gz", "ok", None), ("lo.pcap", "ok", 200), ("one.sse.zst", "ok", None), ("page.har", "ok", 300), ("page.har", "ok", None),
        ("page.har", "connect_error", None),
    ]  # fmt: skip
    assert times == [{"at_ns": 1_000_000_000}]
    untimed = [rows[0], rows[2]]
    for row in untimed:
        unknown = (
            "ttfb_ns",
            "ttft_ns",
            "itl_ns",
            "icl_p50_ns",
            "tps_user",
            "tps_e2e",
            "stall_count",
            "burstiness",
        )
        assert [row[name] for name in unknown] == [None] * len(unknown)
        assert (row["streamed"], row["output_tokens"], row["meets_objective"]) == (True, 20, None)
    assert [(row["headers_ns"], row["end_ns"]) for row in untimed] == [
        (200_000_000, 1_000_000_000),
        (None, None),
    ]
    assert rows[4]["client_id"] is not None
    assert b"planted-" not in bytes_below(data)


def refusal(*argv: str | Path) -> str:
    done = CliRunner().invoke(cli, ["open", "--no-dashboard", *map(str, argv)])
    assert done.exit_code != 0
    return done.output + str(done.exception)


def rows_of(data: Path, *columns: str) -> list[tuple[Any, ...]]:
    return tables(data).query(f"SELECT {', '.join(columns)} FROM streams ORDER BY started_at, path").rows()


@pytest.fixture(autouse=True)
def _telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_SDK_DISABLED", "false")  # the command sets it


def test_damaged_files_cost_only_themselves_and_the_exit_code_says_so(tmp_path: Path) -> None:
    whole, garbage, bomb, packets = (tmp_path / name for name in ("a.har", "b.har", "c.har.gz", "d.pcap"))
    whole.write_text(har(entry()))
    garbage.write_bytes(os.urandom(500))
    bomb.write_bytes(gzip.compress(har(entry(), entry(comment="x" * 5_000_000)).encode()))
    packets.write_bytes(pcap(packets_of_a_stream())[:-1])
    missing = tmp_path / "missing.har"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_file, "EXPANDED_BYTES", 2**20)
        patch.setattr(open_files, "REPORT_EVERY_S", 0)
        found = refusal("--data", tmp_path / "data", garbage, missing, bomb, packets, whole)
    assert sorted(rows_of(tmp_path / "data", "tap", "outcome")) == [
        (path.name, "ok") for path in (whole, bomb, packets)
    ]
    lines = found.splitlines()
    first = {
        path: next(line for line in lines if line.startswith(str(path)) and "% read" not in line)
        for path in (bomb, packets)
    }
    assert "1 request read" in first[bomb]
    assert "GiB, the limit. Decompress it before to read all of it" in first[bomb]
    assert "the rest of the file cannot be read: it is cut off" in first[packets]
    assert f"{missing}: cannot be read: No such file or directory" in lines
    assert f"not all of 5 files could be read: {garbage}, {missing}, {bomb}, {packets}" in found
    shares = [
        line.removeprefix(f"{whole}: ") for line in lines if line.startswith(str(whole)) and "% read" in line
    ]
    assert shares[-1] == "100 % read"
    assert [line for line in lines if line.endswith("% analysed")][-1] == "100 % analysed"


def test_a_har_and_packets_of_the_same_requests_have_the_same_rows(tmp_path: Path) -> None:
    page, talk = b"<html>hello</html>", Talk()
    talk.at_ns = STARTED_NS
    prompt = entry()["request"]["postData"]["text"].encode()
    icon_head = b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n"
    talk.open().client(b"GET /page HTTP/1.1\r\nHost: gw\r\nUser-Agent: a/1\r\n\r\n")
    talk.server(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(page) + page
    )
    talk.client(b"GET /favicon.ico HTTP/1.1\r\nHost: gw\r\nUser-Agent: a/1\r\n\r\n").server(icon_head + b"no")
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: gw\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
    talk.client(head % len(prompt) + prompt).server(SSE_HEAD + chunk(BODY.encode()) + END).close()

    def get(url: str, status: int, kind: str, body: bytes) -> dict[str, Any]:
        found = entry(
            status=status, kind=kind, content={"size": len(body), "mimeType": kind, "text": body.decode()}
        )
        found["request"] = {
            "method": "GET",
            "url": f"http://gw{url}",
            "headers": fields(("User-Agent", "a/1")),
        }
        return found

    entries = [get("/page", 200, "text/html", page), get("/favicon.ico", 404, "text/plain", b"no"), entry()]
    (tmp_path / "a.har").write_text(har(*entries))
    (tmp_path / "a.pcap").write_bytes(pcap(talk.packets))
    columns = (
        "method", "path", "operation", "dialect", "http_status", "outcome", "error_type", "streamed", "client_app", "request_model",
        "input_tokens", "output_tokens", "event_count", "request_bytes", "response_bytes",
    )  # fmt: skip
    rows = []
    for name in ("a.har", "a.pcap"):
        done = CliRunner().invoke(
            cli, ["open", "--no-dashboard", "--data", str(tmp_path / name[2:]), str(tmp_path / name)]
        )
        assert done.exit_code == 0, done.output
        rows.append(sorted(map(str, rows_of(tmp_path / name[2:], *columns))))
    assert len(rows[0]) == 3
    assert rows[0] == rows[1]


def test_answers_of_a_websocket_in_a_har_are_measured_with_their_times(tmp_path: Path) -> None:
    done = {"id": "r", "model": "gpt-5", "usage": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}
    messages = [
        {"type": "response.create", "model": "gpt-5", "input": "hi"},
        {"type": "response.created", "response": {"id": "r", "model": "gpt-5"}},
        {"type": "ping"},
        {"type": "response.output_text.delta", "item_id": "i", "output_index": 0, "content_index": 0, "delta": "Hello"},
        {"type": "ping"},
        {"type": "response.completed", "response": {**done, "status": "completed", "output": []}},
    ]  # fmt: skip
    silent = socket_entry(())
    (tmp_path / "a.har").write_text(har(socket_entry([json.dumps(message) for message in messages]), silent))
    done_ = CliRunner().invoke(
        cli, ["open", "--no-dashboard", "--data", str(tmp_path / "data"), str(tmp_path / "a.har")]
    )
    assert done_.exit_code == 0, done_.output
    assert "1 WebSockets without messages: the file does not have their answers" in done_.output
    query = "SELECT outcome, output_tokens, round(ttft_ns / 1e9), transport FROM streams WHERE operation <> 'websocket'"
    assert tables(tmp_path / "data").query(query).rows() == [("ok", 2, 3.0, "websocket")]


def test_files_without_requests_and_a_folder_in_use_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.har").write_text(har({"request": {"method": "GET", "url": "http://a/x.png"}}))
    (tmp_path / "y.har").write_text("not a HAR")
    found = refusal("--data", str(tmp_path / "data"), str(tmp_path / "x.har"), str(tmp_path / "y.har"))
    assert "0 requests read, 1 left out" in found
    assert "y.har: neither a HAR file with entries, nor packets, nor a recorded response" in found
    assert "no request to a model was found in the files" in found
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    assert "no request to a model" in refusal(str(tmp_path / "x.har"))
    assert list((tmp_path / "home" / "streamgauge" / "runs").iterdir()) == []
    (tmp_path / "x.txt").write_text("hello")
    (tmp_path / "x.json").write_text('{"a": 1}')
    found = refusal("--data", str(tmp_path / "data"), str(tmp_path / "x.txt"), str(tmp_path / "x.json"))
    assert found.count("nor a recorded response") == 2
    (tmp_path / "data" / "catalog.sqlite").touch()
    assert "Pass another folder" in refusal("--data", str(tmp_path / "data"), str(tmp_path / "x.har"))


@pytest.mark.slow
def test_memory_does_not_grow_with_the_content_of_a_compressed_file(tmp_path: Path) -> None:
    body = f"data: {json.dumps({'choices': [{'delta': {'content': 'a' * 5_000_000}}]})}\n\n" + BODY
    one = json.dumps(entry(content={"size": len(body), "text": body})).encode()
    with gzip.open(tmp_path / "bomb.har.gz", "wb") as file:
        file.write(b'{"log": {"entries": [' + one)
        for _ in range(59):
            file.write(b"," + one)
        file.write(b"]}}")
    assert (tmp_path / "bomb.har.gz").stat().st_size < 10**6
    command = [
        sys.executable,
        "-m",
        "streamgauge",
        "open",
        "--no-dashboard",
        "--data",
        str(tmp_path / "data"),
    ]
    process = subprocess.Popen([*command, str(tmp_path / "bomb.har.gz")])
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    assert tables(tmp_path / "data").query("SELECT count(*) FROM streams WHERE outcome = 'ok'").rows() == [
        (60,)
    ]
    assert usage.ru_maxrss < 600 * 1024  # KiB, of 300 MB of content
