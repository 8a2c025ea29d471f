"""Run real clients on the streams of `tests.analytics.strict_streams`: `python -m tests.strict_clients.driver KIND [NODE_MODULES]`.

KIND is `python`, `node`, `codex` or `claude`. Writes one JSON object: client → stream → its answers, equal for streams that the
client reads as the API's own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from streamgauge.analytics.schema.strict_clients import CHAT, MESSAGES, RESPONSES
from tests.analytics.strict_streams import STREAMS, Stream

Answer = dict[str, Any]
PROMPT: Any = [{"role": "user", "content": "hi"}]
TIMEOUT_S = 300
AGENTS_AT_ONCE = 4


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


def answer(text: str | None, finish: Any, usage: Any, calls: list[Any]) -> Answer:
    return {"text": text or "", "finish": finish, "usage": usage, "calls": calls}


@cache
def openai_client() -> Any:
    import openai

    return openai.OpenAI(api_key="k", max_retries=0)


@cache
def anthropic_client() -> Any:
    import anthropic

    return anthropic.Anthropic(api_key="k", max_retries=0)


def python_chat(url: str) -> Answer:
    client = openai_client().with_options(base_url=f"{url}/v1")
    with client.chat.completions.stream(
        model="m", messages=PROMPT, stream_options={"include_usage": True}
    ) as stream:
        final: Any = stream.get_final_completion()
    (choice,), usage = final.choices, final.usage
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    counts = usage and [usage.prompt_tokens, usage.completion_tokens]
    return answer(choice.message.content, choice.finish_reason, counts, calls)


def python_responses(url: str) -> Answer:
    client = openai_client().with_options(base_url=f"{url}/v1")
    with client.responses.stream(model="m", input="hi") as stream:
        final: Any = stream.get_final_response()
    calls = [(item.name, item.arguments) for item in final.output if item.type == "function_call"]
    counts = final.usage and [final.usage.input_tokens, final.usage.output_tokens]
    return answer(final.output_text, final.status, counts, calls)


def python_messages(url: str) -> Answer:
    client = anthropic_client().with_options(base_url=url)
    with client.messages.stream(model="m", max_tokens=9, messages=PROMPT) as stream:
        final: Any = stream.get_final_message()
    calls = [
        (block.name, json.dumps(block.input, separators=(",", ":")))
        for block in final.content
        if block.type == "tool_use"
    ]
    text = "".join(block.text for block in final.content if block.type == "text")
    return answer(text, final.stop_reason, [final.usage.input_tokens, final.usage.output_tokens], calls)


PYTHON: dict[str, tuple[str, Callable[[str], Answer]]] = {
    CHAT: ("openai-python", python_chat),
    RESPONSES: ("openai-python", python_responses),
    MESSAGES: ("anthropic-python", python_messages),
}


def run_python(url: str, stream: Stream) -> dict[str, list[Answer]]:
    client, run = PYTHON[stream.dialect]
    try:
        return {client: [run(f"{url}/{client}")]}
    except Exception as e:  # whatever the SDK raises
        return {client: [{"error": f"{type(e).__name__}: {e}"[:200]}]}


@contextmanager
def node(modules: Path) -> Iterator[Callable[[str, Stream], dict[str, list[Answer]]]]:
    script = Path(__file__).with_name("clients.mjs")
    process = subprocess.Popen(
        ["node", str(script), str(modules)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    to, of = process.stdin, process.stdout

    def run(url: str, stream: Stream) -> dict[str, list[Answer]]:
        to.write(json.dumps({"dialect": stream.dialect, "url": url}) + "\n")
        to.flush()
        found: dict[str, list[Answer]] = json.loads(of.readline())
        return found

    with process:
        yield run
        to.close()


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


def main(kind: str, modules: Path = Path()) -> dict[str, dict[str, list[Answer]]]:
    found: dict[str, dict[str, list[Answer]]] = defaultdict(dict)
    requests = Counter[tuple[str, str]]()
    with serving(requests) as url:
        if kind in AGENTS:
            dialect, client, run_agent = AGENTS[kind]
            numbers = [n for n, stream in enumerate(STREAMS) if stream.dialect == dialect]
            with ThreadPoolExecutor(AGENTS_AT_ONCE) as pool:
                runs = pool.map(lambda n: run_agent(f"{url}/{n}/{client}", modules), numbers)
                for n, seen in zip(numbers, runs, strict=True):
                    found[client][STREAMS[n].name] = [seen | {"requests": requests[str(n), client]}]
            return found
        with node(modules) if kind == "node" else nullcontext(run_python) as run:
            for n, stream in enumerate(STREAMS):
                for client, answers in run(f"{url}/{n}", stream).items():
                    found[client][stream.name] = answers
    return found


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], *map(Path, sys.argv[2:]))))
