"""The final status of a response, run or interaction, which some APIs send in place of a finish reason."""

from __future__ import annotations

from typing import Any

from streamgauge.analytics.decoded.event import ChoiceDelta, DecodedEvent
from streamgauge.analytics.decoded.reports import ErrorReport
from streamgauge.analytics.dialects.errors import error_from


def add_final_status(event: DecodedEvent, status: str, error: Any, *, failed: bool) -> None:
    """Make `event` the terminal with this finish reason, and an error if `failed`; `error` is the object reported."""
    event.kind, event.terminal = "finish", True
    event.deltas = [ChoiceDelta(finish_reason=status)]
    if failed:
        report = error_from(error) if error else ErrorReport(None)
        report.type = report.type or status
        event.kind, event.error = "error", report
