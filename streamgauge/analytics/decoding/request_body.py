"""Parse a captured request body: model, sampling parameters, streaming flags.

A body may be whole JSON, JSON cut at the tap's limit (64 KiB), compressed, or a multipart upload. Whole JSON is decoded by
msgspec. A cut body is scanned: its complete top-level members are read in order, and missing ones stay None. Prompts are
skipped. Bad data never raises. No I/O, no clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec

from streamgauge.analytics.dialects import kept
from streamgauge.analytics.dialects.tolerant_json import FAULTS, compact, member_of
from streamgauge.ingest import identifiers
from streamgauge.ingest.content_coding import BodyDecoder

T = TypeVar("T")

MAX_INFLATED_BYTES = 2**20
"""Limit for decompressed request bodies."""
MAX_ID_CHARS = 256
"""A longer id of a JSON-RPC request is ignored."""


class RequestParameters(msgspec.Struct, frozen=True, kw_only=True):
    """Parameters of one request. None: absent, or not in the captured part."""

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
    reasoning_effort: str | None = None
    service_tier: str | None = None
    speed: str | None = None
    inference_region: str | None = None
    output_type: str | None = None
    """`text` or `json`."""
    rpc_method: str | None = None
    rpc_id: str | None = None
    """As JSON."""
    generate: bool | None = None
    """False: the request only warms up (OpenAI's Responses API)."""


REQUEST = kept.members(
    name="model modelId reasoning_effort reasoning service_tier serviceTier speed inference_geo response_format method",
    word="jsonrpc id",
    count="""
    generate stream temperature top_p p top_k k max_tokens max_completion_tokens max_output_tokens max_new_tokens max_tokens_to_sample
    n seed random_seed frequency_penalty presence_penalty
    """,
    numbers="generationConfig options parameters",
    content="stop stop_sequences",
)
NESTED = kept.members(name="type effort", numbers="stream_options", content="tools functions")
"""Members of objects, and others for readers of redacted bodies."""
_MEMBERS = frozenset(REQUEST)
"""The known top-level members."""
# They are `Any` so that one wrong type does not invalidate the others.
_Body = msgspec.defstruct("_Body", [(name, Any, None) for name in sorted(_MEMBERS)])
_decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(_Body)

NO_PARAMETERS = RequestParameters()


def parse_request_body(
    body: bytes, *, truncated: bool = False, path: str = "", headers: Mapping[str, str] | None = None
) -> RequestParameters:
    """The parameters in a captured body. Gemini, Azure and Bedrock name the model in `path`.

    Names in `headers` are lower case.
    """
    headers = headers or {}
    body, truncated = plain_body(body, truncated, headers)
    members = decode_members(_decoder, body, truncated, _MEMBERS)
    if members is None:
        members = _multipart(body, headers.get("content-type", ""))
    return _parameters(members, path)


def plain_body(body: bytes, truncated: bool, headers: Mapping[str, str]) -> tuple[bytes, bool]:
    """The body without its content coding, and whether it is cut."""
    coding = headers.get("content-encoding")
    if not coding:
        return body, truncated
    decoder = BodyDecoder(coding, free_bytes=MAX_INFLATED_BYTES, max_ratio=0)
    if decoder.plain:
        return body, truncated
    plain = decoder.feed(body)[:MAX_INFLATED_BYTES]
    return plain, truncated or decoder.broken or decoder.bomb or decoder.unfinished


def decode_members(
    decoder: msgspec.json.Decoder[T], body: bytes, truncated: bool, names: frozenset[str]
) -> T | None:
    """The body as the decoder's Struct. Of a body that is cut or invalid, the complete members with `names`. None: no object."""
    if not truncated:
        with suppress(*FAULTS):
            return decoder.decode(body)
    if body[:64].lstrip(b" \t\r\n\xef\xbb\xbf")[:1] != b"{":
        return None
    found = decoder.decode(b"{}")
    if any(key in body for key in _quoted(names)):  # a search costs a fortieth of the scan
        for name, value in scan_members(body, names):
            setattr(found, name, value)
    return found


@cache
def _quoted(names: frozenset[str]) -> tuple[bytes, ...]:
    return tuple(f'"{name}"'.encode() for name in names)


_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\],:]', re.DOTALL)
"""Complete strings and JSON punctuation. Whitespace and scalars lie between the matches."""


def scan_members(body: bytes, names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """The complete top-level members with `names` of a JSON object that may be cut anywhere, in order.

    A cut member is skipped, because a cut number would be another number.
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
        elif depth == 1:  # "," or "}": the member is complete
            if name is not None and name in names:
                with suppress(*FAULTS):
                    yield name, msgspec.json.decode(body[value_from : match.start()])
            name, value_from = None, -1
            if first == b"}":
                return
        elif first in (b"}", b"]"):
            depth -= 1


def _text(raw: bytes) -> str | None:
    try:
        value = msgspec.json.decode(raw)
    except FAULTS:
        return None
    return value if isinstance(value, str) else None


_NUMBERS = {
    # parameter → its names in the body, and in `generationConfig`, `options` or `parameters`
    "temperature": ("temperature",),
    "top_p": ("top_p", "p", "topP"),
    "top_k": ("top_k", "k", "topK"),
    "frequency_penalty": ("frequency_penalty", "frequencyPenalty"),
    "presence_penalty": ("presence_penalty", "presencePenalty"),
}
_INTEGERS = {
    "max_tokens": (
        "max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_tokens_to_sample",
        "maxOutputTokens", "num_predict",
    ),
    "n": ("n", "candidateCount"),
    "seed": ("seed", "random_seed"),
}  # fmt: skip


def _parameters(found: Any, path: str) -> RequestParameters:
    nested = next(
        (o for o in (found.generationConfig, found.options, found.parameters) if isinstance(o, dict)), {}
    )
    reasoning = found.reasoning if isinstance(found.reasoning, dict) else {}
    path_model, path_streams = _from_path(path)
    given = {name: value for name, value in msgspec.structs.asdict(found).items() if value is not None}
    known = given.keys() | nested

    def first_of(names: Sequence[str]) -> Any:
        return next((of[name] for of in (given, nested) for name in names if of.get(name) is not None), None)

    # Most requests give few of them, and a search for each would be the most expensive step of a request.
    numbers: dict[str, Any] = {
        parameter: convert(first_of(names))
        for convert, parameters in ((_number, _NUMBERS), (_integer, _INTEGERS))
        for parameter, names in parameters.items()
        if not known.isdisjoint(names)
    }
    effort = _name(found.reasoning_effort) or _name(reasoning.get("effort")) or _name(found.reasoning)
    return RequestParameters(
        model=_name(found.model) or _name(found.modelId) or path_model,
        stream=found.stream if isinstance(found.stream, bool) else path_streams,
        stop_sequences=_stop_sequences(first_of(("stop", "stop_sequences", "stopSequences"))),
        reasoning_effort=effort,
        service_tier=_name(found.service_tier)
        or _name(member_of(found.serviceTier, "type") or found.serviceTier),
        speed=_name(found.speed),
        inference_region=_name(found.inference_geo),
        output_type=_output_type(found.response_format),
        rpc_method=_name(found.method) if found.jsonrpc is not None else None,
        rpc_id=_rpc_id(found.id) if found.jsonrpc is not None else None,
        generate=found.generate if isinstance(found.generate, bool) else None,
        **numbers,
    )


def _name(value: Any) -> str | None:
    return identifiers.name(value) if isinstance(value, str) else None


def _rpc_id(value: Any) -> str | None:
    is_id = isinstance(value, (str, int, float)) and not isinstance(value, bool)
    return compact(value) if is_id and len(str(value)) <= MAX_ID_CHARS else None


def _stop_sequences(value: Any) -> tuple[str, ...] | None:
    """At most 16 sequences of 64 characters, because clients choose them."""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list):
        return None
    return tuple(v[:64] for v in value[:16] if isinstance(v, str))


def _number(value: Any) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e15
    return float(value) if is_number else None


def _integer(value: Any) -> int | None:
    number = _number(value)
    return int(number) if number is not None and number == int(number) else None


def _output_type(value: Any) -> str | None:
    kind = value.get("type") if isinstance(value, dict) else value
    if kind in ("json_object", "json_schema", "json"):
        return "json"
    return "text" if kind == "text" else None


_PATH_MODELS = (
    # Gemini, Vertex: /models/NAME:streamGenerateContent
    re.compile(r"/models/((?:hashed:)?[^/:?]+(?:/[^/:?]+)?):(\w+)"),
    re.compile(r"/deployments/([^/?]+)()/"),  # Azure: the deployment's name
    re.compile(r"/model/([^/?]+)/(invoke|converse)"),  # Bedrock
)


def _from_path(path: str) -> tuple[str | None, bool | None]:
    """(model, whether it streams), each None if the path does not contain it."""
    for pattern in _PATH_MODELS:
        match = pattern.search(path)
        if match:
            model, verb = match.groups()
            streams = verb.lower().startswith("stream") if verb.lower().endswith("content") else None
            return identifiers.name(unquote(model)), streams
    return None, None


_FORM_FIELD = re.compile(
    rb'name="?(model|stream|temperature|n)"?\r?\n(?:[^\r\n]+\r?\n)*\r?\n([^\r\n]{1,256})\r?\n'
)


def _multipart(body: bytes, content_type: str) -> Any:
    """The small form fields of an audio or image upload."""
    found = _Body()
    if content_type.lower().startswith("multipart/"):
        for name, raw in _FORM_FIELD.findall(body):
            text = raw.decode("utf-8", "replace").strip()
            value = text if name == b"model" else _scalar(text)
            setattr(found, name.decode(), value)
    return found


def _scalar(text: str) -> Any:
    try:
        return msgspec.json.decode(text.lower())
    except msgspec.DecodeError:
        return None
