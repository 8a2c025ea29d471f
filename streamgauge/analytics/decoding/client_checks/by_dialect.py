"""The checks of each dialect with strict clients."""

from __future__ import annotations

from streamgauge.analytics.decoding.client_checks.base import ClientChecks
from streamgauge.analytics.decoding.client_checks.chat import ChatChecks
from streamgauge.analytics.decoding.client_checks.messages import MessagesChecks
from streamgauge.analytics.decoding.client_checks.responses import ResponsesChecks

CHECKS: dict[str, type[ClientChecks]] = {
    of.dialect: of for of in (ChatChecks, MessagesChecks, ResponsesChecks)
}
"""Dialect → its checks."""
