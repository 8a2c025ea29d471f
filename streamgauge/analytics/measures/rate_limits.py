"""The rate limits that a response reports: limit, remaining and reset of requests and tokens, quotas, and the wait before a retry. Pure.

Contract
- A header name consists of a role and a window: `x-ratelimit-remaining-tokens-minute` has the role `remaining` of the window
  `tokens-minute`. Headers that LiteLLM copies from its provider (`llm_provider-…`) are windows of their own.
- Of the fields of draft-ietf-httpapi-ratelimit-headers, `RateLimit` and `RateLimit-Policy`, each policy is a window.
- Of several windows of requests or tokens, the columns have the one with the smallest share left: it causes the next 429.
- `…-utilization` (Anthropic's subscriptions) and `x-codex-…-used-percent` are the used share of a quota, without a number. Values
  above `MAX_SHARE` mean that all of the response are percentages. Extra usage (`overage`) is no limit: while it is in use, the quota is
  exceeded and requests succeed, so there is no quota.
- A reset is a duration (`6m0s`, `120ms`), a number of seconds, an instant in Unix seconds or ms, in RFC 3339, or an HTTP date.
- Unknown and impossible values (negative, not finite, above a year, a limit of 0) are None.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import NamedTuple

from streamgauge.analytics.dialects.events import ServerStat
from streamgauge.ingest.identifiers import is_hash

MAX_SHARE = 2.0
"""A used share above it is a percentage. Providers report shares a few percent above 1 with a 429."""
MAX_S = 366 * 86400.0
_MAX_PERCENT = 1000.0
_MAX_COUNT = 2**62
_UNIX_S, _UNIX_MS = 1e9, 1e11
"""Numbers from here on are instants."""
_LIMIT = re.compile(r"(llm_provider-)?(x-|anthropic-|x-fireworks-)?ratelimit(bysize)?((?:-[a-z0-9]+)*)")
_CODEX = re.compile(r"x-codex-(primary|secondary)-(used-percent|reset-at|reset-after-seconds)")
_ROLES = frozenset({"limit", "remaining", "reset", "utilization"})
_REQUESTS, _TOKENS = frozenset({"request", "requests", "req"}), frozenset({"token", "tokens"})
_TIMES = frozenset(
    ("second", "minute", "hour", "day", "month", "1m", "1h", "5h", "1d", "7d", "user", "key", "project", "organization", "model", "global")
)  # fmt: skip
"""Words that do not say what is counted. Without any other, requests are."""
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?=\s*(?:[,;%]|$))")
_PART = re.compile(r"(\d+(?:\.\d+)?)(ns|us|ms|s|m|h|d)")
_DURATION = re.compile(rf"(?:{_PART.pattern})+")
_UNIT_S = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_Windows = dict[tuple[str, str], dict[str, str]]
"""Vendor's prefix and window → role → value."""
_PAIRS = re.compile(r"\b(limit|remaining|reset)=(\d+)")
_POLICY = "policy"
"""Of the windows of the draft, in place of a vendor's prefix."""
_POLICY_ROLES = {"q": "limit", "r": "remaining", "t": "reset", "qu": "unit"}


class Window(NamedTuple):
    """What a response reports of one window."""

    name: str = ""
    limit: float | None = None
    remaining: float | None = None
    reset_s: float | None = None
    """From the response."""

    @property
    def share(self) -> float:
        """The share that is left. Without a limit, windows are not comparable: the last choice."""
        return self.remaining / self.limit if self.limit and self.remaining is not None else math.inf


class Limits(NamedTuple):
    """What a response reports. A window without `remaining` is unknown."""

    requests: Window = Window()
    tokens: Window = Window()
    quota: Window = Window()
    """Its limit is 1."""
    retry_after_s: float | None = None


NO_LIMITS = Limits()


def limits_in_headers(headers: Sequence[tuple[str, str]], at_s: float) -> Limits:
    """The limits in a response's headers, whatever its status. Names are in lower case. `at_s`: Unix time of the response."""
    windows: _Windows = {}
    sent: dict[str, str] = {}
    for name, value in headers:
        if "ratelimit" in name:
            _add(windows, name, value)
        elif name.startswith("x-tokenlimit-"):  # Together
            _add(windows, name.replace("tokenlimit", "ratelimit-tokens"), value)
        elif found := _CODEX.fullmatch(name):
            role = "utilization" if found[2] == "used-percent" else "reset"
            windows.setdefault(("x-codex", f"codex-{found[1]}"), {}).setdefault(
                role, f"{value}%" * (role[0] == "u") or value
            )
        elif name.startswith("retry-after"):
            sent[name] = value
    if not windows and not sent:
        return NO_LIMITS
    retry_ms = number_in(sent.get("retry-after-ms", ""))
    wait_s = None if retry_ms is None else _known_s(retry_ms / 1e3)
    if wait_s is None and "retry-after" in sent:
        wait_s = seconds_until(sent["retry-after"], at_s)
    extra = any(roles.get("use") == "true" for (_, name), roles in windows.items() if "overage" in name)
    return _tightest(windows, at_s, has_quota=not extra)._replace(retry_after_s=wait_s)


def limits_in_stats(stats: Iterable[ServerStat]) -> Limits:
    """The limits in the statistics of an answer of OpenAI's Realtime API (`rate_limits.updated`), the last ones."""
    windows: dict[str, dict[str, float]] = {}
    for stat in stats:
        name, _, role = stat.name.rpartition(".")
        if stat.source == "rate_limits" and stat.value is not None:
            windows.setdefault(name, {})[role] = stat.value
    found = {
        name: Window(name, _count(of.get("limit")), _count(of.get("remaining")), _known_s(of.get("reset_seconds", math.nan) / 1e9))
        for name, of in windows.items()
    }  # fmt: skip
    return Limits(found.get("requests", Window()), found.get("tokens", Window()))


def columns_of(limits: Limits, response_ns: int | None) -> dict[str, int | float | str | None]:
    """The columns of `streams`. `response_ns`: ns from t0 to the response."""
    if limits is NO_LIMITS:  # nearly always
        return {}
    found: dict[str, int | float | str | None] = {}
    for name, of in (("requests", limits.requests), ("tokens", limits.tokens), ("quota", limits.quota)):
        if of.remaining is None:
            continue
        if name == "quota":
            found |= {"quota": of.name, "quota_used": 1 - of.remaining}
        else:
            found |= {f"{name}_remaining": int(of.remaining)}
            found |= {f"{name}_limit": None if of.limit is None else int(of.limit)}
        if of.reset_s is not None and response_ns is not None:
            found[f"{name}_reset_ns"] = response_ns + int(of.reset_s * 1e9)
    if limits.retry_after_s is not None:
        found["retry_after_ns"] = int(limits.retry_after_s * 1e9)
    return found


def seconds_until(text: str, at_s: float) -> float | None:
    """Seconds from `at_s` (Unix time) to a reset or retry, at least 0. None if it is not one or more than a year away."""
    text = text.strip()
    number = number_in(text)
    if number is not None:
        instant = number / 1e3 if number >= _UNIX_MS else number
        return _known_s(max(instant - at_s, 0.0) if number >= _UNIX_S else number)
    if _DURATION.fullmatch(text):
        return _known_s(sum(float(n) * _UNIT_S[unit] for n, unit in _PART.findall(text)))
    try:
        found = datetime.fromisoformat(text) if text[:4].isdigit() else parsedate_to_datetime(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        return _known_s(max(found.timestamp() - at_s, 0.0))
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def number_in(text: str) -> float | None:
    """The number at the start of a value. `100, 100;w=60` is 100."""
    found = _NUMBER.match(text.strip())
    return float(found[0]) if found else None


def _add(windows: _Windows, name: str, value: str) -> None:
    """Add a header to its window. The first value of a repeated one counts."""
    found = _LIMIT.fullmatch(name)
    if found is None:
        return
    words = found[4].split("-")[1:]
    roles = [word for word in words if word in _ROLES]
    window = "-".join(word for word in words if word not in _ROLES and word != "after")
    key = found[2] or "", (found[1] or "") + ("tokens-" * bool(found[3]) + window).strip("-")
    if words[-3:] == ["overage", "in", "use"]:
        windows.setdefault((key[0], "overage"), {})["use"] = value
    elif len(roles) == 1:
        windows.setdefault(key, {}).setdefault(roles[0], value)
    elif not words and "remaining=" in value:  # RateLimit: limit=100, remaining=50, reset=30
        windows.setdefault(key, {}).update(_PAIRS.findall(value))
    elif words in ([], ["policy"]):
        _add_policies(windows, value)


def _add_policies(windows: _Windows, value: str) -> None:
    """Add `"default";r=50;t=30`, or `"default";q=100;w=60` of RateLimit-Policy. Of two names (Hugging Face), the last counts."""
    for item in value.split(","):
        parts = [part.strip().partition("=") for part in item.split(";")]
        names = [name.strip('"') for name, is_given, _ in parts if not is_given and not is_hash(name)]
        roles = windows.setdefault((_POLICY, names[-1]), {}) if names else {}
        for name, _, given in parts:
            if name in _POLICY_ROLES:
                roles.setdefault(_POLICY_ROLES[name], given.strip('"'))


def _tightest(windows: _Windows, at_s: float, *, has_quota: bool) -> Limits:
    """The window with the smallest share left, of each kind."""
    used = {
        key: share
        for key, of in windows.items()
        if (share := number_in(of.get("utilization", ""))) is not None and 0 <= share <= _MAX_PERCENT
    }
    are_percent = any(share > MAX_SHARE for share in used.values())
    found: dict[str, list[Window]] = {"requests": [], "tokens": [], "quota": []}
    for (vendor, name), of in windows.items():
        reset_s = seconds_until(of["reset"], at_s) if "reset" in of else None
        share = used.get((vendor, name))
        if share is not None:
            if has_quota and "overage" not in name:
                is_percent = are_percent or of["utilization"].endswith("%")
                found["quota"].append(Window(name, 1.0, 1 - share / (100 if is_percent else 1), reset_s))
        elif kind := _kind(of.get("unit", name), is_policy=vendor == _POLICY and "unit" not in of):
            limit, remaining = (_count(number_in(of.get(role, ""))) for role in ("limit", "remaining"))
            if remaining is not None and limit != 0:
                found[kind].append(Window(name, limit, remaining, reset_s))
    requests, tokens, quota = (min(of, key=lambda one: one.share, default=Window()) for of in found.values())
    return Limits(requests, tokens, quota)


def _kind(window: str, *, is_policy: bool) -> str | None:
    """What a window, or a unit, counts. A policy counts requests, unless its name contains tokens. None: neither, such as images."""
    words = set(window.removeprefix("llm_provider-").split("-")) - {""}
    if words & _TOKENS:
        return "tokens"
    return "requests" if is_policy or words & _REQUESTS or words <= _TIMES else None


def _count(value: float | None) -> float | None:
    return value if value is not None and 0 <= value < _MAX_COUNT else None


def _known_s(value: float | None) -> float | None:
    return value if value is not None and 0 <= value <= MAX_S else None
