"""The bodies for Slack and PagerDuty have the fields that docs/how-to/alerts.md lists with their sources, and no others."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from streamgauge.analytics.alerts.alert_states import Change, Condition, Key
from streamgauge.analytics.alerts.evaluator import notification
from streamgauge.analytics.alerts.formats import body_of, format_of
from streamgauge.analytics.alerts.sinks import alert_sinks
from tests.analytics.alerts.receiver import receiver

DOCS = (Path(__file__).resolve().parents[3] / "docs/how-to/alerts.md").read_text()
ROUTING_KEY = "0123456789abcdef0123456789abcdef"
INCIDENT = Key("diagnosis", "b", None, "ttft", '{"client": "c1"}')
CONDITION = Condition(
    0.738, 0.263, "TTFT <since> 12:00 & more: " + "long " * 900, 1_767_268_800_000_000_000,
    "8a6e0804-2bd0-4672-b79d-d97027f9071a", "c1", "page", ("263 ms → 738 ms", "unaffected: a"),
)  # fmt: skip


def sent(state: Any, key: Key = INCIDENT) -> dict[str, Any]:
    change = Change("8a6e0804-0000-4672-b79d-d97027f9071a", key, state, CONDITION)
    return notification(change, 1_767_268_860_000_000_000, "https://gauge.example.com/")


def documented(receiver: str) -> dict[str, tuple[str, bool, int | None, set[str]]]:
    """Path of a field → type, whether it is required, most characters, allowed values."""
    section = DOCS.partition(f"### {receiver}")[2].partition("\n#")[0]
    found = {}
    for path, kind, required, limit in re.findall(
        r"^\| `(.+?)` \| (.+?) \| (.*?) \| (.*?) \|", section, re.MULTILINE
    ):
        characters = re.search(r"(\d+) characters", limit)
        found[path] = (
            kind,
            required == "yes",
            int(characters[1]) if characters else None,
            set(re.findall(r"`(.+?)`", limit)),
        )
    assert found
    assert "https://" in section
    return found


def fields(value: Any, path: str = "") -> dict[str, list[Any]]:
    """Path → values. `[]` stands for the items of a list."""
    found: dict[str, list[Any]] = {path: [value]} if path else {}
    items = (
        value.items()
        if isinstance(value, dict)
        else [("[]", item) for item in value]
        if isinstance(value, list)
        else []
    )
    for name, item in items:
        for inner, values in fields(item, f"{path}{'' if name == '[]' or not path else '.'}{name}").items():
            found.setdefault(inner, []).extend(values)
    return found


KINDS: dict[str, type] = {"text": str, "object": dict, "list": list}


def check(receiver: str, body: object, *, is_resolution: bool = False) -> None:
    known, present = documented(receiver), fields(body)
    free = tuple(f"{path}." for path, (kind, *_) in known.items() if kind == "any object")
    for path, values in present.items():
        if path.startswith(free) or path + "." in free:
            continue
        kind, _, most, allowed = known[path]
        for value in values:
            assert isinstance(value, KINDS[kind]), path
            assert most is None or len(value) <= most, path
            assert not allowed or value in allowed, (path, value)
    # A required field of a part counts where the part is.
    for path, (_, required, *_) in known.items():
        parent = path.rpartition(".")[0] or path.removesuffix("[]")
        if (
            required
            and (parent in present or "." not in path)
            and not (is_resolution and path.startswith("payload"))
        ):
            assert path in present, path


@pytest.mark.parametrize("state", ["firing", "worse", "resolved"])
@pytest.mark.parametrize(("name", "form"), [("Slack", "slack"), ("PagerDuty", "pagerduty")])
def test_body_has_the_documented_fields(name: str, form: Any, state: str) -> None:
    body = body_of(form, ROUTING_KEY)(sent(state))
    check(name, body, is_resolution=state == "resolved")
    assert "https://gauge.example.com/?range=custom&from=" in str(body) or state == "resolved"


def test_check_finds_fields_that_are_missing_unknown_or_too_long() -> None:
    for change in (
        {"payload": {}},
        {"payload": {"summary": "x" * 2000}},
        {"event_action": "open"},
        {"unknown": ""},
    ):
        with pytest.raises((AssertionError, KeyError)):
            check("PagerDuty", body_of("pagerduty", ROUTING_KEY)(sent("firing")) | change)


def test_slack_gets_no_markup_of_messages() -> None:
    body = body_of("slack")(sent("firing"))
    assert "TTFT &lt;since&gt; 12:00 &amp; more" in body["text"]
    assert "<since>" not in str(body)


def test_pagerduty_resolves_the_incident_that_it_triggered() -> None:
    firing, resolved = (body_of("pagerduty", ROUTING_KEY)(sent(state)) for state in ("firing", "resolved"))
    assert (firing["event_action"], resolved["event_action"]) == ("trigger", "resolve")
    assert firing["dedup_key"] == resolved["dedup_key"]
    assert firing["payload"]["severity"] == "critical"


@pytest.mark.parametrize(
    ("url", "form"),
    [
        ("https://hooks.slack.com/services/T/B/x", "slack"),
        ("https://events.eu.pagerduty.com/v2/enqueue", "pagerduty"),
        ("http://am.internal:9093/prefix/api/v2/alerts", "alertmanager"),
        ("https://chat.example.com/hooks/x", "json"),
    ],
)
def test_format_follows_from_the_address(url: str, form: str) -> None:
    assert format_of(url) == form


def test_each_of_several_receivers_gets_every_alert() -> None:
    with receiver() as first, receiver() as second:
        sinks = alert_sinks(f"{first.url} {second.url}")
        for sink in sinks:
            sink.offer([sent("firing")])
        for sink in sinks:
            sink.close()
        assert first.received == second.received == [sent("firing")]


def test_notification_names_place_onset_evidence_and_an_absolute_range() -> None:
    found = sent("firing")
    assert found["place"] == {"gateway": "b", "client": "c1"}
    assert found["began_at"] == "2026-01-01T12:00:00Z"
    assert found["evidence"] == ["263 ms → 738 ms", "unaffected: a"]
    address = "https://gauge.example.com/?range=custom&from=2026-01-01T11%3A50&until=2026-01-01T12%3A05&gateway=b&client=c1"
    assert found["link"] == address
    assert found["text"].endswith(f" {address}")
