"""The request header `x-simulate`: a JSON object that forces values of the simulated response.

Other values are drawn, with two exceptions that make scripted responses exact:

- A request with the header gets no fault unless the header names one.
- With `tokens`, the response has no reasoning, tool calls or refusal unless the header asks for them.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from streamgauge.simulator.planning.profiles import Reasoning

STREAM_FAULTS = (
    "truncate",  # clean end of the body, neither finish nor terminal: `truncated`
    "reset",  # TCP RST mid-stream: `upstream_reset`; bytes under way may be lost, so counts are upper bounds
    "cut",  # FIN in the middle of a chunked body: `upstream_reset`, every byte arrives
    "inband_error",  # an error in the vendor's format inside the 200 stream: `inband_error`
    "malformed",  # a broken JSON event, then a clean end without terminal: `malformed`
    "malformed_event",  # a broken JSON event, then the stream continues to its finish: `ok`, counted
    "stall",  # a silence of `stall_ms`: `ok`
    "burst",  # all remaining output in one write: `ok`
    "linger",  # the connection stays open for `stall_ms` after the terminal: `ok`
)
OTHER_FAULTS = (
    "none",
    "slow_first_byte",  # headers arrive with the first token, four times later than usual: `ok`
    "reset_before_head",  # RST instead of a response: `upstream_reset`
)  # and http_NNN, an error response with the vendor's JSON body: `http_error`
MAX_TOKENS = 2_000_000
MAX_MS = 3_600_000


class ForcedValues(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The decoded header. Times in milliseconds; None = not forced."""

    ttft_ms: float | None = None
    """First output, measured from the end of the request."""
    gap_ms: float | None = None
    """Median gap between two chunks."""
    jitter: float | None = None
    """Sigma of the log-normal gaps; 0 = constant. Defaults to 0 with `gap_ms`."""
    tokens: int | None = None
    """Tokens of text, per choice."""
    chunk_tokens: int | None = None
    """Tokens in each chunk."""
    reasoning_tokens: int | None = None
    reasoning: Reasoning | None = None
    tool_calls: int | None = None
    refusal: bool | None = None
    finish: Literal["stop", "length"] | None = None
    usage: bool | None = None
    """Report usage, whatever the request body asks for."""
    fault: str | None = None
    fault_after: int | None = None
    """Output events before the fault; 0 = before the first."""
    stall_ms: float | None = None
    speaker: str | None = None
    """Vendor whose format is used instead of the model's."""
    coding: Literal["identity", "gzip", "deflate"] | None = None
    framing: Literal["chunked", "close"] | None = None
    input_tokens: int | None = None
    cached_tokens: int | None = None


def read_simulate_header(header: str | None) -> ForcedValues:
    """Decode the header. Raises ValueError that names the invalid part."""
    if header is None:
        return ForcedValues()
    try:
        forced = msgspec.json.decode(header, type=ForcedValues)
    except msgspec.DecodeError as e:
        raise ValueError(f"x-simulate: {e}") from None
    fault = forced.fault
    if fault is not None and fault not in STREAM_FAULTS + OTHER_FAULTS and http_fault_status(fault) is None:
        raise ValueError(f"x-simulate: unknown fault {fault!r}")
    tokens = ("tokens", "reasoning_tokens", "tool_calls", "chunk_tokens", "input_tokens", "fault_after")
    times = ("ttft_ms", "gap_ms", "stall_ms", "jitter")
    for names, largest in ((tokens, MAX_TOKENS), (times, MAX_MS)):
        for name in names:
            value = getattr(forced, name)
            if value is not None and not 0 <= value <= largest:
                raise ValueError(f"x-simulate: {name} must be between 0 and {largest}")
    return forced


def http_fault_status(fault: str) -> int | None:
    """The status of a fault `http_NNN`; None for other faults."""
    status = fault.removeprefix("http_")
    return int(status) if status != fault and status.isdigit() and 400 <= int(status) <= 599 else None
