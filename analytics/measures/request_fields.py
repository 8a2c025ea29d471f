"""Read of a captured request what analytics needs: the model, the parameters, the operation, who asked and who served.

The tap mirrors the first 64 KiB of a body and parses nothing, so this sees whole JSON mostly, cut JSON when a prompt is long,
and sometimes no JSON at all (multipart uploads, compressed bodies). Whole JSON goes through msgspec; a cut body is scanned:
its top-level members are read in order, up to the cut, and whatever is not there stays None. Prompts are skipped, never
kept. Bad data is a value: nothing here raises. No I/O, no clock.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

MAX_INFLATED_BYTES = 2**20
"""Of a compressed request body no more is unpacked."""
MAX_WORD_CHARS = 256
"""No model name or id is honestly longer; a longer one is cut."""


class RequestRead(msgspec.Struct, frozen=True, kw_only=True):
    """What a request asked for. None = not said, or not in the captured part."""

    model: str | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: float | None = None
    max_tokens: int | None = None
    n: int | None = None
    seed: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    stop_sequences: tuple[str, ...] | None = None
    include_usage: bool | None = None
    reasoning_effort: str | None = None
    service_tier: str | None = None
    output_type: str | None = None
    """`text`, `json`, `image` or `speech`, where the request says so."""
    truncated: bool = False
    """The captured body is not the whole body."""


class _Body(msgspec.Struct):
    """The top-level members that any known API uses; the rest is skipped unparsed. Any: no wrong type spoils the others."""

    model: Any = None
    modelId: Any = None
    stream: Any = None
    temperature: Any = None
    top_p: Any = None
    p: Any = None
    top_k: Any = None
    k: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None
    max_new_tokens: Any = None
    max_tokens_to_sample: Any = None
    n: Any = None
    seed: Any = None
    random_seed: Any = None
    frequency_penalty: Any = None
    presence_penalty: Any = None
    stop: Any = None
    stop_sequences: Any = None
    tools: list[msgspec.Raw] | Any = None
    functions: list[msgspec.Raw] | Any = None
    stream_options: Any = None
    reasoning_effort: Any = None
    reasoning: Any = None
    service_tier: Any = None
    response_format: Any = None
    generationConfig: Any = None
    options: Any = None
    parameters: Any = None


_MEMBERS = frozenset(_Body.__struct_fields__)
_decoder = msgspec.json.Decoder(_Body)
_any_decoder = msgspec.json.Decoder()

NOTHING = RequestRead()


def read_request(
    body: bytes, *, truncated: bool = False, path: str = "", headers: Mapping[str, str] | None = None
) -> RequestRead:
    """What the captured body says, and the path where the body leaves it open (Gemini, Azure and Bedrock name models there).

    `headers`: the request's, names in lower case. Never raises.
    """
    headers = headers or {}
    coding = headers.get("content-encoding", "").strip().lower()
    if coding and coding != "identity":
        body, truncated = _inflate(body, coding, truncated)
    members = _members(body, truncated)
    if members is None:
        members = _multipart(body, headers.get("content-type", ""))
    return _read(members, path, truncated)


def _members(body: bytes, truncated: bool) -> _Body | None:
    """The known members, None if this is no JSON object."""
    if not truncated:
        try:
            return _decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # cut after all, or not quite JSON: what can be read of it still counts
    start = body[:64].lstrip(b" \t\r\n\xef\xbb\xbf")[:1]
    if start != b"{":
        return None
    found = _Body()
    for name, value in scan_members(body):
        if name in _MEMBERS:
            setattr(found, name, value)
    return found


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)
"""Strings whole, and the punctuation that gives JSON its shape; what lies between is space and scalars."""


def scan_members(body: bytes) -> Iterator[tuple[str, Any]]:
    """The whole top-level members of a JSON object that may be cut off anywhere, in order.

    A member that the cut goes through is not given: half a number is not a number. Values of members that nobody asks for
    (messages) are skipped, not built.
    """
    depth = 0
    name: str | None = None
    value_from = -1
    last_string: tuple[int, int] | None = None
    for match in _TOKEN.finditer(body):
        token = match.group()
        first = token[:1]
        if first == b'"':
            last_string = match.span()
        elif first in (b"{", b"["):
            depth += 1
        elif first == b":":
            if depth == 1 and last_string is not None and value_from < 0:
                name, value_from = _text(body[slice(*last_string)]), match.end()
        elif depth == 1:  # "," or "}": the member is whole
            if name is not None and name in _MEMBERS:
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    yield name, _any_decoder.decode(body[value_from : match.start()])
            name, value_from = None, -1
            if first == b"}":
                return
        elif first in (b"}", b"]"):
            depth -= 1


def _text(raw: bytes) -> str | None:
    try:
        value = _any_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return value if isinstance(value, str) else None


def _read(found: _Body, path: str, truncated: bool) -> RequestRead:
    inner = next(
        (o for o in (found.generationConfig, found.options, found.parameters) if isinstance(o, dict)), {}
    )
    stream_options = found.stream_options if isinstance(found.stream_options, dict) else {}
    reasoning = found.reasoning if isinstance(found.reasoning, dict) else {}
    from_path, streams_by_path = _from_path(path)

    return RequestRead(
        model=_word(found.model) or _word(found.modelId) or from_path,
        stream=found.stream if isinstance(found.stream, bool) else streams_by_path,
        temperature=_number(_first(found.temperature, inner.get("temperature"))),
        top_p=_number(_first(found.top_p, found.p, inner.get("topP"), inner.get("top_p"))),
        top_k=_number(_first(found.top_k, found.k, inner.get("topK"), inner.get("top_k"))),
        max_tokens=_whole(
            _first(
                found.max_tokens,
                found.max_completion_tokens,
                found.max_output_tokens,
                found.max_new_tokens,
                found.max_tokens_to_sample,
                inner.get("maxOutputTokens"),
                inner.get("max_new_tokens"),
                inner.get("num_predict"),
            )
        ),
        n=_whole(_first(found.n, inner.get("candidateCount"))),
        seed=_whole(_first(found.seed, found.random_seed, inner.get("seed"))),
        frequency_penalty=_number(_first(found.frequency_penalty, inner.get("frequencyPenalty"))),
        presence_penalty=_number(_first(found.presence_penalty, inner.get("presencePenalty"))),
        stop_sequences=_words(_first(found.stop, found.stop_sequences, inner.get("stopSequences"))),
        include_usage=_flag(stream_options.get("include_usage")),
        reasoning_effort=_word(found.reasoning_effort)
        or _word(reasoning.get("effort"))
        or _word(found.reasoning),
        service_tier=_word(found.service_tier),
        output_type=_output_type(found.response_format),
        truncated=truncated,
    )


def _first(*values: Any) -> Any:
    for value in values:
        if value is not None:
            return value
    return None


def _word(value: Any) -> str | None:
    return value[:MAX_WORD_CHARS] if isinstance(value, str) and value else None


def _words(value: Any) -> tuple[str, ...] | None:
    """Stop sequences. Kept short: they are parameters, but written by users."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return None
    return tuple(v[:64] for v in value[:16] if isinstance(v, str))


def _number(value: Any) -> float | None:
    return (
        float(value)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
        else None
    )


def _whole(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _output_type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else value
    if kind in ("json_object", "json_schema", "json"):
        return "json"
    return "text" if kind == "text" else None


_PATH_MODELS = (
    re.compile(r"/models/([^/:?]+(?:/[^/:?]+)?):(\w+)"),  # Gemini, Vertex: /models/NAME:streamGenerateContent
    re.compile(r"/deployments/([^/?]+)()/"),  # Azure: the deployment stands for the model
    re.compile(r"/model/([^/?]+)/(invoke|converse)"),  # Bedrock
)


def _from_path(path: str) -> tuple[str | None, bool | None]:
    """(model, streams) as far as the path says."""
    for pattern in _PATH_MODELS:
        match = pattern.search(path)
        if match:
            model, verb = match.groups()
            streams = verb.lower().startswith("stream") if verb.lower().endswith("content") else None
            return model[:MAX_WORD_CHARS].replace("%3A", ":").replace("%3a", ":"), streams
    return None, None


_FORM_FIELD = re.compile(
    rb'name="?(model|stream|temperature|n)"?\r?\n(?:[^\r\n]+\r?\n)*\r?\n([^\r\n]{1,256})\r?\n'
)


def _multipart(body: bytes, content_type: str) -> _Body:
    """Uploads (audio, images): small fields beside the file."""
    found = _Body()
    if content_type.lower().startswith("multipart/"):
        for name, raw in _FORM_FIELD.findall(body):
            text = raw.decode("utf-8", "replace").strip()
            value = text if name == b"model" else _scalar(text)
            setattr(found, name.decode(), value)
    return found


def _scalar(text: str) -> Any:
    try:
        return _any_decoder.decode(text.lower())
    except msgspec.DecodeError:
        return None


def _inflate(body: bytes, coding: str, truncated: bool) -> tuple[bytes, bool]:
    """The unpacked start of a compressed body, and whether it is cut. Codings that no client sends stay unread."""
    bits = {"gzip": 31, "x-gzip": 31, "deflate": 15}.get(coding)
    if bits is None:
        return b"", True
    unpacker = zlib.decompressobj(bits)
    try:
        data = unpacker.decompress(body, MAX_INFLATED_BYTES)
    except zlib.error:
        return b"", True
    return data, truncated or not unpacker.eof


_OPERATIONS: tuple[tuple[str, str], ...] = (
    # the end of the path → gen_ai.operation.name
    ("/chat/completions", "chat"),
    ("/completions", "text_completion"),
    ("/responses", "chat"),
    ("/messages", "chat"),
    ("/chat", "chat"),
    ("/complete", "text_completion"),
    ("/embeddings", "embeddings"),
    ("/embed", "embeddings"),
    ("/generate", "text_completion"),
    ("/generate_stream", "text_completion"),
    (":generatecontent", "generate_content"),
    (":streamgeneratecontent", "generate_content"),
    (":embedcontent", "embeddings"),
    (":batchembedcontents", "embeddings"),
    ("/converse", "chat"),
    ("/converse-stream", "chat"),
    ("/images/generations", "generate_content"),
    ("/audio/speech", "generate_content"),
    ("/audio/transcriptions", "generate_content"),
    ("/audio/translations", "generate_content"),
)


@lru_cache(4096)
def operation_of(path: str) -> str | None:
    """The operation by path alone (`gen_ai.operation.name`), None where the path is of no known API."""
    bare = path.partition("?")[0].rstrip("/").lower()
    return next((operation for end, operation in _OPERATIONS if bare.endswith(end)), None)


Headers = Sequence[tuple[str, str]]

_REQUEST_IDS = (
    "x-request-id",
    "request-id",
    "x-oai-request-id",
    "apim-request-id",
    "x-amzn-requestid",
    "x-goog-request-id",
)
_WORKERS = (
    "x-xerotier-worker-id",
    "x-worker-id",
    "x-served-by",
    "x-backend-id",
    "x-backend-server",
    "x-replica-id",
    "x-pod-name",
    "x-litellm-model-id",
    "x-instance-id",
    "fireworks-deployment",
)
_WORKER = re.compile(r"x-(?:[a-z0-9]+-)*(?:worker|replica|backend|pod|instance|node)(?:-(?:id|name))?")


def header(headers: Headers, name: str) -> str | None:
    """The first header of that (lower-case) name, None if there is none or it is empty."""
    return next((value for key, value in headers if key == name and value), None)


def request_id_of(request_headers: Headers, response_headers: Headers) -> str | None:
    """The client's `x-request-id`, else the server's request id under any of its names."""
    found = header(request_headers, "x-request-id")
    if found is None and response_headers:
        theirs = _first_of_each(response_headers)
        found = next((theirs[name] for name in _REQUEST_IDS if name in theirs), None)
    return found[:MAX_WORD_CHARS] if found else None


def server_instance_of(response_headers: Headers) -> str | None:
    """The server process that answered, by a response header: known names first, then any `x-…-worker-id` or similar."""
    theirs = _first_of_each(response_headers)
    known = next((theirs[name] for name in _WORKERS if name in theirs), None)
    if known is None:
        known = next((value for name, value in theirs.items() if _WORKER.fullmatch(name)), None)
    return known[:MAX_WORD_CHARS] if known else None


def _first_of_each(headers: Headers) -> dict[str, str]:
    """The headers that are not empty, in their order; of one name the first counts."""
    found: dict[str, str] = {}
    for name, value in headers:
        if value and name not in found:
            found[name] = value
    return found
