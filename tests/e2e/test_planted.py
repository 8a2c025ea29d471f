"""Requests, responses and messages of WebSockets contain secrets in every field; no output of Streamgauge may contain them.

The tests search: all tables of the store and its catalog (kept records also decoded); the files of the data folder, the
catalog and the Parquet files; spans, metrics and their OTLP bytes; text and JSON logs, including those of a killed
analytics and of invalid records; command lines; /metrics; `status`; every dashboard page; with Kafka the bytes of the
topic, encoded and decoded; with PostgreSQL all tables, a dump of the catalog, PostgreSQL's files, and the Parquet files.
Only the record log is unredacted: its mode is 0600, and it is deleted after it was read, which a test checks.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import duckdb
import httpx
import pytest
from websockets.sync.client import connect
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Message, TextMessage
from wsproto.events import Request as Upgrade
from wsproto.extensions import PerMessageDeflate

from streamgauge.analytics.query.query_pool import QueryPool
from streamgauge.analytics.storage.database import attach, new_database
from streamgauge.analytics.storage.location import locate
from streamgauge.ingest.record_log.kafka_reader import KafkaReader
from streamgauge.ingest.records import Alive, AnyRecord, pack, unpack
from tests.dashboard.app_test import VIEWS
from tests.dashboard.app_test import open_page as page
from tests.deadline import DEADLINE_S, until
from tests.e2e.running import Up, answers, up
from tests.postgres import Postgres, find_binaries
from tests.tables import tables

MARK = "plantedzwiebel"
"""Part of every secret, in one of `FORMS`."""
TOKEN_ID = 918273645
FORMS = [
    MARK.encode(),
    MARK[::-1].encode(),
    base64.b64encode(MARK.encode())[:16],
    MARK.encode("utf-16-le"),
    str(TOKEN_ID).encode(),
]


def secret(place: str) -> str:
    return f"{place} {MARK} 'quoted' {MARK}-é"


def event(**value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chat(finish: str | None = None, **delta: Any) -> bytes:
    token = {"token": MARK, "logprob": -0.1, "bytes": list(MARK.encode()), "top_logprobs": [{"token": MARK}]}
    choice = {
        "index": 0, "delta": delta, "finish_reason": finish, "token_ids": [TOKEN_ID],
        "logprobs": {"content": [token] if delta else []},
    }  # fmt: skip
    return event(
        id="c-1", object="chat.completion.chunk", model="m-1", choices=[choice], note=secret("unknown key")
    )


def call(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "call_1", "function": {"name": "f", "arguments": arguments}}]}


CHAT = [
    f": {secret('comment')}\nid: {MARK}\nretry: 10\n\n".encode(),
    chat(role="assistant"),
    chat(reasoning_content=secret("reasoning")),
    chat(content=secret("text")[:9]),
    chat(content=secret("text")[9:]),
    chat(**call('{"secret": "' + MARK)),
    chat(**call(MARK + '"}')),
    chat(refusal=secret("refusal")),
    chat("stop"),
    event(id="c-1", choices=[], usage={"prompt_tokens": 3, "completion_tokens": 9, "note": secret("usage")}),
    f"{secret('stray line')}\n".encode(),
    b"data: [DONE]\n\n",
]
ANTHROPIC_EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"id": "m", "model": "m-2", "usage": {"input_tokens": 4}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "thinking", "thinking": "", "signature": MARK}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": secret("thinking")}},
    {"type": "content_block_start", "index": 1, "content_block": {"type": "tool_use", "name": "f", "input": {MARK: MARK}}},
    {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": secret("text")}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 8}},
    {"type": "message_stop"},
]  # fmt: skip
ANTHROPIC = b"".join(
    f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in ANTHROPIC_EVENTS
)
OLLAMA = b"".join(
    json.dumps(one).encode() + b"\n"
    for one in [
        {"model": "o", "created_at": "2026", "message": {"role": "assistant", "content": secret("text")}, "done": False},
        {"model": "o", "created_at": "2026", "message": {"tool_calls": [{"function": {"arguments": {MARK: [MARK]}}}]}},
        {"model": "o", "created_at": "2026", "done": True, "done_reason": "stop", "eval_count": 3, "context": [TOKEN_ID]},
    ]
)  # fmt: skip
ERROR = {
    "error": {
        "message": secret("message"),
        "type": "bad_request",
        "param": MARK,
        "code": 7,
        "metadata": {MARK: MARK},
    }
}
CHAT_PATH = "/v1/chat/completions"
PROSE = f"{MARK} is no name"
KEY = f"sk-{MARK}-0123456789"
NAMES_PATH = (
    f"/v1;key={MARK}/{MARK}%20prose/{KEY}/%2573k-{MARK}-0123456789/chat/completions%3Fkey%3D{MARK}%2523{MARK}"
)
"""Secrets in parameters, segments, an encoded query and an encoded fragment."""
SSE = "text/event-stream"
WHOLE = {"choices": [{"message": {"content": MARK}}]}
TOOL = {"index": 0, "id": KEY, "function": {"name": PROSE, "arguments": "{}"}}
NAMED = [
    event(
        id=KEY, object="chat.completion.chunk", model=PROSE, choices=[{"index": 0, "delta": {"content": "a"}}]
    ),
    event(id=PROSE, model=KEY, choices=[{"index": 0, "delta": {"tool_calls": [TOOL]}}]),
    event(choices=[{"index": 0, "delta": {}, "finish_reason": PROSE}], timings={PROSE: 1, "provider": PROSE}),
]
CASES: dict[str, tuple[str, int, str, list[bytes]]] = {
    # name → path, status, content type, reads
    "chat": (CHAT_PATH, 200, SSE, CHAT),
    "names": (NAMES_PATH, 200, SSE, [f"event: {PROSE}\n".encode() + named for named in NAMED]),
    "error names": (NAMES_PATH, 400, "application/json", [json.dumps({"error": {"type": PROSE, "code": KEY}}).encode()]),
    "error code": (CHAT_PATH, 200, SSE, [event(error={"code": PROSE, "message": MARK})]),
    "gzip": (CHAT_PATH, 200, SSE, [gzip.compress(b"".join(CHAT))]),
    "messages": ("/v1/messages", 200, SSE, [ANTHROPIC[i : i + 37] for i in range(0, len(ANTHROPIC), 37)]),
    "ollama": ("/api/chat", 200, "application/x-ndjson", [OLLAMA]),
    "body": (CHAT_PATH, 200, "application/json", [json.dumps(WHOLE).encode()]),
    "inband": (CHAT_PATH, 200, SSE, [chat(content=MARK), event(**ERROR)]),
    "cut": (CHAT_PATH, 200, SSE, [chat(content=MARK), b'data: {"choices":[{"delta":{"content":"' + MARK.encode()]),
    "error": (CHAT_PATH, 400, "application/json", [json.dumps(ERROR).encode()]),
    "page": (CHAT_PATH, 502, "text/html", [f"<html><title>{MARK}</title>{secret('page')}</html>".encode()]),
    "text": ("/v1/streams/x", 200, "text/plain", [secret("plain text").encode()]),
    "malformed": (CHAT_PATH, 200, SSE, [b'data: {"content": ' + MARK.encode() + b"}\n\n", b"data: " + MARK.encode() + b"\n\n"]),
}  # fmt: skip
RESPONSE = {
    "id": "r-1",
    "object": "response",
    "model": PROSE,
    "metadata": {MARK: MARK},
    "instructions": secret("instructions"),
}
FAILURE = {"type": PROSE, "code": KEY, "message": secret("message"), "param": MARK}
LARGE = ("chat", "messages")
SOCKETS: dict[str, list[dict[str, Any]]] = {
    # path → the server's messages of one answer
    "/v1/responses": [
        {"type": "response.created", "response": RESPONSE},
        {"type": "response.output_text.delta", "item_id": PROSE, "output_index": 0, "content_index": 0, "delta": secret("text")},
        {"type": PROSE, MARK: secret("unknown key"), "response_id": PROSE},
        {"type": "response.function_call_arguments.delta", "item_id": KEY, "output_index": 1, "delta": MARK},
        {"type": "response.failed", "response": RESPONSE | {"status": "failed", "error": FAILURE}},
    ],
    "/v1/realtime": [
        {"type": "session.updated", "session": RESPONSE},
        {"type": "conversation.item.added", "item": {"id": PROSE, "role": MARK, "content": [{"transcript": secret("speech")}]}},
        {"type": "response.created", "response": RESPONSE},
        {"type": "rate_limits.updated", "rate_limits": [{"name": PROSE, "limit": 1, "remaining": MARK}]},
        {"type": "response.output_audio_transcript.delta", "response_id": "r-1", "item_id": PROSE, "delta": secret("transcript")},
        {"type": "response.output_audio.delta", "response_id": "r-1", "delta": base64.b64encode(MARK.encode() * 9).decode()},
        {"type": "response.done", "response": RESPONSE | {"status": "failed", "status_details": {"error": FAILURE}}},
    ],
    "/v1/socket": [{"kind": "unknown", "text": secret("text"), MARK: MARK}, {"error": FAILURE}],
}  # fmt: skip
WORDS = {
    place: [f"{MARK}-{place}-{number}" for number in range(10, 60)]
    for place in ("prompt", "definition", "argument", "result")
}
"""200 words in prompts, definitions of tools, arguments and results. Each has the form of a name."""


def words(place: str) -> str:
    return " ".join(WORDS[place])


CALLED = {"name": "shell", "arguments": json.dumps({word: word for word in WORDS["argument"]})}
SCHEMA = {"type": "object", "properties": {word: {"description": word} for word in WORDS["definition"]}}
NO_JSON = (secret("message without JSON"), MARK.encode() * 9)
COMPRESSIONS: tuple[Any, ...] = (None, "deflate")
SOCKET_ROWS = 2 * len(SOCKETS) * len(COMPRESSIONS)
"""A row for each WebSocket and its answer."""
ROWS = len(CASES) + SOCKET_ROWS
REQUEST: dict[str, Any] = {
    "model": "m-1",
    "stream": True,
    "messages": [
        {"role": "user", "content": secret("prompt"), "name": MARK},
        {
            "role": "system",
            "content": [
                {
                    "type": "text",
                    "text": words("prompt"),
                    "cache_control": {"type": "ephemeral", "ttl": PROSE},
                }
            ],
        },
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": KEY, "type": "function", "function": CALLED}],
        },
        {"role": "tool", "tool_call_id": KEY, "content": words("result")},
        {"role": "assistant", "content": [{"type": "tool_use", "id": PROSE, "name": PROSE, "input": CALLED}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": PROSE, "content": words("result")}],
        },
    ],
    "prompt": secret("prompt"),
    "system": secret("system"),
    "input": [secret("input")],
    "metadata": {"user_id": MARK, "session_id": f"session-{MARK}", MARK: MARK},
    "user": MARK,
    "stop": [MARK],
    "tools": [
        {
            "type": "function",
            "function": {"name": PROSE, "description": secret("tool"), "parameters": SCHEMA},
        },
        {"name": "shell", "description": words("definition"), "input_schema": SCHEMA},
    ],
    "tool_choice": secret("choice"),
    "prompt_cache_key": MARK,
    "temperature": 0.5,
}
HEADERS = {
    "authorization": f"Bearer sk-{MARK}",
    "x-api-key": f"sk-{MARK}",
    "api-key": MARK,
    "x-goog-api-key": MARK,
    "cookie": f"session={MARK}",
    "proxy-authorization": MARK,
    "x-custom-secret": MARK,
    "x-team": PROSE,
    "openai-organization": MARK,
}


@dataclass
class Upstream:
    """Responds with secrets, and receives OTLP."""

    url: str = ""
    otlp: list[bytes] = field(default_factory=list)
    keys_seen: set[str] = field(default_factory=set)
    bodies: list[bytes] = field(default_factory=list)


@contextmanager
def upstream() -> Iterator[Upstream]:
    found = Upstream()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            case = self.headers.get("x-case")
            if case is None:
                found.otlp.append(gzip.decompress(body) if self.headers.get("content-encoding") else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()
                return
            found.bodies.append(body)
            found.keys_seen.add(str(self.headers.get("authorization")))
            _, status, kind, reads = CASES.get(case, ("", 200, "application/json", [b"{}"]))
            self.send_response(status)
            self.send_header("content-type", kind)
            if case == "gzip":
                self.send_header("content-encoding", "gzip")
            for name in ("set-cookie", "x-secret", "www-authenticate"):
                self.send_header(name, MARK)
            for name in ("x-request-id", "x-worker-id") if case in CASES else ():  # not in the noise
                self.send_header(name, PROSE)
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            for read in reads:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(read), read))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")

        def do_GET(self) -> None:
            """A WebSocket. A message in JSON gets the messages of its path, another one comes back."""
            protocol = WSConnection(ConnectionType.SERVER)
            sent_headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
            protocol.initiate_upgrade_connection(sent_headers, self.path)
            assert [type(one) for one in protocol.events()] == [Upgrade]
            headers = [(b"x-secret", MARK.encode()), (b"x-request-id", PROSE.encode())]
            accepted = AcceptConnection(extensions=[PerMessageDeflate()], extra_headers=headers)
            self.wfile.write(protocol.send(accepted))
            self.close_connection = True
            while data := self.rfile.read1(65_536):
                protocol.receive_data(data)
                for one in protocol.events():
                    if isinstance(one, CloseConnection):
                        self.wfile.write(protocol.send(one.response()))
                        return
                    assert isinstance(one, Message)
                    replies = [one]
                    if isinstance(one.data, str) and one.data.startswith("{"):
                        events = SOCKETS[self.path.partition("?")[0]]
                        replies = [TextMessage(json.dumps(value)) for value in events]
                    for reply in replies:
                        self.wfile.write(protocol.send(reply))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield found
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


LABELS = (
    "--label",
    "team=header:x-team",
    "--label",
    "shown=header:x-team:plain",
    "--label",
    "user=body:user",
)


def assert_labels(running: Up) -> None:
    """Each request has its labels, and equal values have equal hashes."""
    found = "SELECT DISTINCT labels FROM streams WHERE transport = 'http'"
    [labels] = [row["labels"] for row in running.sql(found)]
    assert labels.keys() == {"team", "shown", "user"}
    assert labels["shown"].startswith("hashed:")


def plant(tap: str) -> None:
    """The session is in the request's body, every second time also in a header."""
    for number, (case, (path, *_)) in enumerate(CASES.items()):
        session = {"x-claude-code-session-id": f"conv-{MARK}"} if number % 2 else {}
        named: dict[str, Any] = {"model": KEY if "error" in case else PROSE} if "names" in case else {}
        if case in LARGE:  # the tap reads its prompt and condenses it
            named |= {
                "messages": [*REQUEST["messages"], {"role": "user", "content": secret("large") * 2_000}]
            }
        answer = httpx.post(
            f"{tap}{path}?key={MARK}",
            json=REQUEST | named,
            headers={**HEADERS, **session, "x-case": case, "x-request-id": PROSE},
        )
        assert MARK in answer.text or case == "cut"
    for (path, events), compression in itertools.product(SOCKETS.items(), COMPRESSIONS):
        with connect(
            f"{tap.replace('http', 'ws')}{path}?key={MARK}", compression=compression,
            additional_headers={**HEADERS, "x-request-id": PROSE},
        ) as connection:  # fmt: skip
            assert bool(connection.protocol.extensions) is (compression is not None)
            asked = {
                "type": "response.create",
                "event_id": PROSE,
                "response": {"instructions": secret("instructions")},
            }
            connection.send(json.dumps(REQUEST | asked))
            assert [json.loads(connection.recv()) for _ in events] == events
            for text in NO_JSON:
                connection.send(text)
                assert connection.recv() == text


MALFORMED = (
    f"{KEY} / HTTP/1.1\r\n\r\n",
    f"GET /{KEY} prose HTTP/1.1\r\n\r\n",
    f"GET / HTTP/1.1\r\nHost: {MARK}\r\nHost: {MARK}\r\n\r\n",
    f"GET / HTTP/1.1\r\n{MARK} name: x\r\n\r\n",
    f"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: {MARK}\r\n\r\n",
    f"{KEY}\x00\r\n\r\n",
)


def send_malformed(tap: str) -> None:
    """Send requests that the tap refuses, with secrets in each part of the head."""
    host, port = tap.removeprefix("http://").rsplit(":", 1)
    for head in MALFORMED:
        with socket.create_connection((host, int(port)), timeout=DEADLINE_S) as connection:
            connection.sendall(head.encode())
            while connection.recv(4096):
                pass


class Searched:
    """Searched bytes by source, and the secrets found."""

    def __init__(self, forms: Sequence[bytes] = FORMS) -> None:
        self._forms = forms
        self.sources: dict[str, int] = {}
        self.found: list[str] = []

    def search(self, source: str, content: bytes | str) -> None:
        data = content.encode("utf-8", "replace") if isinstance(content, str) else content
        self.sources[source] = self.sources.get(source, 0) + len(data)
        lower = data.lower()
        for form in self._forms:
            at = max(data.find(form), lower.find(form))
            if at >= 0:
                self.found.append(f"{source}: {data[max(0, at - 80) : at + 40]!r}")


def search_tables(searched: Searched, store: QueryPool) -> None:
    """Search all rows of the tables and views, and of the catalog's tables."""
    listed = store.query(
        "SELECT database_name, schema_name, table_name FROM duckdb_tables() UNION ALL "
        "SELECT database_name, schema_name, view_name FROM duckdb_views() "
        "WHERE database_name IN ('lake', 'memory') AND NOT internal"
    )
    for database, schema, table in listed.rows():
        source = f"table {schema}.{table}" if database == "lake" else f"catalog {table}"
        found = store.query(f'FROM "{database}"."{schema}"."{table}"', timeout_s=DEADLINE_S)
        for row in found.rows():
            for cell in row:
                searched.search(source, repr(cell))
                if isinstance(cell, bytes):
                    searched.search(f"unpacked, {source}", repr(unpack(cell)))


def search_running(searched: Searched, running: Up, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (running.admin, str(running.part("analyze")["metrics"]).removesuffix("/metrics")):
        with urllib.request.urlopen(f"{address}/metrics", timeout=DEADLINE_S) as answer:
            searched.search("/metrics", answer.read())
    for form in ("table", "json"):
        status = subprocess.run(
            [sys.executable, "-m", "streamgauge", "status", "--data", running.data, "--format", form],
            capture_output=True,
        )
        searched.search("status", status.stdout + status.stderr)
    pids = [running.process.pid, *(running.part(name)["pid"] for name in ("tap", "analyze"))]
    for pid in pids:
        searched.search("command lines", Path(f"/proc/{pid}/cmdline").read_bytes())
    for file in (running.data / "run").glob("*.json"):
        searched.search("run/*.json", file.read_bytes())
    stream = running.sql("SELECT stream_id FROM streams WHERE outcome = 'inband_error'")[0]["stream_id"]
    for name in VIEWS:
        query = {"stream": stream} if name in ("stream", "traces") else {}
        app = page(running.data, monkeypatch, name, **query)
        assert not app.exception, name
        searched.search("dashboard pages", repr(app.main) + repr(app.sidebar))


def search_exports(searched: Searched, running: Up) -> None:
    folder = running.data.parent
    for form in ("mooncake", "weka"):
        done = running.run("export", "--trace", form, str(folder / form))
        assert done.returncode == 0, done.stderr
        for file in (folder / form, *(folder / form).rglob("*")):
            if file.is_file():
                searched.search(f"trace {form}", file.read_bytes())
    done = running.run("export", "--duckdb", str(folder / "export.duckdb"))
    assert done.returncode == 0, done.stderr
    with duckdb.connect(str(folder / "export.duckdb"), read_only=True) as exported:
        named = "SELECT schema_name, table_name FROM duckdb_tables()"
        for schema, table in exported.execute(named).fetchall():
            rows = exported.execute(f'FROM "{schema}"."{table}"').to_arrow_table()
            searched.search("exported tables", repr(rows.to_pylist()))


def analytics_answers(running: Up) -> bool | None:
    try:
        return answers(str(running.part("analyze")["metrics"]))
    except (OSError, ValueError):
        return None


def search_folder(searched: Searched, data: Path, *without: str) -> None:
    """Search the files, except those in `log` and in the folders `without`."""
    for file in sorted(data.rglob("*")):
        if file.is_file() and file.relative_to(data).parts[0] not in without:
            assert stat.S_IMODE(file.stat().st_mode) & 0o077 == 0 or file.suffix == ".lock", file
            if file.relative_to(data).parts[0] != "log" and file.stat().st_size:
                searched.search(f"file {file.relative_to(data)}", file.read_bytes())


@pytest.fixture
def searched() -> Searched:
    return Searched()


def otlp_environment(to: Upstream) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_ENDPOINT": to.url,
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "200",
        "OTEL_METRIC_EXPORT_INTERVAL": "500",
    }


def test_planted_secrets_are_not_stored_or_logged(
    tmp_path: Path, searched: Searched, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    with upstream() as server:
        with up(
            f"gw={server.url}",
            data,
            "--log-format",
            "json",
            *LABELS,
            dashboard=False,
            **otlp_environment(server),
        ) as running:
            plant(running.tap)
            sessions = running.rows(ROWS)
            assert len({row["session_id"] for row in sessions} - {None, "r-1"}) == 2
            assert_labels(running)
            send_malformed(running.tap)
            rows = running.rows(ROWS + len(MALFORMED))
            assert {row["text_chars"] for row in rows} >= {len(secret("text"))}
            assert {row["outcome"] for row in rows} >= {
                "ok",
                "http_error",
                "inband_error",
                "truncated",
                "malformed",
            }
            os.kill(running.part("analyze")["pid"], signal.SIGKILL)
            running.rows(ROWS + len(MALFORMED))
            until(lambda: analytics_answers(running), "analytics to be back")
            search_running(searched, running, monkeypatch)
            search_exports(searched, running)
            until(lambda: any(b"gen_ai" in one for one in server.otlp), "spans over OTLP")
            assert running.stop() == 0
        assert server.keys_seen == {HEADERS["authorization"]}  # the upstream received the key
        received = b" ".join(server.bodies).decode()
        assert [word for place in WORDS.values() for word in place if word not in received] == []
        for body in server.otlp:
            searched.search("OTLP", body)
    searched.search("log as JSON lines", (tmp_path / "data.log").read_bytes())
    search_tables(searched, tables(data))
    search_folder(searched, data)
    assert searched.found == []
    assert {
        "OTLP",
        "dashboard pages",
        "trace mooncake",
        "trace weka",
        "exported tables",
        "table main.prompt_segments",
        "table main.prompt_tools",
        "table main.spans",
        "table main.events",
        "/metrics",
        "status",
    } <= searched.sources.keys()
    assert all(searched.sources.values())


@pytest.mark.kafka
def test_planted_secrets_are_not_in_kafka(tmp_path: Path, searched: Searched, kafka_broker: str) -> None:
    data, topic = tmp_path / "data", f"planted-{tmp_path.name}"
    with (
        upstream() as server,
        up(f"gw={server.url}", data, "--kafka", kafka_broker, "--kafka-topic", topic, *LABELS) as running,
    ):
        plant(running.tap)
        rows = running.rows(ROWS)
        assert {row["text_chars"] for row in rows} >= {len(secret("text"))}
        assert_labels(running)
        poison(kafka_broker, topic)
        until(lambda: running.sql("SELECT count(*) AS n FROM dead_letters HAVING n >= 3"), "dead letters")
        searched.search("run/ship.json", json.dumps(running.part("ship")))
        assert running.stop() == 0
    reader = KafkaReader(kafka_broker, topic, {})
    streams: set[str] = set()
    try:
        while len(streams) < ROWS:
            for entry in reader.poll(5.0):
                records, bad = unpack(entry.payload)
                if not bad:  # ours
                    searched.search("topic, as it is", entry.payload)
                    searched.search("topic, unpacked", repr(records))
                    streams |= {record.stream for record in records if not isinstance(record, Alive)}
    finally:
        reader.close()
    searched.search("log as text", (tmp_path / "data.log").read_bytes())
    search_tables(searched, tables(data))
    search_folder(searched, data)
    assert searched.found == []
    assert {
        "topic, as it is",
        "topic, unpacked",
        "log as text",
        "table main.dead_letters",
    } <= searched.sources.keys()


@pytest.mark.kafka
def test_planted_secrets_are_not_in_the_lake(
    tmp_path: Path, searched: Searched, kafka_broker: str, postgres: Postgres
) -> None:
    dsn = postgres.new_database()
    store, data = f"postgres:{dsn}", tmp_path / "data"
    flags = (
        "--kafka",
        kafka_broker,
        "--kafka-topic",
        f"planted-{tmp_path.name}",
        "--lake-path",
        str(tmp_path / "lake"),
    )
    with (
        upstream() as server,
        up(f"gw={server.url}", data, *flags, STREAMGAUGE_STORE=store) as running,
    ):
        plant(running.tap)
        running.rows(ROWS)
        search_catalog(searched, postgres, dsn)  # small commits are in the catalog itself
        assert running.stop() == 0
    search_tables(searched, tables(data, store))  # as rows of the catalog
    with new_database() as connection:
        attach(connection, locate(store, data), read_only=False)
        connection.execute("CALL ducklake_flush_inlined_data('lake')")
        search_tables(searched, tables(data, store))  # as files
        files = sorted((tmp_path / "lake").rglob("*.parquet"))
        assert {"streams", "events", "spans"} <= {file.parent.name for file in files}
        for file in files:
            searched.search("bytes of Parquet", file.read_bytes())
            searched.search(
                "rows of Parquet",
                repr(connection.execute("FROM read_parquet(?)", [str(file)]).to_arrow_table()),
            )
    search_catalog(searched, postgres, dsn)
    searched.search("log as text", (tmp_path / "data.log").read_bytes())
    search_folder(searched, data)
    assert searched.found == []
    assert {
        "table main.events",
        "catalog",
        "PostgreSQL's files",
        "rows of Parquet",
    } <= searched.sources.keys()


def search_catalog(searched: Searched, postgres: Postgres, dsn: str) -> None:
    """Search a dump of the catalog with decoded binary values, and PostgreSQL's files."""
    dump = subprocess.run(
        [find_binaries() / "pg_dump", "--inserts", dsn], capture_output=True, check=True, cwd="/"
    ).stdout
    assert b"INSERT INTO public.ducklake_inlined_data" in dump
    searched.search("catalog", dump)
    for packed in re.findall(rb"\\x([0-9a-f]+)", dump):
        searched.search("catalog, binary", bytes.fromhex(packed.decode()))
    for part in ("base", "pg_wal"):
        for file in (postgres.folder / "cluster" / part).rglob("*"):
            if file.is_file():
                searched.search("PostgreSQL's files", file.read_bytes())


def test_record_log_is_deleted_after_it_was_read(tmp_path: Path, searched: Searched) -> None:
    data = tmp_path / "data"
    with (
        upstream() as server,
        up(f"gw={server.url}", data, "--record-log-max-bytes", str(16 * 2**20)) as running,
    ):
        plant(running.tap)
        running.rows(ROWS)
        raw = [file for file in segments(data) if MARK in records_in(file)]
        assert raw, "the segments contain the secrets"
        numbers = itertools.count()

        def segments_deleted() -> bool:
            noise = base64.b64encode(os.urandom(48_000)).decode()
            request = {"model": noise, "n": next(numbers)}
            httpx.post(f"{running.tap}{CHAT_PATH}", json=request, headers={"x-case": "noise"})
            return not any(file.exists() for file in raw)

        until(segments_deleted, "deletion of the segments")
        assert running.stop() == 0
    remaining = segments(data)
    assert remaining
    for file in remaining:
        searched.search("remaining records", records_in(file))
        searched.search("remaining bytes", file.read_bytes())
    assert searched.found == []


def segments(data: Path) -> list[Path]:
    return sorted((data / "log").rglob("*.sqlite"))


def records_in(segment: Path) -> str:
    return repr(records_of(segment))


def records_of(segment: Path) -> list[AnyRecord]:
    """The decoded records of a segment."""
    with contextlib.closing(sqlite3.connect(f"file:{segment}?mode=ro", uri=True)) as connection:
        payloads = connection.execute("SELECT payload FROM entry").fetchall()
    return [record for (payload,) in payloads for record in unpack(payload)[0]]


def poison(broker: str, topic: str) -> None:
    """Send three kinds of invalid records with secrets."""
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=broker)
    for value in (
        MARK.encode(),
        b"\x01" + MARK.encode(),
        pack([], compress=False)[:1] + b"\x91\xae" + MARK.encode(),
    ):
        producer.send(topic, value)
    producer.flush()
    producer.close()
