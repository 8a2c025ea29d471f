"""The rules over streams in flight: a silent stream, and no first output. No I/O, no clock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from streamgauge.analytics.alerts.alert_states import Condition, Hold, Key
from streamgauge.analytics.measures.open_streams import Phase, Silence

RULES: Mapping[Phase, str] = {"mid_stream": "silent_stream", "pre_first_output": "no_first_output"}
HOLDS = dict.fromkeys(RULES.values(), Hold(before_resolving_s=5.0))
"""The silence is the hold time before firing. Streams that fall silent one after the other are one alert."""


def silence_conditions(
    found: Iterable[Silence],
    limits_s: Mapping[Phase, float],
    wall_ns: int,
    client_names: Mapping[str, str] | None = None,
) -> dict[Key, Condition]:
    """One condition per gateway, model and phase. A limit of 0 turns the rule off. `client_names`: client id → name."""
    groups: dict[Key, list[Silence]] = {}
    for one in found:
        limit_s = limits_s[one.phase]
        if limit_s and one.silent_ns > limit_s * 1e9:
            groups.setdefault(Key(RULES[one.phase], one.gateway, one.model), []).append(one)
    return {
        key: _condition(key, group, limits_s, wall_ns, client_names or {}) for key, group in groups.items()
    }


def _condition(
    key: Key,
    group: Sequence[Silence],
    limits_s: Mapping[Phase, float],
    wall_ns: int,
    client_names: Mapping[str, str],
) -> Condition:
    worst = max(group, key=lambda one: one.silent_ns)
    silent_s, limit_s = worst.silent_ns / 1e9, limits_s[worst.phase]
    client_id = dominant_client(one.client_id for one in group)
    what = "no output" if worst.phase == "mid_stream" else "no first output"
    affected = f"{len(group)} streams" if len(group) > 1 else "1 stream"
    by = f", mostly of client {client_names.get(client_id, client_id)}" if client_id is not None else ""
    return Condition(
        value=silent_s,
        threshold=limit_s,
        message=f"{what} from {name_of(key)} for {silent_s:.1f} s (limit {limit_s:g} s), {affected}{by}",
        since_ns=wall_ns - worst.silent_ns,
        stream_id=worst.stream_id,
        client_id=client_id,
    )


def dominant_client(clients: Iterable[str | None]) -> str | None:
    """The client of more than half of at least two streams."""
    counted = Counter(clients)
    [(client, streams)] = counted.most_common(1)
    return client if streams >= 2 and streams > counted.total() / 2 else None


def name_of(key: Key) -> str:
    """`model at gateway`, as far as known."""
    model = key.model or "an unknown model"
    return f"{model} at {key.gateway}" if key.gateway is not None else model
