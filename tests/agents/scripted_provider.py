"""A model provider that plays a script to coding agents, and logs what it did by its own clock.

It shares no code with Streamgauge. A conversation of the agent gets calls of a shell tool and of a tool that reads a file, then of a
subagent where the agent has one, then text. A request without tools gets text. The state of a conversation is what its request says:
the number of results of tools.

    python scripted_provider.py PORT LOG FILE [COMMAND ...]

FILE is what the second tool reads. With commands, the tools are these in the shell, the first also for the subagent. LOG gets a line of
JSON for each request, when its answer has ended.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import groupby
from typing import Any

from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, CloseConnection, Ping, Request, TextMessage

STEM = "zwiebelquark"
"""Start of each planted word. The words are names, so that what keeps a name keeps them."""
PLACES = ("task", "instructions", "definition", "argument", "result")


def planted(place: str) -> str:
    """The words that are planted in a place of the prompts: 40, so 200 in all."""
    return " ".join(f"{STEM}-{place}-{number}" for number in range(10, 50))


TASK, SUBTASK = f"TASK-OF-THE-USER {planted('task')}", "TASK-OF-THE-SUBAGENT"
FIRST_TOKEN_S, GAP_S = 0.06, 0.01
SLEEP_S = 0.4
"""Time in the shell tool, of each conversation."""
SHELLS = ("exec", "Bash", "bash", "exec_command", "shell", "shell_command", "run_shell_command")
READERS = ("Read", "read", "read_file", "view_image")
SUBAGENTS = ("Agent", "Task", "task", "agent", "spawn_agent", "invoke_agent", "generalist")
WAITERS = ("wait_agent",)


@dataclass
class Asked:
    """What a request says, whatever its dialect."""

    tools: dict[str, Mapping[str, Any]]
    """Name → schema of the arguments."""
    texts: list[str]
    """Texts of the user."""
    results: int
    model: str
    turns: int
    """Runs of messages of the user between answers."""

    @property
    def conversation(self) -> str:
        if not self.tools:
            return "side"
        return "subagent" if any(SUBTASK in text for text in self.texts) else "main"


@dataclass
class Answer:
    text: str = ""
    tool: str | None = None
    arguments: dict[str, Any] = field(default_factory=dict)
    script: str = ""
    """Of a tool that takes one instead of arguments."""
    namespace: dict[str, str] = field(default_factory=dict)


@dataclass
class Entry:
    """One request in the log. Times are those of the provider, in ns of its monotonic clock."""

    path: str
    method: str
    headers: dict[str, str]
    arrived_ns: int
    status: int = 0
    first_token_ns: int | None = None
    ended_ns: int = 0
    model: str | None = None
    conversation: str | None = None
    turn: int = 0
    tool: str | None = None
    call_id: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    output_chars: int = 0
    """Of the text, or of the arguments of the call."""
    request_id: str = ""
    warm_up: bool = False
    is_request: bool = False
    """To a model, for an answer."""
    body: str = ""
    """As received, without content coding."""


def answer_to(asked: Asked) -> Answer:
    """The script."""
    if asked.conversation == "side":
        return Answer(text="A title")
    shell = _named(asked.tools, SHELLS)
    reader = _named(asked.tools, READERS) or shell
    subagent = _named(asked.tools, SUBAGENTS) if asked.conversation == "main" else None
    waiter = _named(asked.tools, WAITERS) if subagent == "spawn_agent" else None
    commands = sys.argv[4:] or [f"sleep {SLEEP_S}; cat notes.txt; : {planted('argument')}"]
    of_agent = commands if asked.conversation == "main" else commands[:1]
    steps: list[Answer] = [_call(asked, shell, command) for command in of_agent]
    if asked.conversation == "main" and not sys.argv[4:]:
        steps.append(_call(asked, reader, "cat notes.txt"))
    if subagent:
        steps.append(_call(asked, subagent, f"{SUBTASK}: run one command"))
    if waiter:
        steps.append(_call(asked, waiter, ""))
    return steps[asked.results] if asked.results < len(steps) else Answer(text="All of it is done now.")


def _named(tools: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in tools), None)


def _call(asked: Asked, tool: str | None, what: str) -> Answer:
    """A call of the tool with the arguments that its schema requires."""
    if tool is None:
        return Answer(text="There is no such tool.")
    schema = asked.tools[tool]
    namespace = {"namespace": schema["namespace"]} if "namespace" in schema else {}
    if "script" in schema:
        script = f"const done = await tools.exec_command({json.dumps({'cmd': what})}); text(done.output);"
        return Answer(tool=tool, script=script, namespace=namespace)
    properties = schema.get("properties", {})
    required = schema.get("required", [])
    found: dict[str, Any] = {}
    for name, of in properties.items():
        if name in ("command", "cmd"):
            found[name] = ["bash", "-c", what] if of.get("type") == "array" else what
        elif name in ("file_path", "absolute_path", "filePath", "path") and tool in READERS:
            found[name] = sys.argv[3]
        elif name in ("prompt", "message", "request", "input") and tool in SUBAGENTS:
            found[name] = what
        elif name in ("subagent_type", "agent_name", "agent_type"):
            enum = of.get("enum") or ()
            found[name] = "general-purpose" if not enum or "general-purpose" in enum else enum[0]
            if tool == "spawn_agent" and name not in required:
                del found[name]
            elif tool == "task":
                found[name] = "general"
            elif tool == "invoke_agent":
                found[name] = "generalist"
        elif name == "task_name":
            found[name] = "one_command"
        elif name == "fork_turns":
            found[name] = "none"
        elif name in required:
            kind = of.get("type")
            values = {
                "string": "one command",
                "boolean": False,
                "number": 1,
                "integer": 1,
                "array": [],
                "object": {},
            }
            found[name] = of["enum"][0] if of.get("enum") else values.get(kind, "one command")
    return Answer(tool=tool, arguments=found, namespace=namespace)


# -- dialects ------------------------------------------------------------------------------------------------------


def read_anthropic(body: dict[str, Any], path: str) -> Asked:
    texts, results, by_user = [], 0, []
    for message in body.get("messages", []):
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if message["role"] == "user":
            texts += [block["text"] for block in blocks if block["type"] == "text"]
            results += sum(block["type"] == "tool_result" for block in blocks)
            by_user += [True for block in blocks if block["type"] == "text"]
        else:
            by_user.append(False)
    tools = {tool["name"]: tool.get("input_schema", {}) for tool in body.get("tools") or []}
    return Asked(tools, texts, results, body["model"], _turns(by_user))


def write_anthropic(answer: Answer, entry: Entry) -> Iterator[tuple[str | None, dict[str, Any]]]:
    usage = {
        "input_tokens": entry.input_tokens,
        "cache_read_input_tokens": 0,
        "cache_creation_input_tokens": 0,
    }
    message = {
        "id": f"msg_{entry.request_id}", "type": "message", "role": "assistant", "model": entry.model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1},
    }  # fmt: skip
    yield "message_start", {"type": "message_start", "message": message}
    if answer.tool:
        block: dict[str, Any] = {"type": "tool_use", "id": entry.call_id, "name": answer.tool, "input": {}}
        deltas = [
            {"type": "input_json_delta", "partial_json": part}
            for part in _halves(json.dumps(answer.arguments))
        ]
    else:
        block = {"type": "text", "text": ""}
        deltas = [{"type": "text_delta", "text": part} for part in _halves(answer.text)]
    yield "content_block_start", {"type": "content_block_start", "index": 0, "content_block": block}
    for delta in deltas:
        yield "content_block_delta", {"type": "content_block_delta", "index": 0, "delta": delta}
    yield "content_block_stop", {"type": "content_block_stop", "index": 0}
    stop = {"stop_reason": "tool_use" if answer.tool else "end_turn", "stop_sequence": None}
    usage = {**usage, "output_tokens": entry.output_tokens}
    yield "message_delta", {"type": "message_delta", "delta": stop, "usage": usage}
    yield "message_stop", {"type": "message_stop"}


def read_chat(body: dict[str, Any], path: str) -> Asked:
    texts, results, by_user = [], 0, []
    for message in body.get("messages", []):
        by_user += [message["role"] == "user"] if message["role"] in ("user", "assistant") else []
        if message["role"] == "user":
            content = message["content"]
            parts = [{"text": content}] if isinstance(content, str) else content
            texts += [part["text"] for part in parts if "text" in part]
        results += message["role"] == "tool"
    tools = {t["function"]["name"]: t["function"].get("parameters", {}) for t in body.get("tools") or []}
    return Asked(tools, texts, results, body["model"], _turns(by_user))


def write_chat(answer: Answer, entry: Entry) -> Iterator[tuple[str | None, dict[str, Any]]]:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> tuple[None, dict[str, Any]]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return None, {**head, "choices": [choice]}

    head = {
        "id": f"chatcmpl-{entry.request_id}",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": entry.model,
    }
    if answer.tool:
        first, second = _halves(json.dumps(answer.arguments))
        function = {"name": answer.tool, "arguments": first}
        call = {"index": 0, "id": entry.call_id, "type": "function", "function": function}
        yield chunk({"role": "assistant", "content": None, "tool_calls": [call]})
        yield chunk({"tool_calls": [{"index": 0, "function": {"arguments": second}}]})
    else:
        yield chunk({"role": "assistant", "content": ""})
        for part in _halves(answer.text):
            yield chunk({"content": part})
    yield chunk({}, "tool_calls" if answer.tool else "stop")
    total = entry.input_tokens + entry.output_tokens
    usage = {
        "prompt_tokens": entry.input_tokens,
        "completion_tokens": entry.output_tokens,
        "total_tokens": total,
    }
    yield None, {**head, "choices": [], "usage": usage}


def read_responses(body: dict[str, Any], path: str) -> Asked:
    texts, results, by_user = [], 0, []
    given = body.get("input") or []
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        if item.get("role") == "user" or item.get("type") == "agent_message":
            content = item["content"]
            parts = [{"text": content}] if isinstance(content, str) else content
            texts += [part.get("text") or part.get("encrypted_content", "") for part in parts]
            # What a subagent reports begins no turn.
            by_user += [True] if item.get("role") == "user" else []
        elif item.get("role") == "assistant" or str(item.get("type")).endswith("_call"):
            by_user.append(False)
        results += str(item.get("type")).endswith("_call_output")
    offered = list(body.get("tools") or [])
    for item in given if isinstance(given, list) else ():
        offered += item.get("tools", []) if item.get("type") == "additional_tools" else []
    tools: dict[str, Mapping[str, Any]] = {}
    for tool in offered:
        members = tool.get("tools", [tool])  # of a namespace
        of = {"namespace": tool["name"]} if "tools" in tool else {}
        for member in members:
            # A tool with a grammar instead of a schema takes a script.
            given_as = {"script": True} if member["type"] == "custom" else member.get("parameters", {})
            tools[member.get("name", member["type"])] = {**given_as, **of}
    return Asked(tools, texts, results, body["model"], _turns(by_user))


def write_responses(answer: Answer, entry: Entry) -> Iterator[tuple[str | None, dict[str, Any]]]:
    def event(kind: str, **more: Any) -> tuple[str, dict[str, Any]]:
        nonlocal number
        number += 1
        return kind, {"type": kind, "sequence_number": number, **more}

    number = -1
    response: dict[str, Any] = {
        "id": f"resp_{entry.request_id}", "object": "response", "created_at": 1, "model": entry.model, "output": [],
        "status": "in_progress",
    }  # fmt: skip
    yield event("response.created", response=response)
    output = []
    if not entry.warm_up:
        if answer.tool:
            kind, member, given = ("function_call", "arguments", json.dumps(answer.arguments))
            if answer.script:
                kind, member, given = ("custom_tool_call", "input", answer.script)
            item = {
                "id": f"{kind[0]}c_{entry.request_id}", "type": kind, "call_id": entry.call_id, "name": answer.tool,
                member: "", "status": "in_progress", **answer.namespace,
            }  # fmt: skip
            yield event("response.output_item.added", output_index=0, item=item)
            deltas = f"response.{kind}_{member}.delta"
            for part in _halves(given):
                yield event(deltas, item_id=item["id"], output_index=0, delta=part)
            done = {**item, member: given, "status": "completed"}
        else:
            item = {
                "id": f"msg_{entry.request_id}", "type": "message", "role": "assistant", "content": [], "status": "in_progress",
            }  # fmt: skip
            yield event("response.output_item.added", output_index=0, item=item)
            place = {"item_id": item["id"], "output_index": 0, "content_index": 0}
            part_of = {"type": "output_text", "annotations": [], "text": ""}
            yield event("response.content_part.added", **place, part=part_of)
            for part in _halves(answer.text):
                yield event("response.output_text.delta", **place, delta=part)
            yield event("response.output_text.done", **place, text=answer.text)
            whole = {**part_of, "text": answer.text}
            yield event("response.content_part.done", **place, part=whole)
            done = {**item, "content": [whole], "status": "completed"}
        yield event("response.output_item.done", output_index=0, item=done)
        output = [done]
    usage = {
        "input_tokens": entry.input_tokens, "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": entry.output_tokens, "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": entry.input_tokens + entry.output_tokens,
    }  # fmt: skip
    yield event(
        "response.completed", response={**response, "output": output, "status": "completed", "usage": usage}
    )


def read_gemini(body: dict[str, Any], path: str) -> Asked:
    texts, results, by_user = [], 0, []
    for content in body.get("contents", []):
        for part in content.get("parts", []):
            if "functionResponse" not in part:
                by_user.append(content.get("role") == "user")
            texts += [part["text"]] if content.get("role") == "user" and "text" in part else []
            results += "functionResponse" in part
    tools: dict[str, Mapping[str, Any]] = {}
    for group in body.get("tools") or []:
        for tool in group.get("functionDeclarations", []):
            tools[tool["name"]] = tool.get("parametersJsonSchema") or tool.get("parameters") or {}
    return Asked(tools, texts, results, path.rpartition("/")[2].partition(":")[0], _turns(by_user))


def write_gemini(answer: Answer, entry: Entry) -> Iterator[tuple[str | None, dict[str, Any]]]:
    def chunk(part: dict[str, Any], finish: str | None = None) -> tuple[None, dict[str, Any]]:
        candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": [part]}}
        usage = {"promptTokenCount": entry.input_tokens, "totalTokenCount": entry.input_tokens}
        if finish:
            candidate["finishReason"] = finish
            usage |= {
                "candidatesTokenCount": entry.output_tokens,
                "totalTokenCount": entry.input_tokens + entry.output_tokens,
            }
        head = {"modelVersion": entry.model, "responseId": entry.request_id}
        return None, {"candidates": [candidate], "usageMetadata": usage, **head}

    if answer.tool:
        call = {"id": entry.call_id, "name": answer.tool, "args": answer.arguments}
        yield chunk({"functionCall": call}, "STOP")
    else:
        first, second = _halves(answer.text)
        yield chunk({"text": first})
        yield chunk({"text": second}, "STOP")


def _turns(by_user: Iterable[bool]) -> int:
    """The number of turns, from whether each text is one of the user."""
    return sum(is_user for is_user, _ in groupby(by_user))


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


Read = Callable[[dict[str, Any], str], Asked]
Write = Callable[[Answer, Entry], Iterator[tuple[str | None, dict[str, Any]]]]
DIALECTS: dict[str, tuple[Read, Write]] = {
    "/messages": (read_anthropic, write_anthropic),
    "/chat/completions": (read_chat, write_chat),
    "/responses": (read_responses, write_responses),
    ":streamGenerateContent": (read_gemini, write_gemini),
    ":generateContent": (read_gemini, write_gemini),
}
"""End of a path → what reads its requests and writes its answers."""


# -- server --------------------------------------------------------------------------------------------------------


class Provider(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, port: int, log: str) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self._lock, self._log, self._number = threading.Lock(), open(log, "a"), 0  # noqa: SIM115

    def entry(self, handler: Handler) -> Entry:
        with self._lock:
            self._number += 1
            number = self._number
        entry = Entry(
            handler.path,
            handler.command,
            {k.lower(): v for k, v in handler.headers.items()},
            time.monotonic_ns(),
        )
        entry.request_id, entry.call_id = f"r{number:04d}", f"call_{number:04d}abcdefghijklmnop"
        entry.input_tokens, entry.output_tokens = 1000 + 7 * number, 20 + 3 * number
        return entry

    def write(self, entry: Entry) -> None:
        entry.ended_ns = entry.ended_ns or time.monotonic_ns()
        with self._lock:
            self._log.write(json.dumps(vars(entry)) + "\n")
            self._log.flush()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Provider

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._plain(404)

    def do_GET(self) -> None:
        if self.headers.get("upgrade", "").lower() == "websocket":
            self._serve_socket()
        elif self.path.endswith("/models") or "/models?" in self.path:
            self._plain(200, {"object": "list", "data": [], "models": []})
        else:
            self._plain(404, {"error": {"message": "not found", "type": "not_found_error"}})

    def do_POST(self) -> None:
        entry = self.server.entry(self)
        body = self._body(entry)
        path = self.path.partition("?")[0]
        if path.endswith("/count_tokens"):
            self._plain(200, {"input_tokens": entry.input_tokens}, entry)
            return
        if path.endswith(":countTokens"):
            self._plain(200, {"totalTokens": entry.input_tokens}, entry)
            return
        dialect = next((pair for end, pair in DIALECTS.items() if path.endswith(end)), None)
        if dialect is None:
            self._plain(404, {"error": {"message": "not found", "type": "not_found_error"}}, entry)
            return
        answer = self._plan(entry, dialect[0], body)
        if not (body.get("stream") or "streamGenerate" in path):
            self._plain(200, _whole(path, dialect[1], answer, entry), entry)
            return
        entry.status = 200
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("x-request-id", entry.request_id)
        self.send_header("request-id", entry.request_id)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        self._pace(entry, answer, dialect[1](answer, entry), self._write_event)
        if path.endswith("/chat/completions"):
            self._chunk(b"data: [DONE]\n\n")
        self.wfile.write(b"0\r\n\r\n")
        self.server.write(entry)

    def _body(self, entry: Entry) -> Any:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            content = b""
            while size := int(self.rfile.readline().partition(b";")[0], 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
        if self.headers.get("content-encoding") == "zstd":
            import zstandard

            content = zstandard.ZstdDecompressor().decompressobj().decompress(content)
        entry.body = content.decode()
        try:
            return json.loads(content)
        except ValueError:
            return None

    @staticmethod
    def _plan(entry: Entry, read: Read, body: dict[str, Any]) -> Answer:
        asked = read(body, entry.path.partition("?")[0])
        entry.model, entry.conversation, entry.turn = asked.model, asked.conversation, asked.turns
        answer = answer_to(asked)
        entry.is_request = body.get("generate") is not False
        entry.tool = answer.tool
        entry.output_chars = len(
            answer.script or (json.dumps(answer.arguments) if answer.tool else answer.text)
        )
        entry.call_id = entry.call_id if answer.tool else None
        return answer

    @staticmethod
    def _pace(
        entry: Entry,
        answer: Answer,
        events: Iterable[tuple[str | None, dict[str, Any]]],
        write: Callable[[str | None, dict[str, Any]], None],
    ) -> None:
        output = answer.tool or _halves(answer.text)[0]
        for name, event in events:
            if entry.first_token_ns is None and not entry.warm_up and output in json.dumps(event):
                time.sleep(FIRST_TOKEN_S)
                entry.first_token_ns = time.monotonic_ns()
            elif entry.first_token_ns is not None:
                time.sleep(GAP_S)
            # Before the last event is sent: the agent may go on with it.
            entry.ended_ns = time.monotonic_ns()
            write(name, event)

    def _write_event(self, name: str | None, event: dict[str, Any]) -> None:
        head = f"event: {name}\n" if name else ""
        self._chunk(f"{head}data: {json.dumps(event)}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _plain(self, status: int, value: Any = None, entry: Entry | None = None) -> None:
        entry = entry or self.server.entry(self)
        entry.status = status
        content = b"" if value is None else json.dumps(value).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("x-request-id", entry.request_id)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.server.write(entry)

    def _serve_socket(self) -> None:
        """The Responses API over a WebSocket: a message `response.create` of the client, then the events of its answer."""
        upgrade = self.server.entry(self)
        protocol = WSConnection(ConnectionType.SERVER)
        protocol.initiate_upgrade_connection(
            [(k.lower().encode(), v.encode()) for k, v in self.headers.items()], self.path
        )
        assert isinstance(next(protocol.events()), Request)
        headers = [(b"x-request-id", upgrade.request_id.encode())]
        self.connection.sendall(protocol.send(AcceptConnection(extra_headers=headers)))
        upgrade.status = 101
        self.server.write(upgrade)
        inputs: list[Any] = []
        text = ""
        self.close_connection = True
        while data := self.connection.recv(65536):
            protocol.receive_data(data)
            for event in protocol.events():
                if isinstance(event, Ping):
                    self.connection.sendall(protocol.send(event.response()))
                elif isinstance(event, CloseConnection):
                    self.connection.sendall(protocol.send(event.response()))
                    return
                elif isinstance(event, TextMessage):
                    text += event.data
                    if event.message_finished:
                        self._answer_on_socket(protocol, text, inputs)
                        text = ""

    def _answer_on_socket(self, protocol: WSConnection, text: str, inputs: list[Any]) -> None:
        entry, body = self.server.entry(self), json.loads(text)
        entry.body = text
        entry.method, entry.status = "WEBSOCKET", 200
        # A request that continues an answer has only its new items.
        if body.get("previous_response_id") is None:
            inputs.clear()
        inputs += body.get("input") or []
        entry.warm_up = body.get("generate") is False
        answer = self._plan(entry, read_responses, {**body, "input": inputs})
        if entry.warm_up:
            entry.tool = entry.call_id = None
            entry.output_tokens = 0

        def write(_: str | None, event: dict[str, Any]) -> None:
            self.connection.sendall(protocol.send(TextMessage(json.dumps(event))))

        self._pace(entry, answer, write_responses(answer, entry), write)
        self.server.write(entry)


def _whole(path: str, write: Write, answer: Answer, entry: Entry) -> dict[str, Any]:
    """The answer to a request that is not streamed."""
    events = [event for _, event in write(answer, entry)]
    if path.endswith("/responses"):
        return dict(events[-1]["response"])
    if path.endswith("/messages"):
        content = [{"type": "text", "text": answer.text}]
        usage = {"input_tokens": entry.input_tokens, "output_tokens": entry.output_tokens}
        return {**events[0]["message"], "content": content, "stop_reason": "end_turn", "usage": usage}
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": answer.text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**events[-1], "object": "chat.completion", "choices": [choice]}
    return {
        **events[-1],
        "candidates": [
            {"content": {"role": "model", "parts": [{"text": answer.text}]}, "finishReason": "STOP"}
        ],
    }


if __name__ == "__main__":
    Provider(int(sys.argv[1]), sys.argv[2]).serve_forever()
