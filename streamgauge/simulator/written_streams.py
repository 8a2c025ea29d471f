"""The streams that the simulator replays: one file per vendor format in `streams/`, read once. Pure after that.

A file is a list of blocks separated by empty lines. The first line of a block is `: NAME WORD…`, the lines after it are what the
vendor sends, or a fragment of JSON. A line that begins with a space continues the line before it. The first block has settings:

    : like NAME                      the blocks of another file, unless this file has some of the same name; one without text removes
    : api NAME, : path PATH          API, and endpoint
    : credential NAME: VALUE         header of a request
    : id TEXT                        id of the response
    : header NAME: VALUE             response header
    : rate-limit NAME: VALUE         response header of a simulator with rate limits
    : finish REASON WORD             the vendor's word for a finish reason of OpenAI
    : refusal STATUS TYPE [CODE]     error type and code of an HTTP status, or of its first digit; `-` = none
    : choices, : hidden_reasoning, : always_usage, : crlf, : websocket
                                     properties of the format

Blocks that are sent:

    start SHARE                      before the first output, at this share of the time to first token
    keepalive, malformed, finish     a long silence, a broken event, the end
    error TYPE                       an error inside the stream
    KIND, open-KIND, close-KIND      an output and the begin and end of its item: text, reasoning, refusal, tool, audio
    last-text                        the last output, if it has the finish reason
    socket-error                     an error as a message of a WebSocket

Other blocks: `request`, `session` (of a WebSocket), `whole` (the body without streaming), `http-error`, `usage`, `first-usage`,
`item-KIND` and `item-choice` (elements of `$items`, `$calls` and `$choices`) and `let-NAME`, which `@NAME` includes.

Words after a name: `each_choice` (repeated), `if=NAME` and `unless=NAME` (left out), `usage` (final totals), `terminal`, `finish` (has
the finish reason), `output` (counts as output), `apart` (no event of the response), `unframed` (outside SSE), `whole` (one event has
all arguments of a tool call).

In a text, `$NAME` is a value as JSON, `<NAME>` a value within a string, `(?NAME …?)` is left out unless the value is true, and
`(!NAME …!)` unless it is false. The names are those of `response_writer`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

_FOLDER = Path(__file__).with_name("streams")
_COMMON = "_common"
"""Name of the file that all others are like."""
_PLACEHOLDER = re.compile(r"\$(\w+)|<(\w+)>|\(\?(\w+) (.*?)\?\)|\(!(\w+) (.*?)!\)")
OUTPUTS = {"text", "last-text", "reasoning", "refusal", "tool", "audio"}
"""Blocks whose events are output. Other blocks have `output` after their name."""
Values = Callable[[str], Any]


class Template:
    """A text with placeholders."""

    def __init__(self, text: str) -> None:
        self._parts: list[bytes | Callable[[Values], bytes]] = []
        self.names: set[str] = set()
        self.conditions: set[str] = set()
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            self._parts.append(text[end : found.start()].encode())
            self._parts.append(self._placeholder(*found.groups()))
            end = found.end()
        self._parts.append(text[end:].encode())

    def _placeholder(
        self, value: str | None, inside: str | None, *group: str | None
    ) -> Callable[[Values], bytes]:
        if value is not None:
            self.names.add(value)
            return lambda values: _json(values(value))
        if inside is not None:
            self.names.add(inside)
            return lambda values: str(values(inside)).encode()
        is_wanted = group[0] is not None
        condition, text = group[:2] if is_wanted else group[2:]
        assert condition is not None
        inner = Template(text or "")
        self.names |= inner.names
        self.conditions |= {condition}
        return lambda values: inner.write(values) if bool(values(condition)) is is_wanted else b""

    def write(self, values: Values) -> bytes:
        return b"".join(part if isinstance(part, bytes) else part(values) for part in self._parts)


def _json(value: Any) -> bytes:
    return value if isinstance(value, bytes) else msgspec.json.encode(value)


class Block:
    """One block. `words` are those after its name."""

    def __init__(self, name: str, words: list[str], text: str, newline: str) -> None:
        self.is_output = name in OUTPUTS or "output" in words
        self.words = frozenset(words)
        self.argument = words[0] if words else ""
        self.wanted = [word.partition("=")[2] for word in words if word.startswith("if=")]
        self.unwanted = [word.partition("=")[2] for word in words if word.startswith("unless=")]
        self.is_comment = text.startswith(":")
        self.is_event = not self.is_comment and not self.words & {"apart", "unframed"}
        if "unframed" in self.words:
            text += "\n"
        elif text.startswith((":", "event:", "data:")):
            text += "\n\n"
        self.template = Template(text.replace("\n", newline))


class WrittenStream:
    """The stream of one vendor format."""

    def __init__(self, vendor: str) -> None:
        self.vendor = vendor
        self.settings, written = _read(vendor)
        texts = {
            name.removeprefix("let-"): text
            for name, blocks in written.items()
            for _, text in blocks
            if name.startswith("let-")
        }

        def included(text: str) -> str:
            return re.sub(r"@(\w+)", lambda found: included(texts[found[1]]), text)

        newline = "\r\n" if "crlf" in self.settings else "\n"
        self.blocks = {
            name: [Block(name, words, included(text), newline) for words, text in blocks]
            for name, blocks in written.items()
            if not name.startswith("let-")
        }
        self.id = Template(self.settings["id"][0])
        self.api = self.settings["api"][0]
        self.finish = dict(line.split(" ", 1) for line in self.settings["finish"])
        self.headers = self.header_lines("header")
        self._rate_limits = [(name, Template(value)) for name, value in self.header_lines("rate-limit")]
        self._refusals = {status: words for status, *words in (r.split() for r in self.settings["refusal"])}
        usages = [block.template for name in ("usage", "first-usage") for block in self.blocks.get(name, ())]
        self.usage_names = {name for template in usages for name in template.names}
        self.usage_conditions = {name for template in usages for name in template.conditions}

    def header_lines(self, setting: str) -> list[tuple[str, str]]:
        """Name and value of each header of a setting."""
        return [(name, value) for name, value in (h.split(": ") for h in self.settings.get(setting, ()))]

    def rate_limit_headers(self, values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """The headers of a rate limit, with the values of `streamgauge.simulator.rate_limits`."""
        return [(name, value.write(values.__getitem__).decode()) for name, value in self._rate_limits]

    def write(self, block: str, values: Mapping[str, Any]) -> bytes:
        """A block that does not depend on a response."""
        return self.blocks[block][0].template.write(values.__getitem__)

    def has(self, name: str) -> bool:
        """Whether the format has a property or a block."""
        return name in self.settings or name in self.blocks

    def http_error(self, status: int, message: str) -> tuple[bytes, str | None]:
        """The body of an error response, and its type or code; None if the vendor sends neither."""
        values = self.error_values(status, message)
        return self.write("http-error", values), values["error_type"]

    def error_values(self, status: int, message: str) -> dict[str, Any]:
        """The placeholders of an error response."""
        words = self._refusals.get(str(status)) or self._refusals[str(status)[0]]
        kind, code = [*(None if word == "-" else word for word in words), None][:2]
        return {"http_status": status, "error_message": message, "error_type": kind, "error_code": code}


def _read(name: str) -> tuple[dict[str, list[str]], dict[str, list[tuple[list[str], str]]]]:
    """Settings and blocks of a file and of those that it is like."""
    head, *rest = (_FOLDER / f"{name}.sse").read_text("utf-8").strip().split("\n\n")
    own: dict[str, list[str]] = {}
    for line in head.split("\n"):
        setting, _, value = line.removeprefix(": ").partition(" ")
        own.setdefault(setting, []).append(value)
    settings, blocks = ({}, {}) if name == _COMMON else _read(own.get("like", [_COMMON])[0])
    own_blocks: dict[str, list[tuple[list[str], str]]] = {}
    for block in rest:
        first, _, text = block.partition("\n")
        block_name, *words = first.removeprefix(": ").split()
        if "unframed" not in words:
            text = re.sub(r"\n +", "", text)
        same_name = own_blocks.setdefault(block_name, [])
        if text or block_name.startswith("let-"):
            same_name.append((words, text))
    return {**settings, **own}, {**blocks, **own_blocks}


WRITTEN_STREAMS = {
    path.stem: WrittenStream(path.stem)
    for path in sorted(_FOLDER.glob("*.sse"))
    if not path.stem.startswith("_")  # what several vendors have in common
}
"""By vendor."""
