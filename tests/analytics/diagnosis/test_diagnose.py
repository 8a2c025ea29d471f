"""Diagnoses of simulated streams, through the real SQL."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import duckdb
import polars as pl
import pytest

from bench.diagnosis import drawn
from bench.diagnosis.incidents import INCIDENTS, Expected, judge
from bench.diagnosis.traffic import PRICES as PRICE_LIST
from bench.diagnosis.traffic import TEAM, TEAMS, Fault, main_client, simulate
from streamgauge.analytics.diagnosis.diagnose import diagnose
from streamgauge.analytics.diagnosis.diagnosis import Diagnosis, headline
from streamgauge.analytics.reports.selection import Selection
from streamgauge.analytics.schema.frames import frame_of_rows, with_all_columns
from streamgauge.analytics.schema.objectives import DEFAULT, Objective
from streamgauge.analytics.schema.sql_quoting import instant
from streamgauge.analytics.schema.tables import OPEN_STREAMS, PRICES, STREAMS

LENGTH_S = 900.0
UNTIL = datetime(2026, 6, 1, 12, tzinfo=UTC)
SINCE = UNTIL - timedelta(seconds=LENGTH_S)
SCOPE = Selection(since=SINCE, until=UNTIL)
LARGE_US = {"model": "gpt-sim-large", "gateway": "us-gateway"}


class Streams:
    """The tables that a diagnosis reads, without a store."""

    def __init__(self) -> None:
        self.connection = duckdb.connect()
        self.connection.execute("SET timezone = 'UTC'")
        self.queries = 0
        self.clear()

    def clear(self) -> None:
        self.queries = 0
        self.put(frame_of_rows(STREAMS, []))
        self.put(frame_of_rows(OPEN_STREAMS, []), "open_streams")
        self.put(frame_of_rows(PRICES, []), "prices")
        self.connection.execute("""
            CREATE OR REPLACE VIEW spend AS
            SELECT stream_id, started_at, 'USD' AS currency, 3e-6 * cache_missed_tokens AS cache_missed FROM streams""")

    def put(self, frame: pl.DataFrame, table: str = "streams") -> None:
        columns = {"streams": STREAMS, "open_streams": OPEN_STREAMS, "prices": PRICES}[table]
        self.connection.register(table, with_all_columns(frame, columns).to_arrow())

    def query(self, sql: str) -> pl.DataFrame:
        self.queries += 1
        return self.connection.execute(sql).pl()

    def diagnose(self, scope: Selection = SCOPE, *own: Objective, **default: float) -> Diagnosis:
        return diagnose(self.query, scope, [*own, replace(DEFAULT, **default)])


@pytest.fixture(scope="module")
def store() -> Streams:
    return Streams()


@pytest.fixture
def streams(store: Streams) -> Streams:
    store.clear()
    return store


def traffic(*faults: Fault, seed: int = 1, rate: float = 5.0) -> pl.DataFrame:
    return simulate(seed, since=SINCE, length_s=LENGTH_S, earlier_s=LENGTH_S, rate=rate, faults=faults)


def rate_limit(**more: float) -> Fault:
    return Fault(where=LARGE_US, onset_s=600.0, outcome="http_error", status=429, share=0.7, **more)  # type: ignore[arg-type]


# Small places have too few streams in 300 s. Load wanders in a minute by more than a slow rise does.
LENGTHS_S = {"one app with a model fails": 600.0, "server fails, model slow": 600.0, "1 % a minute": 900.0}
TOLERANCES_S = {"1 % a minute": 75.0}


@pytest.mark.parametrize("name", INCIDENTS)
def test_incident_is_named_with_its_place_and_onset(streams: Streams, name: str) -> None:
    length_s = LENGTHS_S.get(name, 300.0)
    incident, since = drawn(name, 5, length_s), UNTIL - timedelta(seconds=length_s)
    streams.put(pl.DataFrame(PRICE_LIST), "prices")
    streams.put(
        simulate(5, since=since, length_s=length_s, earlier_s=length_s, rate=10.0, faults=incident.faults)
    )
    found = diagnose(streams.query, Selection(since=since, until=UNTIL), labels=[TEAM])
    named, errors_s = judge(found, incident.expected)
    assert named, headline(found)
    assert max(map(abs, errors_s)) <= TOLERANCES_S.get(name, 15.0), headline(found)


@pytest.mark.parametrize(
    ("team", "family", "fault"),
    [
        ("search", "failure", {"outcome": "http_error", "status": 429, "share": 0.6}),
        ("ads", "failure", {"outcome": "http_error", "status": 500, "share": 0.4}),
        ("o'brien & co", "failure", {"outcome": "truncated", "share": 0.5}),
        ("core", "ttft", {"ttft": 3.0}),
        ("mobile", "itl", {"itl": 3.0}),
        ("search", "stall", {"stalled": 0.4}),
        ("ads", "refusal", {"refused": 0.4}),
        ("core", "length", {"cut": 0.5}),
    ],
)
def test_incident_of_one_value_of_a_label_is_named(
    streams: Streams, team: str, family: str, fault: dict[str, Any]
) -> None:
    length_s, onset_s = 300.0, 150.0
    since, where = UNTIL - timedelta(seconds=length_s), {"label": f"team={team}"}
    faults = [Fault(where=where, onset_s=onset_s, **fault)]
    streams.put(simulate(7, since=since, length_s=length_s, earlier_s=length_s, rate=10.0, faults=faults))
    found = diagnose(streams.query, Selection(since=since, until=UNTIL), labels=[TEAM])
    named, errors_s = judge(found, [Expected((family,), where, onset_s)])
    assert named, headline(found)
    assert max(map(abs, errors_s)) <= 15, headline(found)
    assert f": team={team}, " in headline(found)
    assert found.causes[0].filters == where
    assert (found.causes[0].value_of("team"), found.causes[0].value_of("model")) == (team, None)
    assert set(found.causes[0].unaffected) <= {f"team={name}" for name in TEAMS if name != team}


def test_one_slow_server_of_a_healthy_gateway_is_named(streams: Streams) -> None:
    where = {"server": "direct-0"}
    streams.put(traffic(Fault(where=where, onset_s=LENGTH_S / 2, ttft=2.5), rate=2.0))
    found = streams.diagnose()
    assert [c.where for c in found.causes] == [where], headline(found)


@pytest.mark.parametrize(
    "fault",
    [
        Fault(where={"server": "us-gateway-1"}, onset_s=0.0, outcome="http_error", status=503, share=0.6),
        Fault(where={"gateway": "us-gateway"}, onset_s=0.0, ttft=2.5),
        Fault(where={"app": "agent"}, onset_s=0.0, stalled=0.5),
    ],
    ids=lambda fault: "-".join(fault.where),
)
def test_later_looks_keep_the_place(streams: Streams, fault: Fault) -> None:
    minutes = 8
    last = 60.0 * minutes
    frame = simulate(11, since=UNTIL, length_s=last, earlier_s=2 * LENGTH_S, rate=10.0, faults=[fault])
    places = []
    for minute in range(1, minutes + 1):
        now = UNTIL + timedelta(minutes=minute)
        streams.put(frame.filter(pl.col("started_at") + pl.duration(nanoseconds="end_ns") < now))
        found = streams.diagnose(Selection(since=now - timedelta(seconds=LENGTH_S), until=now))
        places.append([c.where for c in found.causes[:1]])
    first = places.index([fault.where])
    assert first < 3, places
    assert places[first:] == [[fault.where]] * (minutes - first)


@pytest.mark.parametrize("fault", [{"ttft": 1.12}, {"itl": 1.12}, {"longer": 1.12}], ids=str)
@pytest.mark.parametrize("where", [{"gateway": "us-gateway"}, {"app": "agent"}], ids=str)
def test_change_of_12_percent_is_none(streams: Streams, where: dict[str, str], fault: dict[str, Any]) -> None:
    streams.put(traffic(Fault(where=where, onset_s=LENGTH_S / 2, **fault), rate=10.0))
    found = streams.diagnose()
    assert found.state == "healthy", headline(found)


@pytest.mark.parametrize(
    ("family", "fault"),
    [
        ("failure", Fault(where={"gateway": "eu-gateway"}, onset_s=720.0, outcome="http_error", status=503, share=0.6)),
        ("failure", Fault(where={"gateway": "us-gateway"}, onset_s=720.0, outcome="connect_error", message="gaierror", share=1.0)),
        ("failure", Fault(where={"model": "gpt-sim-mini"}, onset_s=720.0, outcome="http_error", status=429, share=0.8)),
        ("failure", Fault(where={"client": main_client(0)}, onset_s=720.0, outcome="http_error", status=401, share=1.0)),
        ("failure", Fault(where={"label": "team=search"}, onset_s=720.0, outcome="http_error", status=403, share=1.0)),
        ("ttft", Fault(where={"model": "gpt-sim-mini"}, onset_s=720.0, ttft=3.0)),
        ("spend", Fault(where={"client": main_client(1)}, onset_s=720.0, requests=12.0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value.where),
)  # fmt: skip
def test_place_is_named_within_3_minutes_at_3_requests_in_10_s(
    streams: Streams, family: str, fault: Fault
) -> None:
    streams.put(pl.DataFrame(PRICE_LIST), "prices")
    streams.put(traffic(fault, seed=501, rate=0.3))
    found = diagnose(streams.query, SCOPE, labels=[TEAM])
    assert judge(found, [Expected((family,), fault.where, fault.onset_s)])[0], headline(found)


def test_failures_of_an_app_with_one_model_are_named_although_neither_fails_much_alone(
    streams: Streams,
) -> None:
    where = {"app": "agent", "model": "reasoner"}
    streams.put(
        traffic(
            Fault(where=where, onset_s=400.0, outcome="http_error", status=400, share=0.4), seed=4, rate=4.0
        )
    )
    alone = streams.query(f"""
        SELECT avg((http_status = 400)::INTEGER) FROM streams WHERE client_app = 'agent' AND started_at >= {instant(SINCE)}""").item()
    assert alone < 0.02
    found = streams.diagnose()
    assert [c.where for c in found.causes] == [where], headline(found)


def test_usual_error_of_another_code_does_not_move_the_onset(streams: Streams) -> None:
    fault = Fault(where={"gateway": "direct"}, onset_s=600.0, outcome="http_error", status=503, share=0.3)
    frame = traffic(fault, seed=2, rate=3.0)
    is_before = (pl.col("gateway") == "direct") & pl.col("started_at").is_between(
        SINCE + timedelta(seconds=575), SINCE + timedelta(seconds=580)
    )
    assert frame.filter(is_before).height
    usual = {"outcome": "http_error", "http_status": 500, "error_type": "server_error"}
    streams.put(
        frame.with_columns(
            pl.when(is_before).then(pl.lit(v)).otherwise(k).alias(k).cast(frame.schema[k])
            for k, v in usual.items()
        )
    )
    (cause,) = streams.diagnose().causes
    assert cause.onset is not None
    assert timedelta(0) <= cause.onset - (SINCE + timedelta(seconds=600)) <= timedelta(seconds=15)


@pytest.mark.parametrize("rate", [0.5, 10.0])
def test_client_that_spends_far_more_than_usual_is_named(streams: Streams, rate: float) -> None:
    streams.put(pl.DataFrame(PRICE_LIST), "prices")
    where = {"client": main_client(2)}
    streams.put(traffic(rate=rate, seed=3))
    assert streams.diagnose().state == "healthy"
    streams.put(traffic(Fault(where=where, onset_s=720.0, requests=12.0), rate=rate, seed=3))
    found = streams.diagnose()
    (cause,) = found.causes
    assert (cause.metric, cause.where) == ("spend", where), headline(found)
    assert cause.onset is not None
    first = streams.query(f"""
        SELECT min(started_at) FROM streams WHERE client_id = '{main_client(2)}' AND started_at >= {instant(SINCE + timedelta(seconds=720))}
        """).item()
    assert abs(cause.onset - first) <= timedelta(seconds=15)
    assert cause.main.before is not None
    assert cause.main.value > 4 * cause.main.before
    assert re.match(
        rf"Spend since [\d:]+: client {main_client(2)[:10]}…, spend [\d.]+ → [\d.]+ USD/h\.", headline(found)
    )


def test_session_with_most_of_the_excess_is_named(streams: Streams) -> None:
    streams.put(pl.DataFrame(PRICE_LIST), "prices")
    frame = traffic(Fault(where={"client": main_client(2)}, onset_s=700.0, requests=12.0), seed=3)
    is_loop = (pl.col("client_id") == main_client(2)) & (
        pl.col("started_at") > SINCE + timedelta(seconds=700)
    )
    session = pl.when(is_loop).then(pl.lit("5f3a")).otherwise(pl.col("stream_id").str.head(2))
    streams.put(frame.with_columns(session_id=session))
    assert re.search(r"spend [\d.]+ → [\d.]+ USD/h, session 5f3a has \d+ %\.", headline(streams.diagnose()))


def test_team_that_moves_to_a_dearer_model_is_named_by_its_label(streams: Streams) -> None:
    streams.put(pl.DataFrame(PRICE_LIST), "prices")
    frame = traffic(rate=5.0, seed=3)
    is_search = pl.Series([dict(labels)["team"] == "search" for labels in frame["labels"].to_list()])
    is_late = pl.col("started_at") > SINCE + timedelta(seconds=600)
    model = (
        pl.when(is_search & ~is_late)
        .then(pl.lit("gpt-sim-mini"))
        .when(is_search)
        .then(pl.lit("gpt-sim-large"))
    )
    streams.put(frame.with_columns(model.otherwise("request_model").alias("request_model")))
    found = diagnose(streams.query, SCOPE, labels=[TEAM])
    assert ("spend", {"label": "team=search"}) in [(c.metric, c.where) for c in found.causes], headline(found)


def test_healthy_range_takes_one_query(streams: Streams) -> None:
    streams.put(traffic())
    found = streams.diagnose()
    assert (found.state, found.causes, streams.queries) == (
        "healthy",
        (),
        2,
    )  # one looks whether there are prices
    assert headline(found).startswith("Healthy")


def test_cause_has_evidence_neighbours_and_an_affected_stream(streams: Streams) -> None:
    streams.put(traffic(rate_limit()))
    found = streams.diagnose()
    (cause,) = found.causes
    assert dict(cause.where) == cause.filters == LARGE_US
    assert cause.evidence == ("HTTP 429 (rate_limit_exceeded)",)
    assert (cause.unaffected_dimension, set(cause.unaffected)) == ("gateway", {"eu-gateway", "direct"})
    assert cause.main.value == pytest.approx(0.7, abs=0.12)
    assert cause.onset_earliest is not None
    assert cause.onset_latest is not None
    assert cause.onset_earliest <= SINCE + timedelta(seconds=605)
    assert cause.onset_latest >= SINCE + timedelta(seconds=600)
    example = streams.query(
        f"SELECT request_model, gateway, http_status FROM streams WHERE stream_id = '{cause.example_stream_id}'"
    )
    assert example.row(0) == ("gpt-sim-large", "us-gateway", 429)
    text = headline(found)
    assert "gpt-sim-large @ us-gateway" in text
    assert "failing (objective 5 %), HTTP 429" in text
    assert cause.onset is not None
    assert f"since {cause.onset:%H:%M:%S}: " in text
    assert "Unaffected: gateways eu-gateway, direct." in text


def test_durations_are_the_medians_of_the_place(streams: Streams) -> None:
    streams.put(traffic(Fault(where={"gateway": "us-gateway"}, onset_s=500, ttft=3.0)))
    (cause,) = streams.diagnose().causes
    assert (cause.main.metric, cause.main.statistic) == ("ttft", "p50")
    onset = instant(cause.onset)
    row = streams.query(f"""
        SELECT quantile_cont(ttft_ns, 0.5) FILTER (started_at >= {onset}) AS p50,
            quantile_cont(ttft_ns, 0.95) FILTER (started_at >= {onset}) AS p95
        FROM streams WHERE gateway = 'us-gateway' AND ttft_ns > 0 AND started_at < {instant(UNTIL)}""").to_dicts()[
        0
    ]
    assert (cause.main.value, cause.main.p95) == pytest.approx((row["p50"], row["p95"]), rel=0.02)
    assert cause.main.before is not None
    assert cause.main.value == pytest.approx(3 * cause.main.before, rel=0.3)


def test_filtered_selection_is_diagnosed_alone(streams: Streams) -> None:
    streams.put(traffic(rate_limit()))
    assert streams.diagnose(replace(SCOPE, gateways=("eu-gateway",))).state == "healthy"


def test_unknown_gateway_and_client_are_named(streams: Streams) -> None:
    frame = traffic(
        Fault(where={"gateway": "direct"}, onset_s=500, outcome="http_error", status=500, share=0.8)
    )
    blank = pl.when(pl.col("gateway") == "direct").then(None).otherwise("gateway").alias("gateway")
    streams.put(frame.with_columns(blank, client_id=pl.lit(None, pl.String)))
    (cause,) = streams.diagnose().causes
    assert dict(cause.where) == {"gateway": "(no gateway)"}


def test_few_failing_streams_are_unclear(streams: Streams) -> None:
    streams.put(
        traffic(rate=0.01).with_columns(outcome=pl.lit("http_error"), http_status=pl.lit(500, pl.Int16))
    )
    found = streams.diagnose()
    assert found.state == "unclear"
    assert "too few" in headline(found)


def test_failures_everywhere_in_the_whole_period_are_unclear(streams: Streams) -> None:
    streams.put(traffic(Fault(where={}, onset_s=-LENGTH_S, outcome="http_error", status=500, share=0.3)))
    found = streams.diagnose()
    assert found.state == "unclear"
    assert "No model, gateway or client explains it" in headline(found)


def test_place_that_always_fails_is_found_by_comparison(streams: Streams) -> None:
    fault = Fault(where={"gateway": "direct"}, onset_s=-LENGTH_S, outcome="http_error", status=503, share=0.6)
    streams.put(traffic(fault))
    (cause,) = streams.diagnose().causes
    assert (cause.kind, dict(cause.where), cause.onset) == ("constant", {"gateway": "direct"}, None)
    assert "HTTP 503" in cause.evidence[0]


def test_more_requests_of_a_slow_model_are_a_change_of_traffic(streams: Streams) -> None:
    frame, is_slow = traffic(seed=2, rate=8), pl.col("request_model") == "reasoner"
    is_now, few = pl.col("started_at") >= SINCE, pl.col("stream_id").hash(1) % 10 == 0
    mixed = frame.filter(pl.when(is_slow == is_now).then(True).otherwise(few))
    streams.put(mixed)
    found = streams.diagnose(ttft_ns=1_500_000_000)
    assert {(c.kind, *c.where.items()) for c in found.causes} <= {("traffic", ("model", "reasoner"))}
    assert found.causes, headline(found)


@pytest.mark.parametrize("usual_s", [1, 120])
def test_streams_in_flight_that_are_silent_for_unusually_long_count_as_failed(
    streams: Streams, usual_s: int
) -> None:
    frame = traffic(seed=5)
    in_flight = (pl.col("gateway") == "direct") & (pl.col("started_at") > SINCE + timedelta(seconds=780))
    columns = ["stream_id", "gateway", "tap", "client_id", "request_model", "started_at"]
    streams.put(frame.filter(~in_flight).with_columns(icl_max_ns=pl.lit(usual_s * 10**9)))
    open_streams = frame.filter(in_flight).select(
        *columns, updated_at="started_at", last_event_ns=pl.lit(10**8)
    )
    streams.put(open_streams, "open_streams")
    found = [(c.metric, dict(c.where), c.evidence) for c in streams.diagnose().causes]
    expected = ("timeout", {"gateway": "direct"}, ("in flight without data",))
    assert found == ([expected] if usual_s == 1 else [])


def test_range_without_streams_has_no_data(streams: Streams) -> None:
    found = streams.diagnose()
    assert (found.state, found.streams) == ("no_data", 0)
    assert headline(found) == "No requests in this range."


def test_range_whose_previous_period_is_empty_is_diagnosed(streams: Streams) -> None:
    streams.put(traffic(rate_limit()).filter(pl.col("started_at") >= SINCE))
    (cause,) = streams.diagnose().causes
    assert dict(cause.where) == LARGE_US


def test_lost_cache_explains_a_longer_ttft(streams: Streams) -> None:
    streams.put(traffic(Fault(where={"model": "claude-sim"}, onset_s=400, cached=0.05, ttft=2.0)))
    (cause,) = streams.diagnose().causes
    assert cause.metric == "cache"
    assert "ttft" in {e.metric for e in cause.effects}
    assert "TTFT" in headline(streams.diagnose())


def test_tools_in_another_order_are_named_with_what_the_cache_misses_cost(streams: Streams) -> None:
    streams.put(traffic(Fault(where={"app": "agent"}, onset_s=400, reordered=0.7)))
    (cause,) = streams.diagnose().causes
    assert (cause.metric, dict(cause.where)) == ("prompt_changed", {"app": "agent"})
    at = f"started_at >= {instant(cause.onset or SINCE)} AND client_app = 'agent' AND cached_input_tokens IS NOT NULL"
    share, usd = streams.query(f"""
        SELECT sum(cache_missed_tokens) / sum(input_tokens), 3e-6 * sum(cache_missed_tokens) * 3600 / 500 FROM (
            SELECT input_tokens, if(ends_with(cache_miss_reason, '_changed'), cache_missed_tokens, 0) AS cache_missed_tokens
            FROM streams WHERE {at} AND outcome IN ('ok', 'truncated'))""").row(0)  # fmt: skip
    segment, of_input, money = cause.evidence
    assert segment == "order of tools (tools_changed)"
    assert float(of_input.removesuffix(" % of the input")) == pytest.approx(100 * share, abs=2)
    assert float(money.removesuffix(" USD/h")) == pytest.approx(usd, rel=0.1)


def test_lost_cache_that_is_no_longer_reported_is_named_without_a_longer_ttft(streams: Streams) -> None:
    frame = traffic(Fault(where={"model": "claude-sim"}, onset_s=400, cached=0.0))
    none = pl.when(pl.col("cached_input_tokens") > 0).then("cached_input_tokens").alias("cached_input_tokens")
    streams.put(frame.with_columns(none))
    (cause,) = streams.diagnose().causes
    assert (cause.metric, dict(cause.where), cause.effects) == ("cache", {"model": "claude-sim"}, ())


def test_longer_prompts_are_a_cause_and_no_regression_of_ttft(streams: Streams) -> None:
    longer = Fault(where={}, onset_s=0.0, prompts=60.0)
    streams.put(traffic(longer, rate=10))
    for limit_ns in (20_000_000_000, 1_500_000_000):
        (cause,) = streams.diagnose(ttft_ns=limit_ns).causes
        assert (cause.metric, dict(cause.where)) == ("prompts", {})
    slower = Fault(where={"gateway": "eu-gateway"}, onset_s=500.0, ttft=2.0)
    streams.put(traffic(longer, slower, rate=10))
    (cause,) = (c for c in streams.diagnose(ttft_ns=20_000_000_000).causes if c.metric != "prompts")
    assert (cause.metric, cause.kind, dict(cause.where)) == ("ttft", "step", {"gateway": "eu-gateway"})
    assert cause.onset is not None
    assert abs((cause.onset - SINCE).total_seconds() - 500) <= 10


def test_prompts_that_are_a_little_longer_explain_an_objective_that_is_just_missed(streams: Streams) -> None:
    streams.put(traffic(Fault(where={}, onset_s=-LENGTH_S, prompts=2.5), rate=20))
    slow = streams.query(
        f"SELECT quantile_cont(ttft_ns, 0.95) FROM streams WHERE started_at >= {instant(SINCE)}"
    ).item()
    assert streams.diagnose(ttft_ns=1.1 * slow).state == "healthy"
    found = streams.diagnose(ttft_ns=0.98 * slow)
    assert [(c.kind, dict(c.where)) for c in found.causes] == [("traffic", {})]
    assert re.search(
        r"above the objective \(before .*\), p95 2.*, prompts 1\.\d times longer", headline(found)
    )


def test_answers_cut_at_the_limit_are_named_with_their_length(streams: Streams) -> None:
    streams.put(traffic(Fault(where=LARGE_US, onset_s=500, cut=0.5, tokens=0.5), rate=10))
    found = streams.diagnose()
    (cause,) = found.causes
    assert (cause.metric, dict(cause.where)) == ("length", LARGE_US)
    assert [e.metric for e in cause.effects] == ["output_tokens"]
    assert "of the answers end at the limit (before" in headline(found)
    assert re.search(r"output p50 \d+ → \d+ tokens", headline(found))


def test_shorter_answers_without_reported_tokens_are_named(streams: Streams) -> None:
    frame = traffic(Fault(where={"model": "claude-sim"}, onset_s=500, tokens=0.5), rate=10)
    chars = (4 * pl.col("output_tokens")).alias("text_chars")
    streams.put(frame.with_columns(chars, reasoning_chars=0, output_tokens=pl.lit(None, pl.Int64)))
    assert [(c.metric, dict(c.where)) for c in streams.diagnose().causes] == [
        ("output_chars", {"model": "claude-sim"})
    ]


@pytest.mark.parametrize("with_tools", [True, False])
def test_failures_of_streams_with_a_tool_call_say_so(streams: Streams, with_tools: bool) -> None:
    fault = Fault(
        where={"model": "gpt-sim-mini"}, onset_s=500, outcome="inband_error", share=0.8, code="tool_parser_error", with_tools=with_tools,
    )  # fmt: skip
    streams.put(traffic(fault, rate=10))
    (cause,) = streams.diagnose().causes
    assert cause.metric == "inband_error"
    assert "tool_parser_error" in cause.evidence[0]
    assert ("only with a tool call" in cause.evidence) == with_tools


def test_new_error_code_is_named_among_more_frequent_usual_ones(streams: Streams) -> None:
    usual = Fault(where={}, onset_s=-LENGTH_S, outcome="inband_error", share=0.12, code="overloaded")
    new = Fault(
        where={"model": "gpt-sim-mini"}, onset_s=500, outcome="inband_error", share=0.1, code="bad_grammar"
    )
    streams.put(traffic(usual, new, seed=4, rate=20))
    found = streams.diagnose(error_rate=0.1)
    (cause,) = [c for c in found.causes if c.kind == "step"]
    assert "bad_grammar" in cause.evidence[0], headline(found)


def test_client_that_begins_to_read_slowly_is_named_and_one_that_always_does_is_not(streams: Streams) -> None:
    always = Fault(where={"client": main_client(1)}, onset_s=-LENGTH_S, wait_s=5.0)
    streams.put(traffic(always, rate=10))
    assert streams.diagnose().state == "healthy"
    streams.put(traffic(always, Fault(where={"client": main_client(9)}, onset_s=500, wait_s=6.0), rate=10))
    (cause,) = streams.diagnose().causes
    assert (cause.metric, dict(cause.where)) == ("slow_client", {"client": main_client(9)})
    assert cause.main.before is not None
    assert cause.main.before < 0.2e9
    assert 3e9 < cause.main.value < 9e9


def test_objectives_set_the_least_error_rate_that_counts(streams: Streams) -> None:
    streams.put(
        traffic(Fault(where={"gateway": "eu-gateway"}, onset_s=450, outcome="truncated", share=0.02), rate=10)
    )
    assert streams.diagnose().state == "healthy"
    assert streams.diagnose(error_rate=0.01).state == "incident"


def of_gateway(frame: pl.DataFrame, gateway: str, objective: str) -> pl.DataFrame:
    own = pl.when(pl.col("gateway") == gateway).then(pl.lit(objective)).otherwise("objective")
    return frame.with_columns(own.alias("objective"))


@pytest.mark.parametrize("name", ["batch", "unknown"])
def test_a_place_is_judged_by_its_own_objective(streams: Streams, name: str) -> None:
    fault = Fault(where={"gateway": "direct"}, onset_s=450, outcome="truncated", share=0.15)
    streams.put(of_gateway(traffic(fault, rate=10), "direct", "batch"))
    loose = Objective(name, gateway="direct", error_rate=0.5)
    found = streams.diagnose(SCOPE, loose)
    assert found.state == ("healthy" if name == "batch" else "incident"), headline(found)
    assert {m.objective for m in found.measured} == {"default"} | ({"batch"} if name == "batch" else set())


def test_the_headline_names_the_objective_of_the_place(streams: Streams) -> None:
    fault = Fault(where={"gateway": "eu-gateway"}, onset_s=450, outcome="truncated", share=0.02)
    streams.put(of_gateway(traffic(fault, rate=10), "eu-gateway", "strict"))
    assert streams.diagnose().state == "healthy"
    found = streams.diagnose(SCOPE, Objective("strict", gateway="eu-gateway", error_rate=0.01))
    assert "(objective strict: 1 %)" in headline(found)
    assert [(dict(c.where), c.objective) for c in found.causes] == [({"gateway": "eu-gateway"}, "strict")]


def test_slow_streams_are_those_above_their_own_limit(streams: Streams) -> None:
    frame = of_gateway(traffic(rate=10), "direct", "instant")
    streams.put(frame)
    instant = Objective("instant", gateway="direct", ttft_ns=300_000_000)
    found = streams.diagnose(SCOPE, instant)
    assert [m.missed for m in found.measured if m.objective == "instant"] == [True]
    assert "above the objective (instant: 300 ms)" in headline(found)
    assert "direct" in dict(found.causes[0].where).values()


def test_six_hours_with_data_of_five_have_a_step_and_no_surges(streams: Streams) -> None:
    since, began = UNTIL - timedelta(hours=6), UNTIL - timedelta(hours=5)
    faults = drawn("two at once", 3, 21_600).faults
    frame = simulate(3, since=since, length_s=21_600, earlier_s=60, rate=1.0, faults=faults)
    streams.put(frame.filter(pl.col("started_at") >= began))
    found = streams.diagnose(Selection(since=since, until=UNTIL))
    assert [(c.kind, c.surges) for c in found.causes] == [("step", ())] * 2, headline(found)


NARROW = {
    "one server instance fails": Fault(where={"server": "us-gateway-1"}, onset_s=500, outcome="http_error", status=500, share=0.5),
    "one server instance is slow": Fault(where={"server": "eu-gateway-2"}, onset_s=500, ttft=4.0),
    "one tap fails": Fault(where={"tap": "tap-2"}, onset_s=500, outcome="truncated", share=0.3),
    "one tap is slow": Fault(where={"tap": "tap-1"}, onset_s=500, ttft=2.5),
}  # fmt: skip


@pytest.mark.parametrize("name", NARROW)
def test_a_tap_or_server_instance_is_named_if_it_explains_a_change_better(
    streams: Streams, name: str
) -> None:
    fault = NARROW[name]
    streams.put(traffic(fault, seed=3, rate=10))
    found = streams.diagnose()
    assert [dict(c.where) for c in found.causes] == [dict(fault.where)], headline(found)
    (cause,) = found.causes
    assert cause.onset is not None
    assert abs((cause.onset - SINCE).total_seconds() - 500) <= 10
    assert cause.unaffected_dimension in fault.where
    assert " ".join(*fault.where.items()) in headline(found)
