"""Incidents of simulated traffic: what goes wrong, for which model or client, and the `x-simulate` values that stage it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Literal

import msgspec


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedIncident:
    """What goes wrong at one place while it lasts."""

    text: str
    """What happens, as the demo announces it."""
    dimension: Literal["model", "client"]
    value: str
    """The model or the client's API key."""
    share: float = 1.0
    """Share of the requests of the place that are affected."""
    forced: Mapping[str, Any] = field(default_factory=dict)
    """Values of the header `x-simulate`."""
    more: int = 0
    """Further requests of the client with each request of any client, so that they arrive at a steady rate."""
    model: str = ""
    """Model of the further requests."""

    def is_at(self, model: str, key: str) -> bool:
        """Whether a request is one of the place."""
        return self.value == (model if self.dimension == "model" else key)

    def header(self, rng: Random, *, model: str, key: str) -> str | None:
        """The header `x-simulate` of a request during the incident. None: not affected."""
        if not (self.forced and self.is_at(model, key)) or rng.random() >= self.share:
            return None
        return msgspec.json.encode(self.forced).decode()


INCIDENTS = msgspec.toml.decode(
    Path(__file__).with_name("incidents.toml").read_bytes(), type=dict[str, SimulatedIncident]
)
"""By kind, in the order in which the demo stages them."""
INCIDENT_MODELS = tuple(dict.fromkeys(i.value for i in INCIDENTS.values() if i.dimension == "model"))
