"""The bodies that receivers of alerts take: our own JSON, Slack, PagerDuty and Alertmanager. Pure.

docs/how-to/alerts.md lists the fields with their sources.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit

Notification = Mapping[str, Any]
"""The JSON object of one alert (`evaluator.notification`)."""
Format = Literal["json", "slack", "pagerduty", "alertmanager"]
LASTS_S = 300.0
"""Alertmanager resolves an alert that it does not receive again for this long. It receives those that fire every `AGAIN_S`."""
AGAIN_S = 60.0
MAX_SUMMARY = 1024
MAX_SECTION = 3000
"""Characters, of PagerDuty and of Slack."""
SIGNS = {"firing": ":red_circle:", "worse": ":red_circle:", "resolved": ":large_green_circle:"}


def format_of(url: str) -> Format:
    """The format of a receiver, by its address."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    if host.startswith("hooks.slack"):
        return "slack"
    if host.endswith(".pagerduty.com"):
        return "pagerduty"
    return "alertmanager" if parts.path.endswith("/api/v2/alerts") else "json"


def body_of(form: Format, routing_key: str = "") -> Callable[[Notification], Any]:
    """The function that makes a body. `routing_key`: of PagerDuty."""
    bodies: dict[Format, Callable[[Notification], Any]] = {
        "json": dict,
        "slack": _slack,
        "pagerduty": lambda n: {"routing_key": routing_key, "dedup_key": n["alert_id"], **_pagerduty(n)},
        "alertmanager": lambda n: [_alertmanager(n)],
    }
    return bodies[form]


def _slack(n: Notification) -> dict[str, Any]:
    lines = [f"{SIGNS[n['state']]} *{_escaped(n['message'])}*", *(f"• {_escaped(e)}" for e in n["evidence"])]
    context = _escaped(f"{n['state']} · {n['severity']} · {n['rule']} · since {n['began_at']}")
    if n["link"]:
        context += f" · <{n['link']}|Dashboard>"
    texts = [{"type": "mrkdwn", "text": text[:MAX_SECTION]} for text in ("\n".join(lines), context)]
    blocks = [{"type": "section", "text": texts[0]}, {"type": "context", "elements": [texts[1]]}]
    return {"text": _escaped(n["text"]), "blocks": blocks}


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _pagerduty(n: Notification) -> dict[str, Any]:
    if n["state"] == "resolved":
        return {"event_action": "resolve"}
    details = ("evidence", "place", "value", "threshold", "stream_id")
    return {
        "event_action": "trigger",
        "payload": {
            "summary": n["message"][:MAX_SUMMARY],
            "source": n["gateway"] or "streamgauge",
            "severity": {"page": "critical", "ticket": "warning"}[n["severity"]],
            "timestamp": n["began_at"],
            "component": n["model"] or "all models",
            "class": n["rule"],
            "custom_details": {key: n[key] for key in details},
        },
        "client": "Streamgauge",
        "links": [{"href": n["link"], "text": "Dashboard"}] if n["link"] else [],
    }


def _alertmanager(n: Notification) -> dict[str, Any]:
    annotations = {"summary": n["message"], "description": "\n".join(n["evidence"])}
    annotations |= {name: n[name] for name in ("alert_id", "stream_id") if n[name]}
    lasts_until = (datetime.now(UTC) + timedelta(seconds=LASTS_S)).isoformat()
    return {
        # What identifies an alert there: of one whose severity has risen, the former one expires.
        "labels": {
            "alertname": n["rule"],
            "severity": n["severity"],
            "metric": n["metric"] or "",
            **n["place"],
        },
        "annotations": annotations,
        "startsAt": n["began_at"],
        "endsAt": n["changed_at"] if n["state"] == "resolved" else lasts_until,
        "generatorURL": n["link"] or "",
    }
