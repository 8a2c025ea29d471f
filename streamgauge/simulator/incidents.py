"""Incidents of simulated traffic: what goes wrong, for which model or client, and the `x-simulate` values that stage it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What goes wrong at one place while it lasts."""

    text: str
    """What happens, as the demo announces it."""
    dimension: Literal["model", "client"]
    value: str
    """The model or the client's API key."""
    share: float = 1.0
    """Share of the requests of the place that are affected."""
    forced: Mapping[str, object]
    """Values of the header `x-simulate`."""

    def header(self, rng: Random, *, model: str, key: str) -> str | None:
        """The header `x-simulate` of a request during the incident. None: not affected."""
        if self.value != (model if self.dimension == "model" else key) or rng.random() >= self.share:
            return None
        return msgspec.json.encode(self.forced).decode()


def _of_model(model: str, text: str, share: float = 1.0, **forced: object) -> Incident:
    return Incident(text=text, dimension="model", value=model, share=share, forced=forced)


INCIDENTS: dict[str, Incident] = {
    "slow-first-token": _of_model("gpt-sim-large", "the first token takes four times as long", ttft_factor=4),
    "rate-limited": _of_model("claude-sim-large", "most requests get HTTP 429", 0.7, fault="http_429"),
    "short-answers": _of_model(
        "gpt-sim-mini", "most responses end after 20 tokens with finish reason length", 0.8, tokens=20, finish="length"
    ),
    "client-rejected": Incident(
        text="most requests get HTTP 401", dimension="client", value="sk-demo-batch", share=0.8, forced={"fault": "http_401"}
    ),
    "slow-tokens": _of_model("gpt-sim-large", "tokens take four times as long", gap_factor=4),
    "broken-tools": _of_model(
        "gpt-sim-mini", "most responses end with an error within a tool call", 0.6, tokens=0, tool_calls=1, fault="inband_error",
        fault_after=2,
    ),
    "truncated": _of_model("claude-sim-large", "half of the responses end without a finish", 0.5, fault="truncate"),
    "refusals": _of_model("gpt-sim-mini", "most responses are refusals", 0.7, tokens=15, refusal=True),
    "stalls": _of_model("gpt-sim-large", "most responses pause for seconds", 0.7, fault="stall"),
}  # fmt: skip
"""By kind, in the order in which the demo stages them."""
INCIDENT_MODELS = tuple(dict.fromkeys(i.value for i in INCIDENTS.values() if i.dimension == "model"))
