"""Run real clients on streams: the SDKs on any bodies, and agents on the streams of `tests.analytics.strict_streams`.

`python -m tests.strict_clients.driver KIND NODE_MODULES` runs the agent KIND, `codex` or `claude`. It writes one JSON object:
client → stream → its answer, equal for streams that the client reads as the API's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from streamgauge.analytics.schema.strict_clients import MESSAGES, RESPONSES
from tests.analytics.strict_streams import STREAMS, Stream

Answer = dict[str, Any]
Body = tuple[str, str, bytes]
"""(dialect, content type, body)."""
TIMEOUT_S = 300
AGENTS_AT_ONCE = 4
HERE = Path(__file__).parent


def sdk_answers(bodies: Sequence[Body], modules: Path | None = None) -> list[dict[str, list[Answer]]]:
    """For each body, client → its answers: of the SDKs for Python, or of those in `modules` for Node."""
    script = str(HERE / "clients.mjs")
    command = (
        [sys.executable, "-m", "tests.strict_clients.sdks"]
        if modules is None
        else ["node", script, str(modules)]
    )
    given = [
        json.dumps({"dialect": dialect, "content_type": kind, "body": body.decode("latin-1")})
        for dialect, kind, body in bodies
    ]
    done = subprocess.run(
        command, input="\n".join(given) + "\n", cwd=HERE.parent.parent, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, check=True,
    )  # fmt: skip
    return [json.loads(line) for line in done.stdout.splitlines()]


class Handler(BaseHTTPRequestHandler):
    """Answers a request below `/N/CLIENT` with stream N. A second request, after a tool call, has the API's own text."""

    protocol_version = "HTTP/1.1"
    requests: Counter[tuple[str, str]]

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.send_response(404)
        self.send_header("content-length", "0")
        self.end_headers()

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        _, number, client, *_ = self.path.split("/")
        stream = STREAMS[int(number)]
        if self.requests[number, client] and stream.is_tool_call:
            stream = base_of(stream, is_tool_call=False)
        self.requests[number, client] += 1
        self.send_response(200)
        self.send_header("content-type", stream.content_type)
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(stream.body)
        self.close_connection = True


def base_of(stream: Stream, *, is_tool_call: bool) -> Stream:
    """The stream of the same dialect as the API sends it."""
    return next(s for s in STREAMS if s.dialect == stream.dialect and s.is_tool_call == is_tool_call)


@contextmanager
def serving(requests: Counter[tuple[str, str]]) -> Iterator[str]:
    handler = type("Counting", (Handler,), {"requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _agent(argv: list[str], home: str, **environment: str) -> subprocess.CompletedProcess[str]:
    own = {"HOME": home, "CI": "1", **environment}
    return subprocess.run(
        argv, env={**os.environ, **own}, cwd=home, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip


def run_codex(url: str, modules: Path) -> Answer:
    provider = (
        f'{{name="x",base_url="{url}/v1",env_key="KEY",wire_api="responses",stream_max_retries=0,request_max_retries=0,'
        "supports_websockets=false}"
    )
    settings = ('model="m"', 'model_provider="x"', f"model_providers.x={provider}")
    options = [part for setting in settings for part in ("-c", setting)]
    with tempfile.TemporaryDirectory() as home:
        command = [
            str(modules / ".bin" / "codex"),
            "exec",
            "--json",
            "--skip-git-repo-check",
            *options,
            "hi",
        ]
        done = _agent(command, home, CODEX_HOME=home, KEY="k")
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    items = [event["item"] for event in events if event["type"] == "item.completed"]
    texts = [item["text"] for item in items if item["type"] == "agent_message"]
    usage = [event["usage"] for event in events if event["type"] == "turn.completed"]
    return {"exit": done.returncode, "texts": texts, "usage": usage}


def run_claude(url: str, modules: Path) -> Answer:
    command = [str(modules / ".bin" / "claude"), "-p", "--output-format", "json", "--model", "claude-sonnet-4-5", "hi"]  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        done = _agent(
            command, home, ANTHROPIC_BASE_URL=url, ANTHROPIC_API_KEY="sk-ant-1", CLAUDE_CODE_MAX_RETRIES="0",
            CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        )  # fmt: skip
    result = json.loads(done.stdout)
    usage = result["usage"]
    return {
        "exit": done.returncode, "error": result["is_error"], "text": result["result"],
        "usage": [usage["input_tokens"], usage["output_tokens"]],
    }  # fmt: skip


AGENTS: dict[str, tuple[str, str, Callable[[str, Path], Answer]]] = {
    "codex": (RESPONSES, "codex", run_codex),
    "claude": (MESSAGES, "claude-code", run_claude),
}


def main(kind: str, modules: Path) -> dict[str, dict[str, Answer]]:
    found: dict[str, dict[str, Answer]] = defaultdict(dict)
    requests = Counter[tuple[str, str]]()
    dialect, client, run_agent = AGENTS[kind]
    numbers = [n for n, stream in enumerate(STREAMS) if stream.dialect == dialect]
    with serving(requests) as url, ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
        runs = pool.map(lambda n: run_agent(f"{url}/{n}/{client}", modules), numbers)
        for n, seen in zip(numbers, runs, strict=True):
            found[client][STREAMS[n].name] = seen | {"requests": requests[str(n), client]}
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], Path(sys.argv[2]))))
