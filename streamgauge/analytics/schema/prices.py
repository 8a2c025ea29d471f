"""Prices, as the table `prices` has them and the view `spend` applies them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime
from typing import Annotated

from pydantic import BeforeValidator, Field

from streamgauge.analytics.schema.dimensions import INFERENCE, MEDIA, SIDE_CALL
from streamgauge.analytics.schema.setting_rows import as_utc

MAX_PRICES = 20_000


_WORD = r"^[\w.-]{1,64}$"
_Rate = Annotated[
    float, Field(ge=0, le=1e9, allow_inf_nan=False, description="a price. Write a number per million tokens")
]
_Instant = Annotated[
    datetime | None,
    BeforeValidator(as_utc),
    Field(description="a time. Write 2026-11-22 or 2026-11-22T07:00:00Z"),
]
_Served = Annotated[str | None, Field(pattern=_WORD, description="a word as the provider reports it")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices from --price-file, replaced when analytics starts with other ones. Per million tokens; web_search: per 1,000 searches."""

    model: Annotated[
        str, Field(pattern=r"^[^\s\[\]\\]{1,256}$", description="a name with the wildcards * and ?")
    ]
    """Glob of the model: requested; if no row has it, that in the response."""
    input: _Rate
    """Price of input tokens."""
    cached_input: _Rate
    """Price of input tokens read from the prompt cache."""
    cached_audio: _Rate
    """Price of audio tokens read from the prompt cache."""
    cache_write_5m: _Rate
    """Price of input tokens written to the prompt cache."""
    cache_write_1h: _Rate
    """Price of input tokens written to the prompt cache for an hour."""
    input_audio: _Rate
    """Price of audio tokens in the input."""
    input_image: _Rate
    """Price of image tokens in the input."""
    output: _Rate
    """Price of output tokens."""
    reasoning: _Rate
    """Price of reasoning tokens."""
    output_audio: _Rate
    """Price of audio tokens in the output."""
    output_image: _Rate
    """Price of image tokens in the output."""
    web_search: _Rate
    """Price of web searches."""
    currency: Annotated[str, Field(pattern="^[A-Z]{3}$", description="a code such as USD")]
    """Currency code, such as USD."""
    above: Annotated[int | None, Field(ge=0, le=2**53, description="a number of input tokens")] = None
    """Applies to streams with more input tokens. NULL: to all."""
    valid_from: _Instant = None
    """Applies to streams that started at or after this time. NULL: no limit."""
    valid_until: _Instant = None
    """Applies to streams that started before this time. NULL: no limit."""
    source: Annotated[str | None, Field(pattern=_WORD, description="the name of a catalog")] = None
    """Catalog that the row was imported from. NULL: written by hand."""
    service_tier: _Served = None
    """Applies to streams with this streams.service_tier. NULL: to all."""
    speed: _Served = None
    """Applies to streams with this streams.speed. NULL: to all."""
    inference_region: _Served = None
    """Applies to streams with this streams.inference_region. NULL: to all."""


COLUMNS = tuple(field.name for field in fields(Price))
DEFAULTS = {
    "cached_input": "input", "cached_audio": "cached_input", "cache_write_5m": "input", "cache_write_1h": "cache_write_5m",
    "input_audio": "input", "input_image": "input", "reasoning": "output", "output_audio": "output", "output_image": "output",
}  # fmt: skip
"""Price that may be left out → the price that it has then. Without the price of a web search, searches cost nothing."""
RATES = COLUMNS[1 : COLUMNS.index("currency")]
SERVED = ("service_tier", "speed", "inference_region")
"""Conditions of a price on how a request was served. They are columns of `streams`, too."""
APPLIES = " AND ".join((
    "coalesce(started_at >= rule.valid_from, true) AND coalesce(started_at < rule.valid_until, true)",
    *(f"coalesce(rule.{name} = {name}, rule.{name} IS NULL)" for name in SERVED),
))  # fmt: skip
"""SQL condition: a stream began and was served as a rule of prices requires."""

LEAST_RATIOS = 20
"""Requests with reported tokens from which the tokens of others to the same model are estimated."""
TOKENS_PER_BYTE = "[0.01, 0.25, 0.5]"
"""Input tokens per byte of a request: low end, estimate and high end for models with fewer requests. Images have few."""
TOKENS_PER_CHAR = "[0.15, 0.25, 1]"
"""As before, output tokens per character: words of English to Chinese."""
TOKENS_PER_EVENT = "[1, 2, 8]"
"""As before, per output event of a stream whose characters are unknown."""
OUTPUT_CHARS = (
    "text_chars + reasoning_chars + if(tool_call_count > 0, tool_call_chars, 0) + coalesce(refusal_chars, 0)"
)
"""Characters that the model generated: what it bills as output, whatever it is for."""
HAS_REPORT = "coalesce(input_tokens, output_tokens) IS NOT NULL"
"""SQL condition: the provider reported tokens."""
IS_STALE = "token_source = 'usage_delta' AND tps_e2e IS NULL"
"""SQL condition: output followed the last report."""
IS_MEDIA = f"coalesce(regexp_matches(lower(path), '({'|'.join(MEDIA)})$'), false)"
BRINGS_AGAIN = """(response_id IS NOT NULL AND connection_id IS NULL
    AND (method <> 'POST' OR regexp_matches(path, '/(cancel|submit_tool_outputs)$')))"""
"""SQL condition: the request reads or continues a response that another request began (background responses, stored chat completions,
interactions, runs). Each of these requests repeats the tokens of the response, which is billed once: by its first final report."""
IS_FREE_REFUSAL = """(dialect IN ('anthropic_messages', 'bedrock_converse') AND finish_reason = 'refusal'
    AND output_event_count = 0)"""
"""SQL condition: Claude refused before it generated output, which Anthropic does not bill."""
FREE_FAILURES = ("http_error", "connect_error", "inband_error")
"""Outcomes that are not billed without output."""
CAN_ESTIMATE = f"""NOT {IS_MEDIA} AND (ttft_ns IS NOT NULL
    OR (connection_id IS NOT NULL OR coalesce(method, 'POST') = 'POST')
        AND operation IN {(*INFERENCE, "embeddings", SIDE_CALL)} AND outcome NOT IN {FREE_FAILURES})"""
"""SQL condition: a request without a usage report is probably billed, because it had output or may have had. Free endpoints, such as
tokenizers and moderations, have other operations. Requests that list or delete responses have other methods. Images and speech are
excluded: bytes and characters do not show their tokens."""
FREE_PRIORITY = 2**31 - 1
FREE_RATES = ", ".join(f"0 AS {name}" for name in RATES)
INPUT_AMOUNT = "input + cached_input + cache_write_5m + cache_write_1h + input_audio + input_image"
OUTPUT_AMOUNT = "output + reasoning + output_audio + output_image + web_searches_cost"
