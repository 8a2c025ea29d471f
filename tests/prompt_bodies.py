"""Prompts of agents, made at random, as request bodies of every dialect, and mutations of them.

`rendered` writes a prompt as the body of a dialect, and lists its parts in the order in which the model reads them. So where two bodies
begin to differ is known without reading them.
"""

from __future__ import annotations

import base64
import copy
import itertools
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from streamgauge.ingest.condensed_body import CondensedBody
from streamgauge.ingest.records import RequestAnatomy, Segment, SegmentKind

Body = dict[str, Any]
_WORDS = (
    'file server request branch parser error line token window the of and to deploy after before cache stream naïve größe 東京 quote"d '
    "back\\slash tab\there new\nline {brace} [list] :colon, comma"
)
_TOOLS = (
    "read_file write_file edit_file run_shell grep glob list_files web_search fetch_page todo_write git_diff git_log run_tests "
    "mcp__github__create_issue mcp__github__list_issues mcp__linear__search mcp__db__query mcp__docs__resolve"
)


@dataclass(frozen=True)
class Part:
    """One part of a message."""

    kind: SegmentKind
    text: str
    """Arguments of a call as JSON, an image as base64."""
    id: str = ""
    """Of a call, also with its result."""
    name: str = ""


@dataclass(frozen=True)
class Message:
    role: str
    """`user`, `assistant` or `tool`."""
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Prompt:
    model: str
    tool_choice: str
    tools: tuple[tuple[str, str], ...]
    """(name, description)."""
    system: tuple[str, ...]
    messages: tuple[Message, ...]
    ttl: str | None = "5m"
    """Of the cache marks at the last tool, the last block of the system text and the last message. None: no marks."""
    order: int = 0
    """Seed of the order of the body's members."""
    sampling: dict[str, Any] = field(default_factory=lambda: {"temperature": 0.5, "stream": True})


class Expected(NamedTuple):
    """What a segment of a body must be."""

    kind: SegmentKind
    name: str | None
    message: int
    role: str | None
    mark: str | None
    content: str
    """Differs where the hash must differ."""


def text(rng: random.Random, size: int) -> str:
    """About `size` characters."""
    return " ".join(rng.choices(_WORDS.split(" "), k=max(1, size // 6)))


def prompt(rng: random.Random, *, long: bool) -> Prompt:
    """The prompt of an agent. `long`: its bodies have more than 64 KiB in every dialect."""
    scale = 25 if long else rng.choice((1, 4))
    names = rng.sample(_TOOLS.split(), rng.randint(3, 18))
    messages: list[Message] = []
    for turn in range(rng.randint(2, 6)):
        asked = [Part("text", text(rng, 60 * scale))]
        if rng.random() < 0.3:
            asked.insert(
                rng.randint(0, 1), Part("image", base64.b64encode(rng.randbytes(30 * scale)).decode())
            )
        messages.append(Message("user", tuple(asked)))
        for step in range(rng.randint(0, 3)):
            calls = [
                Part("tool_call", json.dumps({"path": text(rng, 40)}), f"call_{turn}_{step}_{n}", rng.choice(names))
                for n in range(rng.randint(1, 3))
            ]  # fmt: skip
            thought = [Part("reasoning", text(rng, 90))] * (rng.random() < 0.5)
            messages.append(Message("assistant", (*thought, Part("text", text(rng, 50)), *calls)))
            results = (Part("tool_result", text(rng, 150 * scale), call.id, call.name) for call in calls)
            messages.append(Message("tool", tuple(results)))
        messages.append(Message("assistant", (Part("text", text(rng, 200)),)))
    messages.append(Message("user", (Part("text", text(rng, 80)),)))
    system = [text(rng, 300 * scale) for _ in range(rng.randint(1, 3))]
    tools = tuple((name, text(rng, 40 * scale)) for name in names)
    size = sum(len(part.text) for message in messages for part in message.parts)
    size += sum(map(len, system)) + sum(len(description) for _, description in tools)
    if long:
        system[-1] += text(rng, 75_000 - size)
    return Prompt("model-1", "auto", tools, tuple(system), tuple(messages), order=rng.getrandbits(32))


# -- mutations --------------------------------------------------------------------------------------------------------------


def _order_of_tools(rng: random.Random, one: Prompt) -> Prompt:
    at = rng.randrange(len(one.tools) - 1)
    tools = list(one.tools)
    tools[at], tools[at + 1] = tools[at + 1], tools[at]
    return replace(one, tools=tuple(tools))


def _in_system(change: Callable[[random.Random, str], str]) -> Mutation:
    def mutated(rng: random.Random, one: Prompt) -> Prompt:
        system, at = list(one.system), rng.randrange(len(one.system))
        system[at] = change(rng, system[at])
        return replace(one, system=tuple(system))

    return mutated


def _space(rng: random.Random, old: str) -> str:
    at = rng.randrange(len(old))
    return f"{old[:at]} {old[at:]}"


def _edited_message(rng: random.Random, one: Prompt) -> Prompt:
    messages = list(one.messages)
    at = rng.randrange(len(messages))
    parts = list(messages[at].parts)
    index = rng.choice([n for n, part in enumerate(parts) if part.kind != "tool_call"])
    changed = parts[index].text
    parts[index] = replace(parts[index], text=("B" if changed[:1] == "A" else "A") + changed[1:])
    messages[at] = replace(messages[at], parts=tuple(parts))
    return replace(one, messages=tuple(messages))


def _removed_message(rng: random.Random, one: Prompt) -> Prompt:
    at = rng.choice([n for n, message in enumerate(one.messages) if message.role != "tool"])
    return replace(one, messages=one.messages[:at] + one.messages[at + 1 :])


def _added_image(rng: random.Random, one: Prompt) -> Prompt:
    messages = list(one.messages)
    at = rng.choice([n for n, message in enumerate(messages) if message.role == "user"])
    image = Part("image", base64.b64encode(rng.randbytes(60)).decode())
    messages[at] = replace(messages[at], parts=(*messages[at].parts, image))
    return replace(one, messages=tuple(messages))


Mutation = Callable[[random.Random, Prompt], Prompt]
MUTATIONS: dict[str, Mutation] = {
    "order of tools": _order_of_tools,
    "space in the system text": _in_system(_space),
    "date in the system text": _in_system(lambda rng, old: f"{old}\nToday is 2026-11-{rng.randint(10, 30)}."),
    "ttl": lambda _, one: replace(one, ttl="1h"),
    "edited message": _edited_message,
    "removed message": _removed_message,
    "other model": lambda _, one: replace(one, model="model-2"),
    "tool choice": lambda _, one: replace(one, tool_choice="none"),
    "image": _added_image,
}
"""Each changes one thing."""


def first_difference(before: Sequence[Expected | Segment], after: Sequence[Expected | Segment]) -> int | None:
    """Index of the first that is not the same, also where one list ends. None: they are equal."""
    pairs = enumerate(zip(before, after, strict=False))
    at = next((n for n, (old, new) in pairs if old != new), min(len(before), len(after)))
    return at if at < max(len(before), len(after)) else None


# -- dialects ---------------------------------------------------------------------------------------------------------------


class _Writer:
    """The parts of a body, while it is written."""

    def __init__(self, one: Prompt) -> None:
        self.one = one
        self.parts: list[Expected] = []
        self.message = -1
        self.role: str | None = None

    def add(self, kind: SegmentKind, content: str, name: str | None = None, mark: str | None = None) -> None:
        self.parts.append(Expected(kind, name, self.message, self.role, mark, content))

    def begin(self, role: str | None) -> None:
        self.message += 1
        self.role = role

    def head(self, choice: str, *, has_model: bool = True) -> None:
        if has_model:
            self.add("model", self.one.model, "model")
        self.add("settings", self.one.tool_choice, choice)

    def tools(self, tool: Callable[[str, str], Any], *, marks: bool = False) -> list[Any]:
        """`tool`: of its name and description. `marks`: with `cache_control` on the last one."""
        found = []
        for n, (name, description) in enumerate(self.one.tools):
            found.append(tool(name, description))
            mark = self._mark(found[-1]) if marks and n == len(self.one.tools) - 1 else None
            self.add("tool", description, name, mark)
        return found

    def blocks(self, *, marks: bool = False) -> list[Any]:
        """Text blocks of the system text."""
        found: list[Any] = []
        for n, block in enumerate(self.one.system):
            found.append({"type": "text", "text": block})
            mark = self._mark(found[-1]) if marks and n == len(self.one.system) - 1 else None
            self.add("system", block, mark=mark)
        return found

    def _mark(self, block: Body) -> str | None:
        if self.one.ttl is None:
            return None
        control = {"cache_control": {"type": "ephemeral", "ttl": self.one.ttl}}
        rest = dict(block)
        block.clear()  # the mark's place changes from prompt to prompt
        block.update({**control, **rest} if self.one.order % 2 else {**rest, **control})
        return self.one.ttl

    def marked(self, part: Part, block: Body, *, is_last: bool) -> Body:
        self.add(part.kind, part.text, part.name or None, self._mark(block) if is_last else None)
        return block


def _schema(description: str) -> Body:
    return {"type": "object", "properties": {"path": {"type": "string", "description": description[:40]}, "name": {"type": "string"},
            "cache_control": {"type": "object", "properties": {}}}, "required": ["path"]}  # fmt: skip


def _function(name: str, description: str) -> Body:
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": _schema(description)},
    }


def _flat(name: str, description: str) -> Body:
    return {"type": "function", "name": name, "description": description, "parameters": _schema(description)}


def _image_url(data: str) -> str:
    return f"data:image/png;base64,{data}"


def _chat(to: _Writer) -> Body:
    to.head("tool_choice")
    tools = to.tools(_function)
    found: list[Body] = []
    to.begin("system")
    if len(to.one.system) == 1:
        to.add("system", to.one.system[0])
        found.append({"role": "system", "content": to.one.system[0]})
    else:
        found.append({"content": to.blocks(), "role": "system"})
    for message in to.one.messages:
        if message.role == "tool":
            for part in message.parts:
                to.begin("tool")
                to.add("tool_result", part.text, part.name)
                found.append({"role": "tool", "tool_call_id": part.id, "content": part.text})
            continue
        to.begin(message.role)
        content, calls, more = [], [], {}
        for part in message.parts:
            to.add(part.kind, part.text, part.name or None)
            if part.kind == "image":
                content.append({"type": "image_url", "image_url": {"url": _image_url(part.text)}})
            elif part.kind == "tool_call":
                call = {"name": part.name, "arguments": part.text}
                calls.append({"id": part.id, "type": "function", "function": call})
            elif part.kind == "reasoning":
                more["reasoning_content"] = part.text
            else:
                content.append({"type": "text", "text": part.text})
        plain = content[0]["text"] if len(content) == 1 and "text" in content[0] else content
        found.append(
            {"role": message.role, **more, "content": plain} | ({"tool_calls": calls} if calls else {})
        )
    return {"model": to.one.model, "tool_choice": to.one.tool_choice, "tools": tools, "messages": found}


def _responses(to: _Writer) -> Body:
    to.head("tool_choice")
    tools = to.tools(_flat)
    to.add("system", "\n".join(to.one.system))
    found: list[Body] = []
    for message in to.one.messages:
        content: list[Body] = []
        for part in message.parts:
            if part.kind in ("text", "image"):
                if not content:
                    to.begin(message.role)
                    found.append({"type": "message", "content": content, "role": message.role})
                kind = "output_text" if message.role == "assistant" else "input_text"
                content.append({"type": "input_image", "image_url": _image_url(part.text)} if part.kind == "image"
                               else {"type": kind, "text": part.text})  # fmt: skip
            else:
                content = []
                to.begin(None)
                found.append(
                    {
                        "type": "reasoning",
                        "id": f"rs_{to.message}",
                        "summary": [],
                        "encrypted_content": part.text,
                    }
                    if part.kind == "reasoning"
                    else {
                        "type": "function_call",
                        "call_id": part.id,
                        "name": part.name,
                        "arguments": part.text,
                    }
                    if part.kind == "tool_call"
                    else {"call_id": part.id, "output": part.text, "type": "function_call_output"}
                )
            to.add(part.kind, part.text, part.name or None)
    instructions = "\n".join(to.one.system)
    return {"model": to.one.model, "tool_choice": to.one.tool_choice, "instructions": instructions, "tools": tools, "input": found,
            "store": False, "metadata": {"input": ["x"]}}  # fmt: skip


def _anthropic(to: _Writer) -> Body:
    to.head("tool_choice")
    tools = to.tools(lambda name, description: {"name": name, "description": description, "input_schema": _schema(description)},
                     marks=True)  # fmt: skip
    system = to.blocks(marks=True)
    found: list[Body] = []
    for number, message in enumerate(to.one.messages):
        role = "assistant" if message.role == "assistant" else "user"
        to.begin(role)
        is_last = number == len(to.one.messages) - 1
        content = []
        for n, part in enumerate(message.parts):
            source = {"type": "base64", "media_type": "image/png", "data": part.text}
            block: Body = (
                {"type": "image", "source": source}
                if part.kind == "image"
                else {"type": "thinking", "thinking": part.text, "signature": "s" * 40}
                if part.kind == "reasoning"
                else {"type": "tool_use", "id": part.id, "name": part.name, "input": json.loads(part.text)}
                if part.kind == "tool_call"
                else {
                    "tool_use_id": part.id,
                    "type": "tool_result",
                    "content": [{"type": "text", "text": part.text}],
                }
                if part.kind == "tool_result"
                else {"type": "text", "text": part.text}
            )
            content.append(to.marked(part, block, is_last=is_last and n == len(message.parts) - 1))
        found.append({"role": role, "content": content})
    return {"model": to.one.model, "max_tokens": 1, "tools": tools, "system": system, "messages": found,
            "tool_choice": {"type": to.one.tool_choice}}  # fmt: skip


def _gemini_members(to: _Writer) -> Body:
    to.head("functionCallingConfig", has_model=False)
    tools = to.tools(
        lambda name, description: {
            "name": name,
            "description": description,
            "parameters": _schema(description),
        }
    )
    system = {"role": "user", "parts": [{"text": block["text"]} for block in to.blocks()]}
    found = []
    for message in to.one.messages:
        role = "model" if message.role == "assistant" else "user"
        to.begin(role)
        parts: list[Body] = []
        for part in message.parts:
            to.add(part.kind, part.text, part.name or None)
            parts.append(
                {"inlineData": {"mimeType": "image/png", "data": part.text}}
                if part.kind == "image"
                else {"text": part.text, "thought": True}
                if part.kind == "reasoning"
                else {"functionCall": {"id": part.id, "name": part.name, "args": json.loads(part.text)}}
                if part.kind == "tool_call"
                else {
                    "functionResponse": {"id": part.id, "name": part.name, "response": {"output": part.text}}
                }
                if part.kind == "tool_result"
                else {"text": part.text}
            )
        found.append({"role": role, "parts": parts})
    config = {"functionCallingConfig": {"mode": to.one.tool_choice.upper()}}
    return {"systemInstruction": system, "contents": found, "tools": [{"functionDeclarations": tools}], "toolConfig": config,
            "generationConfig": {"topP": 1}}  # fmt: skip


def _code_assist(to: _Writer) -> Body:
    to.add("model", to.one.model, "model")
    return {"model": to.one.model, "project": "p", "request": _ordered(_gemini_members(to), to.one.order)}


def _converse(to: _Writer) -> Body:
    to.head("toolChoice", has_model=False)
    tools: list[Body] = to.tools(lambda name, description: {"toolSpec": {
        "name": name, "description": description, "inputSchema": {"json": _schema(description)}}})  # fmt: skip
    system: list[Body] = [{"text": block["text"]} for block in to.blocks()]
    if to.one.ttl is not None:
        system.append({"cachePoint": {"type": "default", "ttl": to.one.ttl}})
        to.parts[-1] = to.parts[-1]._replace(mark=to.one.ttl)
    found = []
    for message in to.one.messages:
        role = "assistant" if message.role == "assistant" else "user"
        to.begin(role)
        content: list[Body] = []
        for part in message.parts:
            to.add(part.kind, part.text, part.name or None)
            content.append(
                {"image": {"format": "png", "source": {"bytes": part.text}}}
                if part.kind == "image"
                else {"reasoningContent": {"reasoningText": {"text": part.text}}}
                if part.kind == "reasoning"
                else {"toolUse": {"toolUseId": part.id, "name": part.name, "input": json.loads(part.text)}}
                if part.kind == "tool_call"
                else {"toolResult": {"toolUseId": part.id, "content": [{"text": part.text}]}}
                if part.kind == "tool_result"
                else {"text": part.text}
            )
        found.append({"role": role, "content": content})
    return {"system": system, "messages": found, "toolConfig": {"tools": tools, "toolChoice": {to.one.tool_choice: {}}},
            "inferenceConfig": {"maxTokens": 1}}  # fmt: skip


def _ollama(to: _Writer) -> Body:
    to.head("format")
    tools = to.tools(_function)
    to.begin("system")
    to.add("system", "\n".join(to.one.system))
    found: list[Body] = [{"role": "system", "content": "\n".join(to.one.system)}]
    for message in to.one.messages:
        if message.role == "tool":
            for part in message.parts:
                to.begin("tool")
                to.add("tool_result", part.text, part.name)
                found.append({"role": "tool", "content": part.text, "tool_name": part.name})
            continue
        to.begin(message.role)
        one: Body = {"role": message.role}
        parts = sorted(
            message.parts, key=lambda part: ("reasoning", "text", "image", "tool_call").index(part.kind)
        )
        for part in parts:
            to.add(part.kind, part.text, part.name or None)
            if part.kind == "image":
                one.setdefault("images", []).append(part.text)
            elif part.kind == "tool_call":
                call = {"name": part.name, "arguments": json.loads(part.text)}
                one.setdefault("tool_calls", []).append({"function": call})
            else:
                one["thinking" if part.kind == "reasoning" else "content"] = part.text
        found.append(one)
    return {"model": to.one.model, "format": to.one.tool_choice, "messages": found, "tools": tools}


def _cohere(to: _Writer) -> Body:
    body = _chat(to)
    for n, part in enumerate(to.parts):
        if part.name == "tool_choice":
            to.parts[n] = part._replace(content=part.content.upper())
    return {**body, "tool_choice": to.one.tool_choice.upper()}


def _dashscope(to: _Writer) -> Body:
    body = _chat(to)
    messages, model = body.pop("messages"), body.pop("model")
    return {"model": model, "input": {"messages": messages}, "parameters": body}


DIALECTS: dict[str, Callable[[_Writer], Body]] = {
    "openai_chat": _chat,
    "openai_responses": _responses,
    "anthropic": _anthropic,
    "gemini": _gemini_members,
    "code_assist": _code_assist,
    "bedrock_converse": _converse,
    "ollama": _ollama,
    "cohere": _cohere,
    "dashscope": _dashscope,
}
"""Those with tools. Gemini and Converse name the model in the path."""
WITH_MARKS = ("anthropic", "bedrock_converse")


def _ordered(body: Body, seed: int) -> Body:
    names = list(body)
    random.Random(seed).shuffle(names)
    return {name: body[name] for name in names}


def rendered(one: Prompt, dialect: str) -> tuple[Body, list[Expected]]:
    """The body, its members in an order of the prompt's own, and its parts in the order in which the model reads them."""
    to = _Writer(one)
    body = DIALECTS[dialect](to)
    return _ordered({**body, **copy.deepcopy(one.sampling)}, one.order), to.parts


KEY = b"k" * 32


def anatomy(body: bytes, *cuts: int) -> RequestAnatomy:
    """What the tap reads from a body that arrives in parts."""
    walk = CondensedBody(KEY)
    for start, end in itertools.pairwise([0, *sorted(cuts), len(body)]):
        walk.feed(body[start:end])
    found = walk.anatomy
    assert found is not None, walk.error
    return found


def segments(body: Any, *cuts: int) -> list[Segment]:
    """`body`: bytes, or what becomes JSON."""
    found = anatomy(body if isinstance(body, bytes) else json.dumps(body).encode(), *cuts)
    assert found.segments is not None
    assert found.left_out == 0
    return found.segments


def encoded(body: Body, rng: random.Random) -> bytes:
    """As JSON of one of the forms that clients send."""
    separators = rng.choice(((",", ":"), (", ", ": ")))
    return json.dumps(body, ensure_ascii=rng.random() < 0.5, separators=separators).encode()
