"""The rules of alerts: a silent stream and no first output, over streams in flight; and the rules over stored rows.

Those over streams in flight are pure. One over stored rows is SQL that returns one row per gateway and model whose condition is met.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

import duckdb
import polars as pl

from streamgauge.analytics.alerts.alert_states import Condition, Hold, Key, Severity
from streamgauge.analytics.measures.open_streams import Phase, Silence
from streamgauge.analytics.reports import rate_limits
from streamgauge.analytics.schema import budgets, dimensions
from streamgauge.analytics.schema.objectives import FAST_BURN, SLOW_BURN, STEADY_BURN
from streamgauge.analytics.schema.outcomes import IS_ERROR

SILENCE_RULES: Mapping[Phase, str] = {"mid_stream": "silent_stream", "pre_first_output": "no_first_output"}
SILENCE_HOLDS = dict.fromkeys(SILENCE_RULES.values(), Hold(before_resolving_s=5.0))
"""The silence is the hold time before firing. Streams that fall silent one after the other are one alert."""
SILENCE_SEVERITY: Mapping[Phase, Severity] = {"mid_stream": "page", "pre_first_output": "ticket"}
CLIENT = "client"
"""`Key.metric` of the streams that wait for their client: their silence says nothing about the model."""
_WHAT: Mapping[tuple[Phase, bool], str] = {
    ("mid_stream", False): "no output from",
    ("mid_stream", True): "client is not reading the output of",
    ("pre_first_output", False): "no first output from",
    ("pre_first_output", True): "client is not sending its request to, or not reading from,",
}


def silence_conditions(
    found: Iterable[Silence],
    limits_s: Mapping[Phase, float],
    wall_ns: int,
    client_names: Mapping[str, str] | None = None,
) -> dict[Key, Condition]:
    """One condition per gateway, model and phase, and one for streams that wait for their client. A limit of 0 turns the rule off.
    `client_names`: client id → name."""
    groups: dict[Key, list[Silence]] = {}
    for one in found:
        limit_s = limits_s[one.phase]
        if limit_s and one.silent_ns > limit_s * 1e9:
            metric = CLIENT if one.waits_for_client else None
            groups.setdefault(Key(SILENCE_RULES[one.phase], one.gateway, one.model, metric), []).append(one)
    conditions = {}
    for key, group in groups.items():
        worst = max(group, key=lambda one: one.silent_ns)
        silent_s, limit_s = worst.silent_ns / 1e9, limits_s[worst.phase]
        client_id = dominant_client(one.client_id for one in group)
        what = _WHAT[worst.phase, worst.waits_for_client]
        affected = f"{len(group)} streams" if len(group) > 1 else "1 stream"
        by = (
            ""
            if client_id is None
            else f", mostly of client {(client_names or {}).get(client_id, client_id)}"
        )
        text = f"{what} {name_of(key)} for {silent_s:.1f} s (limit {limit_s:g} s), {affected}{by}"
        since_ns = wall_ns - worst.silent_ns
        severity: Severity = "ticket" if worst.waits_for_client else SILENCE_SEVERITY[worst.phase]
        dominant = frozenset((("client", client_id),) if client_id is not None else ())
        conditions[key] = Condition(
            silent_s, limit_s, text, since_ns, worst.stream_id, client_id, severity, dominant=dominant
        )
    return conditions


def dominant_client(clients: Iterable[str | None]) -> str | None:
    """The client of more than half of at least two streams."""
    counted = Counter(clients)
    [(client, streams)] = counted.most_common(1)
    return client if streams >= 2 and streams > counted.total() / 2 else None


def name_of(key: Key) -> str:
    """`model at gateway`, as far as known."""
    model = key.model or "an unknown model"
    return f"{model} at {key.gateway}" if key.gateway is not None else model


# Over stored rows

PublishLimits = Callable[[pl.DataFrame, datetime], None]
"""Receives the rows of `streamgauge.analytics.reports.rate_limits.table`, and when they were read."""


@dataclass(frozen=True, slots=True)
class StoreRule:
    """A query with the columns gateway, model, metric, value, threshold, message, began_at and severity."""

    name: str
    sql: str
    hold: Hold
    every_s: float
    """Least interval. 0: at each evaluation."""
    affected: str | None
    """SQL over `streams`: which of them the condition affects. None: the message names what is affected."""
    needs: str | None = None
    """Table without whose rows the rule has no conditions."""
    conditions: (
        Callable[[duckdb.DuckDBPyConnection, Mapping[str, str], PublishLimits], dict[Key, Condition]] | None
    ) = None
    """In place of the SQL. It also receives client id → name, and the receiver of the rate limits."""


def _recent_and_usual(minutes: str, amount: str, of: str) -> str:
    """SQL of `recent` and `usual` by gateway and model: amount / of in the last 15 minutes, and in the 24 hours before them.

    `recent_of` and `usual_of` are the sums of the divisor.
    """
    sides = {
        side: f"minute {sign} now() - INTERVAL 15 MINUTE" for side, sign in (("recent", ">="), ("usual", "<"))
    }
    columns = ", ".join(
        f"sum({amount}) FILTER ({within}) / sum({of}) FILTER ({within}) AS {side}, sum({of}) FILTER ({within}) AS {side}_of"
        for side, within in sides.items()
    )
    return f"""
    SELECT gateway, model, {columns} FROM {minutes}
    WHERE minute >= now() - INTERVAL 24 HOUR AND {of} > 0 GROUP BY ALL"""


CACHE_HIT_RATE = StoreRule(
    "cache_hit_rate",
    f"""
SELECT gateway, model, NULL::VARCHAR AS metric, recent::DOUBLE AS value, (usual / 2)::DOUBLE AS threshold,
    format('prompt-cache hit rate {{:.0f}} %, less than half of the usual {{:.0f}} %', 100 * recent, 100 * usual) AS message,
    now() - INTERVAL 15 MINUTE AS began_at, 'ticket' AS severity
FROM ({_recent_and_usual("stream_minutes", "cached_input_tokens", "input_tokens_with_cache_known")})
WHERE recent < usual / 2 AND usual >= 0.2 AND recent_of >= 10000 AND usual_of >= 100000
""",
    Hold(before_firing_s=60, before_resolving_s=300),
    every_s=0,
    affected="cached_input_tokens = 0",
)
"""The share of input tokens that came from the provider's prompt cache fell below half of its value of the last 24 hours."""

BURN_RATE = StoreRule(
    "burn_rate",
    f"""
SELECT gateway, model, objective || ' ' || indicator AS metric,
    CASE WHEN burn_1h > {FAST_BURN} AND burn_5m > {FAST_BURN} THEN burn_1h
        WHEN burn_6h > {SLOW_BURN} AND burn_30m > {SLOW_BURN} THEN burn_6h ELSE burn_3d END::DOUBLE AS value,
    CASE WHEN burn_1h > {FAST_BURN} AND burn_5m > {FAST_BURN} THEN {FAST_BURN}
        WHEN burn_6h > {SLOW_BURN} AND burn_30m > {SLOW_BURN} THEN {SLOW_BURN} ELSE {STEADY_BURN} END::DOUBLE AS threshold,
    format('{{}}: error budget of objective {{}} ({{}}) burns {{:.1f}} times too fast', burn_rates.severity, objective, indicator, value)
        AS message,
    now() - CASE threshold WHEN {FAST_BURN} THEN INTERVAL 1 HOUR WHEN {SLOW_BURN} THEN INTERVAL 6 HOUR ELSE INTERVAL 3 DAY END AS began_at,
    if(highest = 'ticket', 'ticket', burn_rates.severity) AS severity
FROM burn_rates LEFT JOIN (SELECT name AS objective, severity AS highest FROM objectives) USING (objective)
WHERE burn_rates.severity IS NOT NULL AND highest IS DISTINCT FROM 'none'
""",
    Hold(before_resolving_s=300),
    every_s=60,
    affected=IS_ERROR,
)
"""An error budget burns too fast in a short and a long window, as the view `burn_rates` defines it."""

BUDGET = StoreRule(
    budgets.RULE,
    f"""
SELECT NULL::VARCHAR AS gateway, NULL::VARCHAR AS model, name || ' ' || reason AS metric, severity,
    CASE reason WHEN 'spent' THEN spent WHEN 'forecast' THEN forecast
        ELSE if(burn_1h > {FAST_BURN} AND burn_5m > {FAST_BURN}, burn_1h, burn_6h) END AS value,
    CASE WHEN reason <> 'burn' THEN amount WHEN value = burn_1h THEN {FAST_BURN} ELSE {SLOW_BURN} END::DOUBLE AS threshold,
    format('budget {{}} ', name) || CASE reason WHEN 'spent' THEN 'is spent' WHEN 'forecast' THEN 'will be exceeded'
        ELSE format('burns {{:.1f}} times too fast', value) END
        || format(': {{0:.{{5}}f}} of {{1:.{{5}}f}} {{2}} this {{3}}, {{4:.0f}} % of it estimated', spent, amount, currency, period,
            100 * coalesce(estimated_share, 0), digits)
        || coalesce(format(', forecast {{0:.{{3}}f}} ({{1:.{{3}}f}} – {{2:.{{3}}f}})', forecast, forecast_low, forecast_high, digits), '')
        AS message,
    CASE WHEN reason <> 'burn' THEN began_at WHEN threshold = {FAST_BURN} THEN now() - INTERVAL 1 HOUR ELSE now() - INTERVAL 6 HOUR END
        AS began_at
FROM (SELECT * REPLACE (if(reason = 'forecast', 'ticket', severity) AS severity)
    FROM (SELECT *, unnest(reasons) AS reason, if(amount < 10, 4, 2) AS digits FROM budget_spend WHERE severity IS NOT NULL))
""",
    Hold(before_resolving_s=300),
    every_s=300,
    affected=None,
    needs="budgets",
)
"""A budget is spent, burns too fast, or its forecast is above it (view `budget_spend`). Every 5 minutes, because the view reads the
streams of a month."""

SERVER_DRIFT = StoreRule(
    "server_drift",
    f"""
SELECT gateway, model, 'ttft' AS metric, recent::DOUBLE AS value,
    (usual + greatest(0.2, abs(usual)))::DOUBLE AS threshold,
    format('TTFT is {{:.3f}} s longer than the server reports, usually {{:.3f}} s', recent, usual) AS message,
    now() - INTERVAL 15 MINUTE AS began_at, 'ticket' AS severity
FROM ({_recent_and_usual("server_drift", "ttft_drift_p50_ns * streams / 1e9", "streams")})
WHERE recent > threshold AND recent_of >= 20 AND usual_of >= 100
""",
    Hold(before_resolving_s=300),
    every_s=300,
    affected="ttft_ns IS NOT NULL",
)
"""The median difference between observed and reported TTFT doubled, and rose by at least 0.2 s: a queue or a network in front of
the server, which the server does not see. Every 5 minutes, because the view reads the streams of a day."""

RATE_LIMIT_S = 900.0


def _rate_limits(
    cursor: duckdb.DuckDBPyConnection, client_names: Mapping[str, str], publish: PublishLimits
) -> dict[Key, Condition]:
    now, found = datetime.now(UTC), dict[Key, Condition]()
    rows = rate_limits.table(lambda sql: cursor.execute(sql).pl(), now)
    publish(rows, now)
    for row in rate_limits.with_text(rows, client_names).drop_nulls("text").to_dicts():
        if row["forecast_s"] <= RATE_LIMIT_S:
            client = row["mostly"]
            found[Key("rate_limit", row["gateway"], row["model"], row["quota"] or row["kind"])] = Condition(
                value=row["forecast_s"],
                threshold=RATE_LIMIT_S,
                message=row["text"],
                since_ns=int(now.timestamp() * 1e9),
                stream_id=None,
                client_id=client,
                severity="ticket",
                dominant=frozenset((("client", client),) if client is not None else ()),
            )
    return found


RATE_LIMIT = StoreRule(
    "rate_limit", "", Hold(before_firing_s=15, before_resolving_s=120), every_s=10, affected=None, conditions=_rate_limits
)  # fmt: skip
"""At the current rate, a rate limit of the provider is used up within 15 minutes."""

STORE_RULES = (CACHE_HIT_RATE, BURN_RATE, BUDGET, RATE_LIMIT, SERVER_DRIFT)
STORE_HOLDS: Mapping[str, Hold] = {rule.name: rule.hold for rule in STORE_RULES}
_CONDITION = "gateway, model, metric, value, threshold, message, epoch_us(began_at), severity"
_EXAMPLE = f"""
WITH affected AS (
    FROM streams WHERE started_at > now() - INTERVAL 1 HOUR AND gateway IS NOT DISTINCT FROM ?
        AND coalesce(request_model, response_model) IS NOT DISTINCT FROM ? AND ({{affected}})
), shares AS (
    SELECT place FROM (
        SELECT unnest([('client', {dimensions.CLIENT}), ('app', {dimensions.APP})] || list_transform(
            map_entries(coalesce(labels, MAP {{{{}}}})), lambda entry: ('{dimensions.LABEL}', entry.key || '=' || entry.value))) AS place
        FROM affected)
    GROUP BY place HAVING count(*) >= 2 AND count(*) > (SELECT count(*) FROM affected) / 2
)
SELECT arg_max(stream_id::VARCHAR, started_at), (SELECT list(place) FROM shares) FROM affected
"""
MAX_EXAMPLES = 20
"""Conditions of one evaluation for which a stream and a client are looked up."""


class StoreRules:
    """Evaluates the rules, each at its interval. Used by one thread."""

    def __init__(
        self,
        clock: Callable[[], int],
        client_names: Mapping[str, str] | None = None,
        publish_limits: PublishLimits = lambda rows, now: None,
    ) -> None:
        """`clock`: monotonic time in ns. `client_names`: client id → name. `publish_limits` receives the rate limits when they are read."""
        self._clock, self._client_names, self._publish_limits = clock, client_names or {}, publish_limits
        self._found: dict[str, tuple[int, dict[Key, Condition]]] = {}
        """By rule: when it was evaluated, and its conditions."""

    def conditions(self, cursor: duckdb.DuckDBPyConnection) -> dict[Key, Condition]:
        """The conditions of all rules that are met. Raises duckdb.Error."""
        found: dict[Key, Condition] = {}
        for rule in STORE_RULES:
            known, now_ns = self._found.get(rule.name), self._clock()
            if known is None or now_ns - known[0] >= rule.every_s * 1e9:
                conditions = _conditions(cursor, rule, self._client_names, self._publish_limits)
                known = self._found[rule.name] = now_ns, conditions
            found |= known[1]
        return found


def _conditions(
    cursor: duckdb.DuckDBPyConnection,
    rule: StoreRule,
    client_names: Mapping[str, str],
    publish_limits: PublishLimits,
) -> dict[Key, Condition]:
    if rule.conditions is not None:
        return rule.conditions(cursor, client_names, publish_limits)
    if rule.needs is not None and cursor.execute(f"FROM {rule.needs} LIMIT 1").fetchone() is None:
        return {}
    rows = cursor.execute(f"SELECT {_CONDITION} FROM ({rule.sql})").fetchall()
    found: dict[Key, Condition] = {}
    for gateway, model, metric, value, threshold, message, began_us, severity in rows:
        key, dominant, stream_id = Key(rule.name, gateway, model, metric), frozenset[tuple[str, str]](), None
        if rule.affected is not None and len(found) < MAX_EXAMPLES:
            dominant, stream_id = _example(cursor, rule.affected, key)
        client_id = next(
            (value for name, value in dominant if name == "client" and value != dimensions.NO_KEY), None
        )
        by = f", mostly for client {client_names.get(client_id, client_id)}" if client_id is not None else ""
        text = message if rule.affected is None else f"{name_of(key)}: {message}{by}"
        found[key] = Condition(
            value, threshold, text, began_us * 1000, stream_id, client_id, severity, dominant=dominant
        )
    return found


def _example(
    cursor: duckdb.DuckDBPyConnection, affected: str, key: Key
) -> tuple[frozenset[tuple[str, str]], str | None]:
    """(the values of dimensions that most of the affected streams of the last hour have, the id of one of them)."""
    row = cursor.execute(_EXAMPLE.format(affected=affected), [key.gateway, key.model]).fetchone()
    assert row is not None
    stream_id, dominant = row
    return frozenset(dominant or ()), stream_id
