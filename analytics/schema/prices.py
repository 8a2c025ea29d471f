"""Prices, as the table `prices` has them and the view `spend` applies them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import datetime

MAX_PRICES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Prices per million tokens of the models that a glob matches, and per 1,000 web searches. The first that applies is used."""

    model: str
    """Glob with `*` and `?`."""
    input: float
    cached_input: float
    """Of input tokens read from the prompt cache."""
    cached_audio: float
    cache_write_5m: float
    """Of input tokens written to the prompt cache."""
    cache_write_1h: float
    input_audio: float
    input_image: float
    output: float
    reasoning: float
    output_audio: float
    output_image: float
    web_search: float
    currency: str
    above: int | None = None
    """Applies to streams with more input tokens."""
    valid_from: datetime | None = None
    valid_until: datetime | None = None
    """Applies to streams that started before."""
    source: str | None = None
    """Catalog that the row was imported from. None: written by hand."""


COLUMNS = tuple(field.name for field in fields(Price))
DEFAULTS = {
    "cached_input": "input", "cached_audio": "cached_input", "cache_write_5m": "input", "cache_write_1h": "cache_write_5m",
    "input_audio": "input", "input_image": "input", "reasoning": "output", "output_audio": "output", "output_image": "output",
}  # fmt: skip
"""Price that may be left out → the price that it has then. Without the price of a web search, searches cost nothing."""
RATES = COLUMNS[1 : COLUMNS.index("currency")]

LEAST_RATIOS = 20
"""Requests with reported tokens from which the tokens of others to the same model are estimated."""
TOKENS_PER_BYTE = "[0.01, 0.25, 0.5]"
"""Input tokens per byte of a request: low end, estimate and high end for models with fewer requests. Images have few."""
TOKENS_PER_CHAR = "[0.15, 0.25, 1]"
"""As before, output tokens per character: words of English to Chinese."""
TOKENS_PER_EVENT = "[1, 2, 8]"
"""As before, per output event of a stream without text, such as a tool call."""
UNBILLED = ("http_error", "connect_error", "inband_error")
"""Outcomes of requests that cost nothing, as far as known, without output."""
INPUT_AMOUNT = "input + cached_input + cache_write_5m + cache_write_1h + input_audio + input_image"
OUTPUT_AMOUNT = "output + reasoning + output_audio + output_image + web_searches_cost"
