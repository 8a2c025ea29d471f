"""The phases of a hop (client → gateway → model server), and who took them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamgauge.dashboard.stream_phases import Phase

PARTS: dict[str, tuple[str, str, str]] = {
    "before forwarding": ("before_ns", "gateway", "From t0 to the start of the gateway's request to the model server."),
    "failed attempts": ("failed_ns", "upstream", "Attempts that another one followed."),
    "model's TTFT": ("model_ttft_ns", "upstream", "From the gateway's request to the first token of the model server."),
    "first token delay": ("first_token_ns", "gateway", "From the model server's first token to the client's."),
    "streaming": ("streaming_ns", "upstream", "From the client's first token to the end of the model server's response."),
    "added tail": ("tail_ns", "gateway", "From the end of the model server's response to the end of the gateway's."),
}  # fmt: skip
"""Phase → (column of `queries.hops.waterfall`, cause, meaning)."""
CAUSES = {name: cause for name, (_, cause, _) in PARTS.items()}
"""Phase → who took it."""


def hop_phases(row: Mapping[str, Any]) -> list[Phase]:
    """The phases of a row of `queries.hops.waterfall`, one after the other. Unknown parts and those of 0 are left out.

    Errors of the clocks can make a short part negative. It is drawn with length 0.
    """
    found: list[Phase] = []
    at_ns = 0
    for name, (column, _, meaning) in PARTS.items():
        length_ns = round(row[column] or 0)
        if length_ns:
            end_ns = at_ns + max(length_ns, 0)
            found.append(Phase(name, at_ns, end_ns, meaning))
            at_ns = end_ns
    return found
